"""Which package of the project brings what: data for hints when a name is not provided by anything installed.

Names of distributions only; nothing here is imported, and no decision depends on it.
"""

from __future__ import annotations

RUNTIMES: dict[str, str] = {
    "torch": "xcfg-torch",
    "cpu-smoke": "xcfg-torch",
    "vllm": "xcfg-vllm",
    "megatron": "xcfg-megatron",
}
COMMANDS: dict[str, str] = {
    "cube": "xcfg-analysis",
    "analyze": "xcfg-analysis",
    "minimize": "xcfg-analysis",
    "gate": "xcfg-analysis",
    "report": "xcfg-report",
    "view": "xcfg-report",
}
OPERATORS: dict[str, str] = {
    "selected_logprob": "xcfg-ops-logp",
    "linear_selected_logprob": "xcfg-ops-logp",
    "attention": "xcfg-ops-attention",
    "rotary": "xcfg-ops-attention",
    "gemm": "xcfg-ops-gemm",
    "norm": "xcfg-ops-gemm",
    "activation": "xcfg-ops-gemm",
    "row_linear": "xcfg-ops-gemm",
}
MATRICES: dict[str, str] = {
    "attention": "xcfg-ops-attention",
    "ffn": "xcfg-ops-gemm",
    "logp": "xcfg-ops-logp",
}
KNOB_PREFIXES: dict[str, str] = {
    "attention": "xcfg-ops-attention",
    "gemm.": "xcfg-ops-gemm",
    "logprob.": "xcfg-ops-logp",
    "rollout.all_reduce_backend": "xcfg-vllm",
    "rollout.batch_invariant": "xcfg-vllm",
    "rollout.kv_cache_dtype": "xcfg-vllm",
    "rollout.max_num_seqs": "xcfg-vllm",
    "vllm.": "xcfg-vllm",
    "training.batch_invariant_mode": "xcfg-megatron",
    "training.context_parallel_size": "xcfg-megatron",
    "training.deterministic_mode": "xcfg-megatron",
    "training.fp8": "xcfg-megatron",
    "training.layer_spec": "xcfg-megatron",
    "training.recompute": "xcfg-megatron",
    "training.sequence_parallel": "xcfg-megatron",
    "training.temperature": "xcfg-megatron",
    "training.tensor_parallel_size": "xcfg-megatron",
    "training.vocab_padding_policy": "xcfg-megatron",
    "megatron.": "xcfg-megatron",
}
"""The longest prefix that fits counts."""

PACKAGES = frozenset({"xcfg-testkit", "xcfg-dumps", *RUNTIMES.values(), *COMMANDS.values(), *OPERATORS.values()})

_TABLES = {"runtime": RUNTIMES, "command": COMMANDS, "operator backend": OPERATORS, "debug matrix": MATRICES}


def package_for(noun: str, name: str) -> str:
    """Return the distribution of the project that brings `name`; empty when none is known to.

    noun: as in Kind.noun (`runtime`, `command`, `operator backend`, `debug matrix`, `knob`).
    """
    if noun == "knob":
        fitting = [prefix for prefix in KNOB_PREFIXES if name.startswith(prefix)]
        return KNOB_PREFIXES[max(fitting, key=len)] if fitting else ""
    return _TABLES.get(noun, {}).get(name.partition("/")[0], "")
