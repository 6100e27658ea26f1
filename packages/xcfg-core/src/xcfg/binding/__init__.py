"""Whether two sides mean the same: two contract Structs, held against each other field by field.

A contract is a `xcfg.schema` Record whose fields carry marks, `Annotated[int | None, Tier.IDENTICAL]`, or are contracts
themselves. The engine knows no operator: what a field binds, how its value is spelled and what of it is global stand at
the field.

    from xcfg.binding import DTYPE, Stated, bind
    found = bind(Stated(ours, holder="training"), Stated(theirs, holder="rollout"), declared=("precision.accum_dtype",))
    found.status, [item.explain() for item in found.refusals]
"""

from __future__ import annotations

from xcfg.binding.compare import END_TO_END, OPERATOR, Difference, Stated, compare_contracts
from xcfg.binding.determinism import CLAIMS, DeterminismSpec, read_determinism
from xcfg.binding.marks import EndToEnd, Field, Global, Spelling, Violation, Where, fields_of
from xcfg.binding.spellings import DTYPE, NCCL_ALGO, NCCL_PROTO, SWITCH, UNSET
from xcfg.binding.verdict import Bound, bind, declared_by

__all__ = [
    "CLAIMS",
    "DTYPE",
    "END_TO_END",
    "NCCL_ALGO",
    "NCCL_PROTO",
    "OPERATOR",
    "SWITCH",
    "UNSET",
    "Bound",
    "DeterminismSpec",
    "Difference",
    "EndToEnd",
    "Field",
    "Global",
    "Spelling",
    "Stated",
    "Violation",
    "Where",
    "bind",
    "compare_contracts",
    "declared_by",
    "fields_of",
    "read_determinism",
]
