"""One runtime per fault: `megatron-NAME`, with everything that `megatron` declares."""

from __future__ import annotations

from xcfg.plugin import hookimpl
from xcfg.schema.codec import evolve
from xcfg.schema.operators import OperatorBackendDescriptor
from xcfg.schema.runtime import RuntimeDescriptor
from xcfg_megatron.backends import BACKENDS
from xcfg_megatron.capabilities import MEGATRON

FAULTS = {
    "flipped-shard": "FlippedShard",
    "flipped-norm": "FlippedNorm",
    "silent-rank": "SilentRank",
    "other-revision": "OtherRevision",
    "padding-forgotten": "PaddingForgotten",
    "mask-broken": "MaskBroken",
}
NAMES = tuple(f"megatron-{name}" for name in FAULTS)
LOGPROB = evolve(BACKENDS[0], backend_id="faulty.vocab_parallel_logprob", runtimes=NAMES)


@hookimpl
def xcfg_operator_backends() -> tuple[OperatorBackendDescriptor, ...]:
    """Return Megatron's own log probability once more, since a backend names the runtimes that it exists in."""
    return (LOGPROB,)


@hookimpl
def xcfg_runtimes() -> tuple[RuntimeDescriptor, ...]:
    """Return them."""
    return tuple(
        evolve(
            MEGATRON,
            name=f"megatron-{name}",
            adapter=f"faulty_megatron.adapters:{adapter}",
            sources=("xcfg_megatron", "faulty_megatron"),
            policies={"selected_logprob": {"production": LOGPROB.backend_id}},
            operators=("selected_logprob",),
        )
        for name, adapter in FAULTS.items()
    )
