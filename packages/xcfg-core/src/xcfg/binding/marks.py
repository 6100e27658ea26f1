"""What a field of a contract may carry beside its tier, and how a contract is taken apart into fields."""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from xcfg.errors import PluginError
from xcfg.schema._base import Record
from xcfg.schema.names import Tier


@dataclass(frozen=True)
class EndToEnd:
    """The tier of the field for the end-to-end verdict, where it is not that of a row or a swap.

    Reduction order, split plan and downcast bind what compares operators; end to end they are what is measured.
    """

    tier: Tier


@dataclass(frozen=True)
class Violation:
    """A difference of this field is another problem, never drift: INVALID_IDENTITY, also where it is declared."""


@dataclass(frozen=True)
class Where:
    """The tier binds only where the comparison names `condition` as active; elsewhere the field is RECORDED.

    E.g. a setting of a library binds only where that library runs.
    """

    condition: str


@dataclass(frozen=True)
class Global:
    """The field is local to a layout (shards, ranks); what its tier binds is `view` of it, the global problem.

    view: returns what the value says of the global problem, or None where it says nothing that holds (shards that
    overlap, or leave a gap). Values that differ and have one view are a RECORDED difference.
    """

    view: Callable[[Any], Any]


@dataclass(frozen=True)
class Spelling:
    """How values are brought to one spelling before they are compared; a sequence is brought there item by item.

    Text is stripped, lowered and cut behind each prefix; then `aliases` maps what is left. What is not text is
    looked up in `aliases` by its text too, so that True and "1" can be one setting.
    """

    aliases: Mapping[str, Any]
    prefixes: tuple[str, ...] = ()

    def __call__(self, value: Any) -> Any:
        """Return the canonical spelling of `value`."""
        if isinstance(value, (list, tuple)):
            return tuple(self(item) for item in value)
        if not isinstance(value, str):
            return value if value is None else self.aliases.get(str(value).lower(), value)
        text = value.strip().lower()
        for prefix in self.prefixes:
            text = text.removeprefix(prefix)
        return self.aliases.get(text, text)


@dataclass(frozen=True)
class Field:
    """One leaf of a contract. path: dotted, `precision.head_dtype`; parts: the names that lead to it."""

    path: str
    parts: tuple[str, ...]
    tier: Tier
    end_to_end: Tier
    spell: Spelling | None = None
    view: Callable[[Any], Any] | None = None
    condition: str = ""
    violation: bool = False

    def of(self, contract: Any) -> Any:
        """Return the value of this field in `contract`; None where it, or a part that holds it, is not known."""
        for name in self.parts:
            contract = getattr(contract, name, None)
        return contract


@lru_cache(maxsize=256)
def fields_of(kind: type[Record]) -> tuple[Field, ...]:
    """Return the leaves of the contract `kind` in their order.

    Raises PluginError for a leaf without exactly one tier, and for a contract that contains itself: an engine that
    skipped a field would call two contracts equal that it did not read.
    """
    return tuple(_leaves(kind, (), ()))


def _leaves(kind: type[Record], parts: tuple[str, ...], above: tuple[type, ...]) -> list[Field]:
    if kind in above:
        raise PluginError(f"the contract {kind.__name__} contains itself", hint="Use another Struct for the part.")
    hints = typing.get_type_hints(kind, include_extras=True)
    found: list[Field] = []
    for name in kind.__struct_fields__:
        nested = _nested(hints[name])
        here = (*parts, name)
        found += _leaves(nested, here, (*above, kind)) if nested is not None else [_leaf(kind, here, hints[name])]
    return found


def _nested(annotation: Any) -> type[Record] | None:
    """Return the contract that an annotation `Part`, `Part | None` or `Annotated[Part, ...]` names."""
    members = [annotation, *typing.get_args(annotation)]
    found = [item for item in members if isinstance(item, type) and issubclass(item, Record)]
    return found[0] if found else None


def _leaf(kind: type, parts: tuple[str, ...], annotation: Any) -> Field:
    marks = getattr(annotation, "__metadata__", ())
    path = ".".join(parts)
    tiers = [mark for mark in marks if isinstance(mark, Tier)]
    if len(tiers) != 1:
        raise PluginError(
            f"the contract field {path!r} of {kind.__name__} carries {len(tiers)} tiers, not one",
            hint="Annotate it: Annotated[TYPE, Tier.SEMANTIC].",
        )
    unlike, whole, where = _mark(marks, EndToEnd), _mark(marks, Global), _mark(marks, Where)
    return Field(
        path=path,
        parts=parts,
        tier=tiers[0],
        end_to_end=unlike.tier if unlike else tiers[0],
        spell=_mark(marks, Spelling),
        view=whole.view if whole else None,
        condition=where.condition if where else "",
        violation=_mark(marks, Violation) is not None,
    )


def _mark(marks: tuple[Any, ...], kind: type[Any]) -> Any:
    """Return the first mark of a kind, or None."""
    return next((mark for mark in marks if isinstance(mark, kind)), None)
