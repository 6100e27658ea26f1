"""Files laid out as the frameworks write them; each layout follows the code that its reader's module names."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from xcfg.dumps import collect_rows
from xcfg.plugin.manager import PluginManager
from xcfg.plugin.operators import load_factory

NAN = float("nan")
IDS = ([11, 12, 300, 70_000, 13], [21, 22, 23])
"""Token ids of two samples: of one byte, two and four."""
ROLLOUT = ([-0.5, -1.25, -3.0], [-0.75])
"""What the engine returned for the responses: three tokens after a prompt of two, one after a prompt of two."""
TRAIN = ([-0.5, -1.5, -2.875], [-0.8125])


def expected(*sides: str, ids: tuple[str, str] = ("0", "1")) -> dict[str, list[Any]]:
    """The canonical columns of the two samples, written out by hand."""
    columns = {
        "sample_id": [ids[0]] * 5 + [ids[1]] * 3,
        "position": [0, 1, 2, 3, 4, 0, 1, 2],
        "token_id": [11, 12, 300, 70_000, 13, 21, 22, 23],
        "active": [False, False, True, True, True, False, False, True],
    }
    if "rollout" in sides:
        columns["logp_rollout"] = [NAN, NAN, -0.5, -1.25, -3.0, NAN, NAN, -0.75]
    if "training" in sides:
        columns["logp_train"] = [NAN, NAN, -0.5, -1.5, -2.875, NAN, NAN, -0.8125]
    return columns


def slime_sample(index: int, /, **changes: Any) -> dict[str, Any]:
    """Sample.to_dict() of slime, with the fields of its dataclass."""
    return {
        "group_index": 0,
        "index": index,
        "rollout_id": None,
        "prompt": [{"role": "user", "content": "2 + 2?"}],
        "tokens": list(IDS[index]),
        "multimodal_inputs": None,
        "response": "four",
        "response_length": len(ROLLOUT[index]),
        "label": "4",
        "reward": {"score": np.float64(1.0)},
        "loss_mask": [1] * len(ROLLOUT[index]),
        "weight_versions": ["7"],
        "rollout_log_probs": list(ROLLOUT[index]),
        "rollout_top_p_token_ids": torch.arange(4, dtype=torch.int32),
        "rollout_routed_experts": np.arange(6, dtype=np.int32).reshape(1, 2, 3),
        "remove_sample": False,
        "status": "completed",
        "metadata": {"difficulty": 0.5, "tags": ("a", "b"), "empty": [], "none": None},
        "non_generation_time": 0.0,
        "spec_info": {"spec_accept_token_num": 0},
    } | changes


def slime_rollout(folder: Path, samples: Any = None, name: str = "rollout_3.pt", **extra: Any) -> Path:
    path = folder / name
    records = [slime_sample(0), slime_sample(1)] if samples is None else samples
    torch.save({"rollout_id": 3, **extra, "samples": records}, path)
    return path


def slime_train_sample(index: int, /, **changes: Any) -> dict[str, Any]:
    """One training sample of format_version 2: columns keep their plural names."""
    return {
        "data_parallel_rank": 1 - index,
        "sample_index": index,
        "rollout_position": index,
        "tokens": torch.tensor(IDS[index]),
        "response_lengths": len(TRAIN[index]),
        "total_lengths": len(IDS[index]),
        "loss_masks": torch.ones(len(TRAIN[index]), dtype=torch.int32),
        "log_probs": torch.tensor(TRAIN[index]),
        "advantages": torch.zeros(len(TRAIN[index])),
    } | changes


def slime_train(folder: Path, samples: Any = None, name: str = "train_3.pt", **changes: Any) -> Path:
    path = folder / name
    document = {
        "format_version": 2,
        "rollout_id": 3,
        "rank": 0,
        "samples": [slime_train_sample(0), slime_train_sample(1)] if samples is None else samples,
        "dp_shards": [{"rank": 0, "data_parallel_rank": 0, "sample_indices": [1], "micro_batch_indices": [[[0]]]}],
        "raw_reward": [1.0, 0.0],
    }
    torch.save(document | changes, path)
    return path


def miles_train(folder: Path, rank: int = 0, rows: tuple[int, ...] = (0, 1), **changes: Any) -> Path:
    """The file of one rank, as slime wrote it before version 2 and miles does."""
    data: dict[str, Any] = {
        "tokens": [torch.tensor(IDS[row]) for row in rows],
        "loss_masks": [[1] * len(TRAIN[row]) for row in rows],
        "response_lengths": [len(TRAIN[row]) for row in rows],
        "total_lengths": [len(IDS[row]) for row in rows],
        "sample_indices": list(rows),
        "log_probs": [torch.tensor(TRAIN[row]) for row in rows],
        "rollout_log_probs": [torch.tensor(ROLLOUT[row]) for row in rows],
        "raw_reward": [0.0, 1.0, 0.0],
    }
    document = {"rollout_id": 3, "rank": rank, "rollout_data": data | changes.pop("data", {}), "cp_rank": 0}
    path = folder / f"3_{rank}.pt"
    torch.save({**document, "cp_size": 1, "qkv_format": "thd", **changes}, path)
    return path


def nemo_record(index: int, **changes: Any) -> dict[str, Any]:
    """One line of train_data_step*.jsonl: batches of one, padded to the longest, index 0 a dummy."""
    pad = max(map(len, IDS)) - len(IDS[index])
    prompt = len(IDS[index]) - len(ROLLOUT[index])

    def padded(values: Any) -> list[Any]:
        return [[0.0] * prompt + list(values) + [0.0] * pad]

    return {
        "content": ["some text"],
        "rewards": [1.0],
        "input_lengths": [len(IDS[index])],
        "token_ids": [list(IDS[index]) + [0] * pad],
        "token_loss_mask": padded([1.0] * len(ROLLOUT[index])),
        "sample_loss_mask": [1.0],
        "advantages": padded([0.5] * len(ROLLOUT[index])),
        "generation_logprobs": padded(ROLLOUT[index]),
        "prev_logprobs": padded(TRAIN[index]),
        "idx": index,
    } | changes


def prime_record(index: int, **changes: Any) -> dict[str, Any]:
    """One line of token_exports/step_*/rank_*.jsonl."""
    prompt = len(IDS[index]) - len(ROLLOUT[index])
    n = len(IDS[index])
    return {
        "schema_version": 1,
        "step": 4,
        "rank": 2,
        "micro_step": 0,
        "micro_sequence_idx": index,
        "export_sequence_idx": index,
        "env_name": "math",
        "token_ids": list(IDS[index]),
        "position_ids": list(range(n)),
        "loss_mask": [False] * prompt + [True] * len(ROLLOUT[index]),
        "advantages": [0.0] * n,
        "inference_logprobs": [0.0] * prompt + list(ROLLOUT[index]),
        "trainer_logprobs": [-11.7] + [-2.0] * (prompt - 1) + list(TRAIN[index]),
        "entropy": [0.25] * n,
        "mismatch_kl": [None] * n,
        "is_masked": [False] * n,
    } | changes


def entry(token: int, logprob: float | None, rank: int = 1) -> dict[str, Any]:
    """One position of vLLM: the most likely token, and the chosen one where it is another."""
    best = {"999999": {"logprob": -0.125, "rank": 1, "decoded_token": "x"}}
    return best | {str(token): {"logprob": logprob, "rank": rank, "decoded_token": "y"}}


def vllm_request(index: int, **changes: Any) -> dict[str, Any]:
    """RequestOutput as a dictionary of its attributes, through JSON."""
    prompt, ids = IDS[index][: -len(ROLLOUT[index])], IDS[index][-len(ROLLOUT[index]) :]
    output = {
        "index": 0,
        "text": "four",
        "token_ids": list(ids),
        "cumulative_logprob": sum(ROLLOUT[index]),
        "logprobs": [entry(token, value) for token, value in zip(ids, ROLLOUT[index], strict=True)],
        "finish_reason": "stop",
    }
    return {
        "request_id": str(index),
        "prompt": "2 + 2?",
        "prompt_token_ids": list(prompt),
        "prompt_logprobs": None,
        "outputs": [output],
        "finished": True,
    } | changes


def chat_answer(index: int, **changes: Any) -> dict[str, Any]:
    prompt, ids = IDS[index][: -len(ROLLOUT[index])], IDS[index][-len(ROLLOUT[index]) :]
    content = [
        {"token": "a", "logprob": value, "bytes": None, "top_logprobs": [{"token": "b", "logprob": -0.125}]}
        for value in ROLLOUT[index]
    ]
    choice = {"index": 0, "message": {"role": "assistant", "content": "four"}, "finish_reason": "stop"}
    return {
        "id": str(index),
        "object": "chat.completion",
        "model": "m",
        "choices": [{**choice, "logprobs": {"content": content}, "token_ids": list(ids)}],
        "prompt_token_ids": list(prompt),
        "prompt_logprobs": None,
        "usage": {"prompt_tokens": len(prompt), "completion_tokens": len(ids)},
    } | changes


def completion_answer(index: int, choice: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    prompt, ids = IDS[index][: -len(ROLLOUT[index])], IDS[index][-len(ROLLOUT[index]) :]
    logprobs = {
        "text_offset": [0] * len(ids),
        "token_logprobs": list(ROLLOUT[index]),
        "tokens": [f"token_id:{token}" for token in ids],
        "top_logprobs": [{"token_id:5": -0.1}] * len(ids),
    }
    given = {"index": 0, "text": "four", "logprobs": logprobs, "finish_reason": "stop", "stop_reason": None}
    given |= {"token_ids": list(ids), "prompt_token_ids": list(prompt), "prompt_logprobs": None} | (choice or {})
    usage = {"prompt_tokens": len(prompt), "completion_tokens": len(ids)}
    return {"id": str(index), "object": "text_completion", "choices": [given], "usage": usage} | changes


def jsonl(folder: Path, records: Any, name: str = "dump.jsonl") -> Path:
    path = folder / name
    if not isinstance(records, (str, bytes)):
        records = "".join(json.dumps(record) + "\n" for record in records)
    path.write_bytes(records if isinstance(records, bytes) else records.encode())
    return path


def canonical() -> dict[str, Any]:
    """The two samples as arrays of the canonical columns, both sides."""
    columns = {name: np.array(values) for name, values in expected("rollout", "training").items()}
    return columns | {name: columns[name].astype(np.float32) for name in ("logp_rollout", "logp_train")}


def padded_loop() -> dict[str, Any]:
    """Two samples as verl and TRL pad them: prompts left to 3, responses right to 4; 14 is a tool's token."""
    return {
        "prompts": torch.tensor([[0, 11, 12], [0, 21, 22]]),
        "responses": torch.tensor([[13, 14, 15, 0], [23, 0, 0, 0]]),
        "prompt": torch.tensor([[0, 1, 1], [0, 1, 1]]),
        "response": torch.tensor([[1, 1, 1, 0], [1, 0, 0, 0]]),
        "active": torch.tensor([[1, 0, 1, 0], [1, 0, 0, 0]]),
        "rollout": torch.tensor([[-0.5, -9.0, -1.5, 0.0], [-2.5, 0.0, 0.0, 0.0]]),
        "train": torch.tensor([[-0.75, -8.0, -1.25, 7.0], [-2.0, 0.0, 0.0, 0.0]]).requires_grad_(),
    }


def verl_loop() -> SimpleNamespace:
    """A stand-in for a DataProto: its tensors, in a plain dictionary."""
    data = padded_loop()
    tensors = {
        "prompts": data["prompts"],
        "responses": data["responses"],
        "attention_mask": torch.cat([data["prompt"], data["response"]], dim=1),
        "response_mask": data["active"],
        "rollout_log_probs": data["rollout"],
        "old_log_probs": data["train"],
    }
    return SimpleNamespace(batch=tensors)


def trl_loop() -> dict[str, Any]:
    """What _generate_and_score_completions returns."""
    data = padded_loop()
    return {
        "prompt_ids": data["prompts"],
        "prompt_mask": data["prompt"],
        "completion_ids": data["responses"],
        "completion_mask": data["response"],
        "tool_mask": torch.tensor([[1, 0, 1, 1], [1, 1, 1, 1]]),
        "sampling_per_token_logps": data["rollout"],
        "old_per_token_logps": data["train"],
    }


def nemo_rl_loop() -> dict[str, Any]:
    """A stand-in for train_data, a BatchedDataDict: 14 is a tool's token again."""
    return {
        "input_ids": torch.tensor([[11, 12, 13, 14, 15], [21, 22, 23, 0, 0]]),
        "input_lengths": torch.tensor([5, 3]),
        "token_mask": torch.tensor([[1, 0, 1, 0, 1], [0, 0, 1, 1, 1]]),  # index 0 is a dummy, whatever the mask says
        "sample_mask": torch.tensor([1.0, 1.0]),
        "generation_logprobs": torch.tensor([[0.0, 0, -0.5, -9, -1.5], [0, 0, -2.5, 0, 0]]),
        "prev_logprobs": torch.tensor([[0.0, 0, -0.75, -8, -1.25], [0, 0, -2.0, 0, 0]]),
    }


def slime_loop() -> dict[str, Any]:
    """A stand-in for rollout_data: lists of tensors, one entry per sample."""
    return {
        "tokens": [torch.tensor([11, 12, 13, 14, 15]), torch.tensor([21, 22, 23])],
        "response_lengths": [3, 1],
        "loss_masks": [torch.tensor([1, 0, 1]), torch.tensor([1])],
        "rollout_log_probs": [torch.tensor([-0.5, -9.0, -1.5]), torch.tensor([-2.5])],
        "log_probs": [torch.tensor([-0.75, -8.0, -1.25]), torch.tensor([-2.0])],
    }


@pytest.fixture(scope="session")
def loops() -> dict[str, Any]:
    """Name of a framework -> what its loop holds, made anew on each call."""
    return {"verl": verl_loop, "trl": trl_loop, "nemo_rl": nemo_rl_loop, "slime": slime_loop}


@pytest.fixture(scope="session")
def layouts() -> SimpleNamespace:
    return SimpleNamespace(**{name: value for name, value in globals().items() if not name.startswith("_")})


@pytest.fixture(scope="session")
def manager() -> PluginManager:
    return PluginManager.load(environ={})


@pytest.fixture
def rows(manager: PluginManager) -> Any:
    """rows(reader, path): what a reader makes of a file, checked and sorted as every dump is."""

    def read(name: str, path: Path) -> Any:
        reader = load_factory(manager.dump_reader(name).record.factory)()
        return collect_rows(reader.read(path), source=path.name)

    return read
