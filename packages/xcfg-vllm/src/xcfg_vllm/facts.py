"""What one rank of vLLM is made of, read from its live objects; runs in the worker process."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from xcfg.binding import read_determinism

from xcfg_vllm.inject import registry
from xcfg_vllm.options import is_secret

VARIABLES = ("VLLM_", "NCCL_", "CUBLAS_", "TORCH_", "OMP_", "MKL_")
PLACES = ("_ADDR", "_CACHE", "_DIR", "_HOME", "_HOST", "_IP", "_PATH", "_ROOT", "_URL")
"""Endings of variables that name a host or a folder; facts are kept with the evidence, so these are left out."""
BATCH_INVARIANT = (
    "vllm.model_executor.determinism.batch_invariant",
    "vllm.model_executor.layers.batch_invariant",
)
"""Where vLLM keeps its batch-invariant kernels, newest first."""


def qualified(item: Any) -> str:
    """Return module and name of a function, method or type."""
    item = item if isinstance(item, type) or hasattr(item, "__qualname__") else type(item)
    return f"{item.__module__}.{item.__qualname__}"


def counted(names: Iterable[str]) -> dict[str, int]:
    """Return how often each name stands in `names`."""
    return dict(sorted(Counter(names).items()))


def read_facts(rank: int, runner: Any, config: Any) -> dict[str, Any]:
    """Return the facts as plain values."""
    from vllm.distributed import parallel_state

    model = runner.model
    modules = list(model.modules())
    attention = [module for module in modules if type(module).__name__ == "Attention"]
    custom = [module for module in modules if hasattr(module, "_forward_method")]
    head = _head(modules)
    operators = registry.counts()
    group = parallel_state.get_tp_group()
    compilation = config.compilation_config
    return {
        "rank": rank,
        "pid": os.getpid(),
        "runner": qualified(type(runner)),
        "model": qualified(type(model)),
        "tensor_parallel_size": parallel_state.get_tensor_model_parallel_world_size(),
        "group_backend": str(torch.distributed.get_backend(group.device_group)) if group.world_size > 1 else "",
        "communicator": qualified(type(group.device_communicator)) if group.device_communicator else "",
        "parameter_dtypes": counted(str(item.dtype).removeprefix("torch.") for item in model.parameters()),
        "attention_impl": counted(qualified(type(module.impl)) for module in attention),
        "attention_backend_config": str(config.attention_config.backend),
        "kv_cache": [f"{str(item.dtype).removeprefix('torch.')} {tuple(item.shape)}" for item in _caches(runner)[:1]],
        "kv_cache_dtypes": counted(str(item.dtype).removeprefix("torch.") for item in _caches(runner)),
        "kv_cache_formats": counted(str(module.kv_cache_dtype) for module in attention),
        "block_size": _block_size(runner, attention),
        "max_model_len": int(config.model_config.max_model_len),
        "async_scheduling": bool(config.scheduler_config.async_scheduling),
        "not_compiled": [bool(item.do_not_compile) for item in modules if hasattr(item, "do_not_compile")],
        "compilation_mode": getattr(compilation.mode, "name", str(compilation.mode)),
        "compilation_backend": str(compilation.backend),
        "cudagraph_mode": getattr(compilation.cudagraph_mode, "name", str(compilation.cudagraph_mode)),
        "custom_ops": [str(item) for item in compilation.custom_ops],
        "custom_op_methods": counted(qualified(module._forward_method) for module in custom),
        "logprobs_mode": str(runner.sampler.logprobs_mode),
        "runner_kind": runner_kind(runner),
        "native_replay": has_native_replay(runner),
        "logprob_functions": [qualified(item) for item in logprob_functions(runner)],
        "logprob_sources": sorted({_source(item) for item in logprob_functions(runner)}),
        "vocabulary": {} if head is None else _vocabulary(head),
        "layers": layer_types(modules),
        "operators": {name: str(item["backend"]) for name, item in operators.items()},
        "operator_options": {name: item["options"] for name, item in operators.items()},
        "plugins": os.environ.get("VLLM_PLUGINS"),
        "batch_invariant": batch_invariant(),
        "all_reduce_kernels": all_reduce_kernels(group),
        "soft_cap": _head_attribute(modules, "soft_cap"),
        "logit_scale": _head_attribute(modules, "scale"),
        "environment": told_variables(os.environ),
        "determinism": read_determinism(),
        "device": str(runner.device),
        "threads": torch.get_num_threads(),
    }


def told_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that may choose what runs, without those that may hold a secret, a host or a folder."""
    return {
        name: value
        for name, value in sorted(environ.items())
        if name.startswith(VARIABLES) and not is_secret(name) and not name.endswith(PLACES)
    }


def runner_kind(runner: Any) -> str:
    """Return v2 for the model runner below `vllm.v1.worker.gpu`, v1 for the others."""
    return "v2" if type(runner).__module__.startswith("vllm.v1.worker.gpu.") else "v1"


def has_native_replay(runner: Any) -> bool:
    """Return whether this runner's sampler was built with vLLM's trace replay."""
    return getattr(runner.sampler, "trace_replay_state", None) is not None


def logprob_functions(runner: Any) -> list[Any]:
    """Return the live functions that turn logits into log probabilities of selected tokens."""
    if runner_kind(runner) == "v1":
        return [runner.sampler.compute_logprobs, runner.sampler.gather_logprobs]
    from vllm.v1.worker.gpu.sample import logprob

    return [logprob.compute_token_logprobs]


def batch_invariant() -> bool | None:
    """Return whether vLLM's batch-invariant kernels are in force in this process; None where they cannot be found."""
    for name in BATCH_INVARIANT:
        module = sys.modules.get(name)
        if module is not None and hasattr(module, "_batch_invariant_MODE"):
            return bool(module._batch_invariant_MODE)
    return None


def all_reduce_kernels(group: Any) -> list[str] | None:
    """Return which kernels of vLLM's own stand beside the platform's library in the live communicator.

    None for one rank, where nothing is summed. vLLM chooses among them for each tensor.
    """
    if group.world_size == 1:
        return None
    found = vars(group.device_communicator) if group.device_communicator is not None else {}
    return sorted(
        name
        for name, kernel in found.items()
        if name.endswith("_comm") and name != "pynccl_comm" and kernel is not None
        if not getattr(kernel, "disabled", False)
    )


def _head_attribute(modules: list[Any], name: str) -> Any:
    head = next((module for module in modules if type(module).__name__ == "LogitsProcessor"), None)
    return getattr(head, name, None)


def layer_types(modules: Iterable[Any]) -> dict[str, dict[str, int]]:
    """Return, by operation, the types of the live layers that compute it; of attention, those of its implementation."""
    found: dict[str, list[str]] = {"norm": [], "activation": [], "rotary": [], "attention": []}
    for module in modules:
        ancestry = {item.__name__ for item in type(module).__mro__}
        if "Attention" in ancestry and hasattr(module, "impl"):
            found["attention"].append(qualified(type(module.impl)))
        elif "RotaryEmbeddingBase" in ancestry or type(module).__name__.endswith("RotaryEmbedding"):
            found["rotary"].append(qualified(type(module)))
        elif type(module).__name__.endswith("Norm"):
            found["norm"].append(qualified(type(module)))
        elif type(module).__name__.endswith("AndMul"):
            found["activation"].append(qualified(type(module)))
    return {name: counted(items) for name, items in found.items()}


def _block_size(runner: Any, attention: list[Any]) -> int | None:
    """Return the block size of the live block table, if the cache holds keys and values of just that many tokens."""
    caches = _caches(runner)
    if runner_kind(runner) == "v1":
        sizes = [int(table.block_size) for table in runner.input_batch.block_table.block_tables]
    else:
        sizes = [int(size) for size in runner.block_tables.block_sizes]
    if not caches or not attention or not sizes:
        return None
    layer = attention[0]
    values = 2 * int(layer.num_kv_heads) * int(layer.head_size) * sizes[0] * int(runner.kv_cache_config.num_blocks)
    return sizes[0] if caches[0].numel() == values else None


def _source(function: Any) -> str:
    """Return where the code of a function stands, below the package's folder."""
    code = getattr(function, "__code__", None)
    return "unknown" if code is None else "/".join(code.co_filename.split("/")[-4:])


def _caches(runner: Any) -> list[torch.Tensor]:
    return [item for item in getattr(runner, "kv_caches", []) if isinstance(item, torch.Tensor)]


def _head(modules: list[Any]) -> Any:
    """Return the head's own table, or the embedding's where both are one; None where there is neither."""
    found = {type(module).__name__: module for module in reversed(modules)}
    return found.get("ParallelLMHead", found.get("VocabParallelEmbedding"))


def _vocabulary(head: Any) -> dict[str, int]:
    return {
        "org": int(head.org_vocab_size),
        "padded": int(head.num_embeddings_padded),
        "per_rank": int(head.num_embeddings_per_partition),
        "start": int(head.shard_indices.padded_org_vocab_start_index),
    }
