"""LogProbContract: what two sides of a selected log probability must agree on, and whether a side says so of itself.

Field names are the recorded names of the ablation axes. None means that the side does not know its value, which fails
closed for IDENTICAL and SEMANTIC fields (xcfg.binding).

    found = bind_logprob(training, rollout, knobs=case.delta)
    found.status, found.reason
"""

from __future__ import annotations

from xcfg_ops_logp.contract.checks import bind_logprob, contract_faults, vocab_of
from xcfg_ops_logp.contract.head_rows import pad_rows
from xcfg_ops_logp.contract.made import reference_contract
from xcfg_ops_logp.contract.shards import (
    common_tiles,
    megatron_shards,
    owners,
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
    "PrecisionSpec",
    "ReductionSpec",
    "ShardingSpec",
    "TransformSpec",
    "VocabSpec",
    "bind_logprob",
    "common_tiles",
    "contract_faults",
    "megatron_shards",
    "owners",
    "pad_rows",
    "real_shards",
    "reference_contract",
    "tiled",
    "vllm_shards",
    "vocab_of",
]
