"""The two kinds of Struct that flow through xcfg.

Evolution rules: an `Input` is typed by people, so an unknown field is refused. A `Record` was stored by a
program, so a reader ignores fields it does not know; a field is only ever added, with a default; a change of
meaning gets a new schema_version. Golden files of every stored record still decode (tests/schema/golden).
"""

from __future__ import annotations

from typing import TypeAlias, dataclass_transform

import msgspec

Value: TypeAlias = bool | int | float | str | None
"""A knob value as JSON has it."""


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Input(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Something a person types: an unknown field is an error."""


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Record(msgspec.Struct, frozen=True, kw_only=True):
    """Something a program stored: an unknown field is ignored."""
