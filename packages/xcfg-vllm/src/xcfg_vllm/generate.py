"""Seeded sampling for `xcfg freeze`: what the engine samples, and the log probabilities that it records."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from xcfg.errors import UsageError, WorkerError

from xcfg_vllm.build import RAW, Engine
from xcfg_vllm.requests import groups, selected, transforms


def run_generate(
    engine: Engine, prompts: Sequence[dict[str, Any]], request: dict[str, Any], checkpoint: Path, batch_size: int
) -> list[dict[str, Any]]:
    """Return one answer per prompt (see plugin.protocols.Generator). Raises UsageError, WorkerError."""
    mode, built = request.get("logprobs_mode", RAW), engine.arguments.get("logprobs_mode", RAW)
    if mode != built:
        raise UsageError(
            f"the engine records {built}, not {mode!r}",
            hint=f"Add --set rollout.logprobs_mode={mode}.",
        )
    ids = prompt_ids(prompts, checkpoint)
    found: list[dict[str, Any]] = []
    for group in groups(list(range(len(ids))), batch_size):
        found += _sampled(engine, [ids[index] for index in group], list(group), request)
    return found


def _sampled(engine: Engine, ids: list[list[int]], indices: list[int], request: dict[str, Any]) -> list[dict[str, Any]]:
    from vllm import SamplingParams
    from vllm.inputs import TokensPrompt

    built = engine.arguments.get("logprobs_mode", RAW)
    stop = [int(item) for item in request.get("stop_ids", ())]
    params = [
        SamplingParams(
            max_tokens=int(request["max_new_tokens"]),
            temperature=float(request["temperature"]),
            top_k=int(request["top_k"]) or -1,
            top_p=float(request["top_p"]),
            seed=sequence_seed(int(request["seed"]), index),
            stop_token_ids=stop,
            ignore_eos=True,
            logprobs=0,
            flat_logprobs=True,
            detokenize=False,
        )
        for index in indices
    ]
    # vLLM raises temperatures close to 0: what it took is what counts.
    chain = transforms(float(params[0].temperature), int(request["top_k"]), float(request["top_p"]))
    given = [TokensPrompt(prompt_token_ids=item) for item in ids]
    answers = []
    for index, prompt, output in zip(indices, ids, engine.llm.generate(given, params, use_tqdm=False), strict=True):
        tokens = [int(item) for item in output.outputs[0].token_ids]
        picked, values = selected(output.outputs[0].logprobs, tokens, skip=0, sequence=index)
        if picked.tolist() != tokens:
            raise WorkerError(f"the log probabilities of prompt {index} are of other tokens than were sampled")
        answers.append(
            {
                "prompt_ids": prompt,
                "token_ids": tokens,
                "logprobs": [float(item) for item in values],
                "transforms": [] if built == RAW else list(chain),
                "finish_reason": "stop" if tokens[-1] in stop else "length",
            }
        )
    return answers


def sequence_seed(seed: int, sequence: int) -> int:
    """Return the seed of one sequence, so that its draws do not depend on its batch."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{sequence}".encode()).digest()[:8], "big") >> 2


def prompt_ids(prompts: Sequence[dict[str, Any]], checkpoint: Path) -> list[list[int]]:
    """Return the token ids of prompts given as ids or as text; a text goes through the checkpoint's own tokenizer."""
    encode: Any = None
    found = []
    for prompt in prompts:
        if "text" not in prompt:
            found.append([int(item) for item in prompt["token_ids"]])
            continue
        if encode is None:
            from transformers import AutoTokenizer

            encode = AutoTokenizer.from_pretrained(checkpoint, local_files_only=True)
        found.append([int(item) for item in encode(prompt["text"], add_special_tokens=True)["input_ids"]])
    return found
