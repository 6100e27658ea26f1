"""Scoring a frozen rollout with vLLM on a CPU, as one writes it by hand. Nothing here imports xcfg.

PLAN is a JSON file: {"training", "engines": [{"arguments", "scores": [{"arm", "size"}]}], "rebuild", "over"}.
Every engine is built once, or with `rebuild` anew for every score. The training side is one Hugging Face prefill.
Written to OUTPUT: one array [T] per score (`<engine>/<arm>/<size>`, `training`), the seconds in OUTPUT.json.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from _by_hand import Floats, Frozen, Side, groups, load_model, prefill, read_rollout
from safetensors.numpy import save_file


def engine(checkpoint: str, frozen: Frozen, arguments: dict[str, Any]) -> Any:
    from vllm import LLM

    lengths = np.diff(frozen.offsets)
    return LLM(
        model=checkpoint,
        skip_tokenizer_init=True,
        enforce_eager=True,
        enable_prefix_caching=False,
        max_logprobs=1,
        max_model_len=int(lengths.max()) + 1,
        disable_log_stats=True,
        async_scheduling=False,
        logits_processors=["_vllm_forced:Forced"],
        **arguments,
    )


def end(llm: Any) -> None:
    from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

    llm.llm_engine.engine_core.shutdown()
    del llm
    gc.collect()
    cleanup_dist_env_and_memory()


def score(llm: Any, frozen: Frozen, arm: str, size: int) -> Floats:
    """float32 [T], NaN where nothing was scored: prompt log probabilities, or forced decode from the first response."""
    from vllm import SamplingParams
    from vllm.inputs import TokensPrompt

    values = np.full(len(frozen.ids), np.nan, dtype=np.float32)
    common: dict[str, Any] = {"temperature": 0.0, "detokenize": False, "ignore_eos": True, "flat_logprobs": True}
    for group in groups(frozen, size):
        spans = [frozen.span(index) for index in group]
        firsts = [int(np.flatnonzero(frozen.active[span])[0]) if arm == "decode" else 1 for span in spans]
        prompts, params = [], []
        for span, first in zip(spans, firsts, strict=True):
            ids = frozen.ids[span].tolist()
            if arm == "decode":
                rest = {"logprobs": 0, "max_tokens": len(ids) - first, "extra_args": {"tokens": ids[first:]}}
                prompts.append(TokensPrompt(prompt_token_ids=ids[:first]))
            else:
                rest = {"prompt_logprobs": 0, "max_tokens": 1}
                prompts.append(TokensPrompt(prompt_token_ids=ids))
            params.append(SamplingParams(**common, **rest))
        for span, first, output in zip(spans, firsts, llm.generate(prompts, params, use_tqdm=False), strict=True):
            flat = output.outputs[0].logprobs if arm == "decode" else output.prompt_logprobs
            starts = flat.start_indices if arm == "decode" else flat.start_indices[1:]
            values[span.start + first : span.stop] = [flat.logprobs[at] for at in starts]
    values[~frozen.active] = np.nan
    return values


def main() -> None:
    folder, checkpoint, plan_file, output = sys.argv[1:]
    frozen, plan = read_rollout(Path(folder)), json.loads(Path(plan_file).read_text())
    found: dict[str, Floats] = {}
    seconds = {"build": 0.0, "score": 0.0, "training": 0.0}
    builds = 0

    def clocked(kind: str, work: Callable[[], Any]) -> Any:
        started = time.perf_counter()
        result = work()
        seconds[kind] += time.perf_counter() - started
        return result

    for number, wanted in enumerate(plan["engines"]):
        llm = None
        for item in wanted["scores"]:
            if llm is None or plan["rebuild"]:
                if llm is not None:
                    end(llm)
                    llm = None
                llm = clocked("build", lambda wanted=wanted: engine(checkpoint, frozen, wanted["arguments"]))
                builds += 1
            arm, size = item["arm"], item["size"]
            values = clocked("score", lambda llm=llm, arm=arm, size=size: score(llm, frozen, arm, size))
            found[f"{number}/{arm}/{size}"] = values
        end(llm)

    def train() -> Floats:
        import torch

        with torch.no_grad():
            given = plan["training"]
            return prefill(
                load_model(Path(checkpoint), given["dtype"], given["attention"]), frozen, Side(**given)
            ).values

    found["training"] = np.where(frozen.active, clocked("training", train), np.nan).astype(np.float32)
    judged = {}
    for name, values in found.items():
        gap = np.abs(found["training"].astype(np.float64) - values)[frozen.active]
        judged[name] = {
            "max_abs": float(gap.max()),
            "mean_abs": float(gap.mean()),
            "over": int((gap > plan["over"]).sum()),
        }
    save_file(found, output)
    Path(f"{output}.json").write_text(json.dumps({"builds": builds, "seconds": seconds, "judged": judged}))


if __name__ == "__main__":
    main()
