"""One runtime per fault: `faulty-NAME`, with everything that `torch` declares."""

from __future__ import annotations

from xcfg.plugin import hookimpl
from xcfg.schema.codec import evolve
from xcfg.schema.runtime import RuntimeDescriptor
from xcfg_torch.capabilities import TORCH

FAULTS = (
    "prefill_as_decode",
    "zero_page",
    "echo",
    "dropping",
    "flip_before_digest",
    "flip_after_build",
    "flip_while_scoring",
    "swap",
    "rank_offset",
    "silent_rank",
    "ownerless_rank",
    "double_rank",
    "half_column",
    "waiting",
)


@hookimpl
def xcfg_runtimes() -> tuple[RuntimeDescriptor, ...]:
    """Return them."""
    sides = {side: arms for side, arms in TORCH.arms.items() if side != "reference"}
    return tuple(
        evolve(
            TORCH,
            name=f"faulty-{name.replace('_', '-')}",
            adapter=f"faulty_engines.{name}:Adapter",
            arms=sides,
            sources=("xcfg_torch", "faulty_engines"),
            generates=False,
        )
        for name in FAULTS
    )
