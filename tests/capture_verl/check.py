"""A real DataProto of verl is captured: check.py OUT, by hand, in an environment with verl, xcfg-dumps and xcfg-core.

No loop runs. verl's own functions build what RayPPOTrainer.fit holds after old_log_probs: the agent loop's _postprocess
concatenates, union joins, reorder moves rows as the balancing does, apply_bypass_mode copies. Oracle: verl's metrics
of the same batch. Last run with verl 0.9.1 and tensordict 0.10.0, without a GPU and without starting Ray. What verl
depends on is too much for the gate.
"""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
import verl
from omegaconf import OmegaConf
from safetensors.numpy import load_file
from verl import DataProto
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopWorker, _InternalAgentLoopOutput
from verl.trainer.ppo.rollout_corr_helper import apply_bypass_mode
from verl.utils import tensordict_utils as tu
from verl.utils.debug.metrics import calculate_debug_metrics
from xcfg.errors import UsageError
from xcfg_dumps.capture import Capture

P, R = 6, 12


def row(generator, prompt, response, tool, version):
    """One padded output of the agent loop: `tool` tokens at the end of the response are not the model's."""
    left, right = torch.zeros(P - prompt, dtype=torch.int64), torch.zeros(R - response, dtype=torch.int64)
    ids = torch.randint(5, 900, (prompt + response,), generator=generator)
    prompts, responses = torch.cat([left, ids[:prompt]])[None], torch.cat([ids[prompt:], right])[None]
    mask = torch.cat([left, torch.ones(prompt + response, dtype=torch.int64), right])[None]
    sampled = (torch.arange(R) < response - tool).long()[None]
    return _InternalAgentLoopOutput(
        prompt_ids=prompts,
        response_ids=responses,
        input_ids=torch.cat([prompts, responses], dim=1),
        position_ids=(mask.cumsum(dim=1) - 1).clamp(min=0),
        response_mask=sampled,
        attention_mask=mask,
        response_logprobs=-torch.rand((1, R), generator=generator) * sampled,
        num_turns=2,
        metrics=AgentLoopMetrics(),
        extra_fields={"min_global_steps": version, "max_global_steps": version},
    )


def batch_of(generator, versions):
    """The batch of fit() after batch.union(old_log_prob), rows in another order than they were sampled in."""
    made = [row(generator, 1 + n % P, 2 + n, n % 2, version) for n, version in enumerate(versions)]
    worker = SimpleNamespace(reward_loop_worker_handles=None)
    names = {"uid": np.array([f"prompt-{n}" for n in range(len(made))], dtype=object)}
    batch = DataProto.from_single_dict({"dummy_tensor": torch.zeros(len(made), 1), **names})
    batch = batch.union(AgentLoopWorker._postprocess(worker, made))
    batch.reorder(torch.randperm(len(made), generator=generator))
    recorded = batch.batch["rollout_log_probs"]
    scored = recorded + torch.randn(recorded.shape, generator=generator) / 50
    return batch.union(DataProto.from_tensordict(tu.get_tensordict({"old_log_probs": scored})))


def refused(capture, batch, says):
    error = None
    try:
        capture.verl(batch)
    except UsageError as caught:
        error = str(caught)
    assert error is not None and says in error, (says, error)


def main(out):
    out, generator = Path(out), torch.Generator().manual_seed(0)
    batch = batch_of(generator, [16] * 8)
    data = batch.batch
    written = Capture(out / "step-17", checkpoint="models/actor").verl(batch).write()
    assert written.manifest.checkpoint.weight_version == 16

    held = load_file(out / "step-17" / "rollout.safetensors")
    real = data["attention_mask"].bool()
    ids = torch.cat([data["prompts"], data["responses"]], dim=1)
    assert held["token_ids"].tolist() == ids[real].tolist()
    assert held["position_ids"].tolist() == data["position_ids"][real].tolist()
    active = torch.cat([torch.zeros_like(data["prompts"]), data["response_mask"]], dim=1).bool()
    assert held["active_mask"].tolist() == active[real].tolist()
    chosen = data["response_mask"].bool()
    for tensor, name in (("recorded_logprob", "rollout_log_probs"), ("recorded_training_logprob", "old_log_probs")):
        assert held[tensor][held["active_mask"]].tobytes() == data[name][chosen].numpy().tobytes(), name

    # verl charts differences of probabilities; those of what was captured must be the same.
    theirs = calculate_debug_metrics(batch)
    ours = np.abs(np.exp(held["recorded_training_logprob"]) - np.exp(held["recorded_logprob"]))[held["active_mask"]]
    assert np.isclose(ours.max(), theirs["training/rollout_probs_diff_max"], rtol=1e-5, atol=0)
    assert np.isclose(ours.mean(), theirs["training/rollout_probs_diff_mean"], rtol=1e-5, atol=0)
    xcfg = Path(sys.executable).with_name("xcfg")
    done = subprocess.run([xcfg, "compare", out / "step-17", "--json"], capture_output=True, text=True, check=False)
    (case,) = json.loads(done.stdout)["cases"]
    assert case["edges"]["training_vs_rollout"]["active_tokens"] == int(chosen.sum()) > 32

    refused(Capture(out / "no", checkpoint="m", weight_version=17), batch, "the capture is of version 17")
    mixed = batch_of(generator, [15, 16, 16, 15, 16, 16, 16, 16])
    refused(Capture(out / "no", checkpoint="m"), mixed, "weight version 15, 16 sampled")
    extra = mixed.non_tensor_batch
    fresh = mixed[(extra["min_global_steps"] == 16) & (extra["max_global_steps"] == 16)]
    assert len(Capture(out / "fresh", checkpoint="m").verl(fresh).write().manifest.sequences) == 6
    unnamed = Capture(out / "unnamed", checkpoint="m").verl(batch_of(generator, [None] * 8)).write()
    assert unnamed.manifest.checkpoint.weight_version == 0

    apply_bypass_mode(batch, OmegaConf.create({"bypass_mode": True}), OmegaConf.create({}))
    refused(Capture(out / "no", checkpoint="m"), batch, "the very tensor rollout_log_probs")
    zeros = batch.union(DataProto.from_single_dict({"dummy": torch.zeros(8)}))
    zeros.batch["old_log_probs"] = torch.zeros_like(zeros.batch["rollout_log_probs"])
    refused(Capture(out / "no", checkpoint="m"), zeros, "a placeholder")
    assert not (out / "no").exists()
    print(f"verl {verl.__version__}: {int(chosen.sum())} active tokens of {len(batch)} rows, verl's metrics agree")


if __name__ == "__main__":
    main(*sys.argv[1:])
