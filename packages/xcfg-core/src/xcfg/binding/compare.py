"""Two contracts of one type, held against each other field by field, by the tier that each field carries.

None always means "not known". An IDENTICAL or SEMANTIC field that either side does not know is a difference, also when
neither knows it: what was not declared is not equal. A RECORDED field may be unknown.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from xcfg.binding.marks import Field, fields_of
from xcfg.errors import NotComparableError, PluginError
from xcfg.schema._base import Record
from xcfg.schema.names import Tier

OPERATOR, END_TO_END = "operator", "end_to_end"
"""Scopes: an operator row or a swap of operators; the verdict over whole engines."""
UNKNOWN = "not known"


@dataclass(frozen=True)
class Stated:
    """A contract, who states it, and where its values come from.

    holder: `training`, `rollout`, `vllm rank 0`. origins: path of a field or of a part of the contract -> where its
    value was read; the longest path counts. origin: of all other fields.
    """

    contract: Record
    holder: str = ""
    origin: str = ""
    origins: Mapping[str, str] = field(default_factory=dict)

    def origin_of(self, path: str) -> str:
        """Return where the value of `path` comes from, as far as the holder says."""
        known = [part for part in self.origins if path == part or path.startswith(f"{part}.")]
        return self.origins[max(known, key=len)] if known else self.origin


class Difference(Record, frozen=True):
    """One field that differs, `precision.head_dtype`, with its tier in this scope and both values as they were stated.

    missing: a required field that a side does not know. violation: the sides do not work on one problem.
    """

    path: str
    tier: Tier
    first: Any
    second: Any
    missing: bool = False
    violation: bool = False
    first_holder: str = "the first side"
    second_holder: str = "the second side"
    first_origin: str = ""
    second_origin: str = ""

    @property
    def blocks(self) -> bool:
        """Whether this difference binds at all."""
        return self.tier is not Tier.RECORDED

    def explain(self) -> str:
        """Return both values, where each came from, and what to do."""
        first = _said(self.first_holder, self.first, self.first_origin)
        second = _said(self.second_holder, self.second, self.second_origin)
        return f"{self.path} ({self.tier.value}): {first}, {second}; {self._cure()}"

    def _cure(self) -> str:
        if not self.blocks:
            return "it is recorded and binds nothing"
        if self.missing:
            sides = ((self.first, self.first_holder), (self.second, self.second_holder))
            absent = [holder for value, holder in sides if value is None]
            who = " and ".join(absent) or "the side whose value does not hold"
            return f"what is not known is not equal: let {who} report it"
        if self.violation:
            return "the sides do not score one problem, which no declaration turns into drift: make them equal"
        return "make them equal, or declare the difference, so that it is measured"


def compare_contracts(
    first: Record | Stated, second: Record | Stated, *, scope: str = OPERATOR, active: Collection[str] = ()
) -> tuple[Difference, ...]:
    """Return every difference between two contracts of one type, in the order of their fields.

    active: the conditions that hold (marks.Where). Raises NotComparableError for contracts of two types, PluginError
    for an unknown scope and for a field without a tier.
    """
    if scope not in (OPERATOR, END_TO_END):
        raise PluginError(f"unknown scope {scope!r}", hint=f"Known: {OPERATOR}, {END_TO_END}.")
    ours, theirs = (item if isinstance(item, Stated) else Stated(item) for item in (first, second))
    if type(ours.contract) is not type(theirs.contract):
        raise NotComparableError(
            f"contracts of two operators: {type(ours.contract).__name__} and {type(theirs.contract).__name__}",
            hint="Compare the contracts of one semantic operator.",
        )
    found = (_difference(item, ours, theirs, scope, active) for item in fields_of(type(ours.contract)))
    return tuple(item for item in found if item is not None)


def _difference(item: Field, first: Stated, second: Stated, scope: str, active: Collection[str]) -> Difference | None:
    left, right = item.of(first.contract), item.of(second.contract)
    tier = item.end_to_end if scope == END_TO_END else item.tier
    if item.condition and item.condition not in active:
        tier = Tier.RECORDED
    seen, other = _meaning(item, left), _meaning(item, right)
    required = tier is not Tier.RECORDED
    missing = required and (seen is None or other is None)
    if not missing and same(seen, other):
        if item.view is None or same(_spelled(item, left), _spelled(item, right)):
            return None
        tier, required = Tier.RECORDED, False
    return Difference(
        path=item.path,
        tier=tier,
        first=left,
        second=right,
        missing=missing,
        violation=required and item.violation and not missing,
        first_holder=first.holder or "the first side",
        second_holder=second.holder or "the second side",
        first_origin=first.origin_of(item.path),
        second_origin=second.origin_of(item.path),
    )


def _spelled(item: Field, value: Any) -> Any:
    return value if value is None or item.spell is None else item.spell(value)


def _meaning(item: Field, value: Any) -> Any:
    spelled = _spelled(item, value)
    return spelled if spelled is None or item.view is None else item.view(spelled)


def same(left: Any, right: Any) -> bool:
    """Whether two values are equal: True is not 1, 1 is 1.0, a list is the tuple of its items, NaN equals nothing."""
    if isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        return len(left) == len(right) and all(same(a, b) for a, b in zip(left, right, strict=True))
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    plain = not isinstance(left, (Sequence, Mapping)) or isinstance(left, str)
    return plain and isinstance(left, bool) == isinstance(right, bool) and bool(left == right)


def _said(holder: str, value: Any, origin: str) -> str:
    shown = UNKNOWN if value is None else repr(value)
    return f"{holder} has {shown}" + (f" ({origin})" if origin else "")
