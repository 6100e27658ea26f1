"""Compare two operator contracts field by field, from the tier that each field carries.

A contract is a Struct whose fields are annotated, `Annotated[int | None, Tier.IDENTICAL]`, or are nested contracts
without a tier of their own. None always means "not known". An IDENTICAL or SEMANTIC field that either side does
not know is a difference, also when neither knows it: what was not declared is not equal. A RECORDED field may
be unknown. Knows no operator.
"""

from __future__ import annotations

import typing
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from xcfg.errors import NotComparableError, PluginError
from xcfg.schema._base import Record
from xcfg.schema.names import Tier

OPERATOR, END_TO_END = "operator", "end_to_end"
"""Scopes. Reduction order and downcasts bind a row that compares operators; end to end they are what is measured."""


@dataclass(frozen=True)
class EndToEnd:
    """In an annotation: the tier of the field for the end-to-end verdict, where it is not that of a row."""

    tier: Tier


@dataclass(frozen=True)
class Spelling:
    """In an annotation: how values are brought to one spelling before they are compared.

    Text is stripped, lowered and cut behind each prefix; then `aliases` maps what is left.
    """

    aliases: Mapping[str, Any]
    prefixes: tuple[str, ...] = ()

    def __call__(self, value: Any) -> Any:
        """Return the canonical spelling of `value`; what is not text stays as it is."""
        if not isinstance(value, str):
            return value
        text = value.strip().lower()
        for prefix in self.prefixes:
            text = text.removeprefix(prefix)
        return self.aliases.get(text, text)


class ContractDifference(Record, frozen=True):
    """One field that differs, `precision.head_dtype`, with its tier, and both values as they were declared.

    missing: a required field that at least one side does not know.
    """

    path: str
    tier: Tier
    first: Any
    second: Any
    missing: bool = False


def compare_contracts(first: Record, second: Record, *, scope: str = OPERATOR) -> tuple[ContractDifference, ...]:
    """Return every difference between two contracts of one type, in the order of their fields.

    Raises NotComparableError for contracts of two types, PluginError for a field without a tier: an engine that
    skipped it would call two contracts equal that it did not read.
    """
    if scope not in (OPERATOR, END_TO_END):
        raise PluginError(f"unknown scope {scope!r}", hint=f"Known: {OPERATOR}, {END_TO_END}.")
    if type(first) is not type(second):
        raise NotComparableError(
            f"contracts of two operators: {type(first).__name__} and {type(second).__name__}",
            hint="Compare the contracts of one semantic operator.",
        )
    return tuple(_walk(type(first), first, second, "", scope))


def blocking(
    differences: Collection[ContractDifference], *, declared: Collection[str] = ()
) -> tuple[ContractDifference, ...]:
    """Return the differences that forbid a comparison: IDENTICAL or SEMANTIC, and not declared by the experiment.

    declared: paths of fields that the experiment varies on purpose. A missing value blocks even there, since
    what is not known cannot be the declared difference.
    """
    return tuple(
        item for item in differences if item.tier is not Tier.RECORDED and (item.missing or item.path not in declared)
    )


def _walk(kind: type[Record], first: Record | None, second: Record | None, prefix: str, scope: str) -> list[Any]:
    found: list[ContractDifference] = []
    for name, annotation in typing.get_type_hints(kind, include_extras=True).items():
        if name.startswith("__"):
            continue
        path = f"{prefix}{name}"
        left, right = getattr(first, name, None), getattr(second, name, None)
        nested = _nested(annotation)
        if nested is not None:
            found += _walk(nested, left, right, f"{path}.", scope)
            continue
        tier, spell = _metadata(annotation, path, kind, scope)
        missing = tier is not Tier.RECORDED and (left is None or right is None)
        if missing or not _equal(spell(left), spell(right)):
            found.append(ContractDifference(path=path, tier=tier, first=left, second=right, missing=missing))
    return found


def _equal(left: Any, right: Any) -> bool:
    """Equality that tells True from 1; an int equals the float of the same value."""
    return isinstance(left, bool) == isinstance(right, bool) and bool(left == right)


def _nested(annotation: Any) -> type[Record] | None:
    members = typing.get_args(annotation) or (annotation,)
    found = [item for item in members if isinstance(item, type) and issubclass(item, Record)]
    return found[0] if found else None


def _metadata(annotation: Any, path: str, kind: type, scope: str) -> tuple[Tier, Any]:
    marks = getattr(annotation, "__metadata__", ())
    tiers = [mark for mark in marks if isinstance(mark, Tier)]
    if len(tiers) != 1:
        raise PluginError(
            f"the contract field {path!r} of {kind.__name__} carries {len(tiers)} tiers, not one",
            hint="Annotate it: Annotated[TYPE, Tier.SEMANTIC].",
        )
    tier = tiers[0]
    if scope == END_TO_END:
        tier = next((mark.tier for mark in marks if isinstance(mark, EndToEnd)), tier)
    spell = next((mark for mark in marks if isinstance(mark, Spelling)), lambda value: value)
    return tier, spell
