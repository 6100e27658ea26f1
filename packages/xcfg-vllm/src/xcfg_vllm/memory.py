"""What prompt log probabilities take at their peak, held against what there is before an engine is built.

vLLM's own memory profile knows nothing of it: its V1 runner makes the logits of all tokens of a prompt at once, and
float32 log probabilities of the whole vocabulary beside them; its V2 runner goes through them in chunks of rows. With
151,936 entries of vocabulary, bfloat16, a sequence of 8,192 tokens and V1 that is 12.4 GB beside weights and cache.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from xcfg.errors import LaunchError
from xcfg.schema.worker import WorkerSpec

from xcfg_vllm.options import VllmOptions

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
WIDE = 4
"""Bytes of a float32, in which log probabilities are computed."""
PADDING = 64
"""vLLM pads a vocabulary to a multiple of this; rows of logits that end before the padding are copied once more."""
CHUNK = 1024
"""Rows that the V2 runner takes at once (vllm/v1/worker/gpu/sample/prompt_logprob.py)."""
STEP = {"cuda": 16384, "cpu": 4096}
"""Tokens of a step where nobody sets them: the largest default of vLLM 0.32's class LLM; on a CPU for each rank."""
GIB = 2**30


@dataclass(frozen=True)
class Memory:
    """Bytes, kept with the facts of the engine. available: of one device, or of the machine; None: nobody says.

    prompt_logprobs: the estimated peak. weights: of the checkpoint in the dtype of the engine. cache: of keys and
    values where it is fixed before the build. gpu_memory_utilization: what the engine is built with; None on a CPU.
    """

    prompt_logprobs: int
    weights: int
    cache: int
    available: int | None
    gpu_memory_utilization: float | None = None

    @property
    def facts(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


def peak_bytes(
    lengths: Sequence[int], vocabulary: int, dtype: str, runner: str, *, step: int | None = None, ranks: int = 1
) -> int:
    """Return the estimated peak of one rank while prompts of `lengths` tokens are scored.

    step: tokens of one engine step at most; longer prompts come in pieces. An operator that is injected for
    selected_logprob takes memory of its own, which is not counted.

    V1 (vllm/v1/worker/gpu_model_runner.py, _get_prompt_logprobs_dict) goes from request to request of a step. Of N
    rows it holds the logits (in `dtype`; over several ranks the rank's own part, what was gathered, and both joined),
    then beside them a float32 copy, unless they are float32 and unpadded, and the float32 log probabilities; those of
    the request before are still there. On an H200 (torch 2.11) log_softmax took 8 bytes for each bfloat16 logit, 4 for
    each float32, and 4 for each float16, where this says 8.
    """
    size, limit = BYTES[dtype], step if step is not None else sum(lengths)
    columns = math.ceil(vocabulary / PADDING) * PADDING
    rows = [min(length - 1, limit) for length in sorted(lengths, reverse=True)[:2]]
    gathering = size if ranks == 1 else math.ceil(size * (2 + 1 / ranks))
    if runner == "v2":
        return min(sum(lengths), limit, CHUNK) * columns * gathering
    copied = 0 if dtype == "float32" and columns == vocabulary else WIDE
    first = rows[0]
    before = min(rows[1], limit - first) if len(rows) > 1 else 0
    head = before * (size + WIDE) + first * gathering
    softmax = before * WIDE + first * (size + copied + WIDE)
    return max(head, softmax) * columns


def model_config(checkpoint: Path) -> dict[str, Any]:
    """Return config.json; a model of several parts describes its language model in `text_config`, which goes first."""
    config: dict[str, Any] = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    text = config.get("text_config")
    return {**config, **text} if isinstance(text, dict) else config


def plan_memory(
    spec: WorkerSpec, lengths: Sequence[int], arguments: Mapping[str, Any], options: VllmOptions
) -> Memory | None:
    """Return what an engine with `arguments` will take; on a GPU with a lower gpu_memory_utilization where that helps.

    None where config.json names no vocabulary: then nothing can be reckoned, and the engine is built as it is.
    Raises LaunchError where weights, cache and prompt log probabilities cannot all fit.
    """
    on_cuda = any(device.startswith("cuda") for device in spec.devices)
    config = model_config(Path(spec.checkpoint))
    if not isinstance(config.get("vocab_size"), int):
        return None
    dtype, runner = str(arguments["dtype"]), str(spec.knobs.get("rollout.model_runner", "v1"))
    step = _step(arguments, spec.world_size, on_cuda)
    peak = peak_bytes(lengths, config["vocab_size"], dtype, runner, step=step, ranks=spec.world_size)
    weights = _weights(Path(spec.checkpoint), config, dtype)
    if not on_cuda:
        cache = (options.kv_cache_gib or 1) * GIB * spec.world_size
        planned = Memory(peak * spec.world_size, weights, cache, spec.memory_bytes)
        return _checked(planned, lengths, "the machine, or --memory-gib,")
    free, total = _device_memory(spec)
    share = options.gpu_memory_utilization
    cache = (options.kv_cache_gib or 0) * GIB
    if total and not cache and free - share * total < peak:
        share = (free - peak) * 100 // total / 100
    planned = Memory(peak, weights // spec.world_size, cache, free if total else None, share)
    return _checked(planned, lengths, "every device")


def _step(arguments: Mapping[str, Any], ranks: int, on_cuda: bool) -> int | None:
    """Return the tokens of one step at most; None where prompts must run whole."""
    if arguments.get("max_num_batched_tokens") is not None:
        return int(arguments["max_num_batched_tokens"])
    if arguments.get("enable_chunked_prefill") is False:
        return None
    return STEP["cuda"] if on_cuda else STEP["cpu"] * ranks


def _checked(planned: Memory, lengths: Sequence[int], where: str) -> Memory:
    wanted = planned.prompt_logprobs + planned.weights + planned.cache
    if planned.available is None or wanted <= planned.available:
        return planned
    parts = {"weights": planned.weights, "cache": planned.cache, "prompt log probabilities": planned.prompt_logprobs}
    told = ", ".join(f"{name} {size / GIB:.2f} GiB" for name, size in parts.items() if size)
    raise LaunchError(
        f"the engine does not fit: {told}; {where} has {planned.available / GIB:.2f} GiB",
        hint=f"The longest sequence has {max(lengths)} tokens. A smaller rollout.max_num_batched_tokens scores prompts "
        "in pieces, rollout.model_runner v2 (on a GPU) in chunks of rows; or freeze shorter sequences.",
    )


def _weights(checkpoint: Path, config: Mapping[str, Any], dtype: str) -> int:
    """Return the bytes of the checkpoint's tensors once they are cast; 0 where it has no safetensors files."""
    stored = BYTES.get(str(config.get("dtype") or config.get("torch_dtype")), WIDE)
    return sum(file.stat().st_size for file in checkpoint.glob("*.safetensors")) * BYTES[dtype] // stored


def _device_memory(spec: WorkerSpec) -> tuple[int, int]:
    """Return the free and the whole memory of the fullest device that the engine sees; zeros where nobody says.

    The driver's own tool is asked, for torch would take a context on the first device.
    """
    names = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    command = ["nvidia-smi", "--query-gpu=memory.free,memory.total", "--format=csv,noheader,nounits"]
    command += ["-i", names] if names else []
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
        rows = [tuple(int(item) << 20 for item in line.split(",")) for line in done.stdout.splitlines() if line.strip()]
        return min((row[0], row[1]) for row in rows)
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return 0, 0
