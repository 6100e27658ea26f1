"""What the differences of two contracts mean for a comparison: a status, the refusals, what is measured."""

from __future__ import annotations

from collections.abc import Collection

from xcfg.binding.compare import OPERATOR, Difference, Stated, compare_contracts
from xcfg.binding.marks import fields_of
from xcfg.errors import UnknownNameError, did_you_mean
from xcfg.schema._base import Record
from xcfg.schema.names import Status


class Bound(Record, frozen=True):
    """status: empty where the sides may be compared, NOT_COMPARABLE or INVALID_IDENTITY where they may not.

    refusals: the differences that forbid it. measured: IDENTICAL and SEMANTIC ones that the experiment declares.
    recorded: those that bind nothing in this scope.
    """

    status: str = ""
    refusals: tuple[Difference, ...] = ()
    measured: tuple[Difference, ...] = ()
    recorded: tuple[Difference, ...] = ()

    @property
    def comparable(self) -> bool:
        """Whether a number may be made of the two sides."""
        return not self.status

    @property
    def reason(self) -> str:
        """Every refusal in words, for the reason of a case."""
        return "; ".join(item.explain() for item in self.refusals)


def bind(
    first: Record | Stated,
    second: Record | Stated,
    *,
    scope: str = OPERATOR,
    declared: Collection[str] = (),
    active: Collection[str] = (),
) -> Bound:
    """Return what two contracts of one type allow.

    declared: paths of the fields that the experiment varies on purpose (see `declared_by`). A declared difference is
    measured; one that is not declared, or that a side does not know, is NOT_COMPARABLE; a violation is
    INVALID_IDENTITY whatever is declared. Raises UnknownNameError for a declared path that is no field, and what
    `compare_contracts` raises.
    """
    kind = type(first.contract if isinstance(first, Stated) else first)
    paths = {item.path for item in fields_of(kind)}
    for path in declared:
        if path not in paths:
            raise UnknownNameError(f"{path!r} is no field of {kind.__name__}", hint=did_you_mean(path, paths))
    found = compare_contracts(first, second, scope=scope, active=active)
    binding = [item for item in found if item.blocks]
    refusals = tuple(item for item in binding if item.missing or item.violation or item.path not in declared)
    status = ""
    if refusals:
        broken = any(item.violation for item in refusals)
        status = (Status.INVALID_IDENTITY if broken else Status.NOT_COMPARABLE).value
    return Bound(
        status=status,
        refusals=refusals,
        measured=tuple(item for item in binding if item not in refusals),
        recorded=tuple(item for item in found if not item.blocks),
    )


def declared_by(kind: type[Record], knobs: Collection[str]) -> tuple[str, ...]:
    """Return the fields of the contract `kind` that the knob paths of an experiment declare.

    A knob declares the field of its last word, `logprob.accum_dtype@training` the field `precision.accum_dtype`,
    whichever package brings it.
    """
    words = {path.partition("@")[0].rpartition(".")[2] for path in knobs}
    return tuple(item.path for item in fields_of(kind) if item.parts[-1] in words)
