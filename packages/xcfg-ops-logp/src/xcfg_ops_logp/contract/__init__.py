"""LogProbContract: what two sides of a selected log probability must agree on, and whether a side says so of itself.

Field names are the recorded names of the ablation axes. None means that the side does not know its value, which fails
closed for IDENTICAL and SEMANTIC fields (xcfg.binding).

    from xcfg_ops_logp.contract import bind_logprob
    found = bind_logprob(training, rollout, knobs=case.delta)
    found.status, found.reason
"""

from __future__ import annotations

from xcfg_ops_logp.contract.checks import bind_logprob, contract_faults, vocab_of
from xcfg_ops_logp.contract.head_rows import PadRows, pad_rows
from xcfg_ops_logp.contract.made import reference_contract
from xcfg_ops_logp.contract.shards import (
    Tile,
    common_tiles,
    even_shards,
    megatron_shards,
    owners,
    padded_size,
    real_shards,
    tiled,
    vllm_shards,
)
from xcfg_ops_logp.contract.specs import (
    BackendCapability,
    BackwardSpec,
    FusionSpec,
    GatherSpec,
    LogProbContract,
    MaterializationSpec,
    PrecisionSpec,
    ReductionSpec,
    ShardingSpec,
    TransformSpec,
    VocabSpec,
)

__all__ = [
    "BackendCapability",
    "BackwardSpec",
    "FusionSpec",
    "GatherSpec",
    "LogProbContract",
    "MaterializationSpec",
    "PadRows",
    "PrecisionSpec",
    "ReductionSpec",
    "ShardingSpec",
    "Tile",
    "TransformSpec",
    "VocabSpec",
    "bind_logprob",
    "common_tiles",
    "contract_faults",
    "even_shards",
    "megatron_shards",
    "owners",
    "pad_rows",
    "padded_size",
    "real_shards",
    "reference_contract",
    "tiled",
    "vllm_shards",
    "vocab_of",
]
