"""What every reader of a knob has in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from xcfg.plugin.readback import Reading
from xcfg.schema._base import Value
from xcfg.schema.names import Exercised

from xcfg_megatron.engine import Engine


@dataclass(frozen=True)
class Layout:
    """What entered in a score. rows: of the largest batch; padded: rows longer than their sequence.

    columns: of the widest batch, over all ranks; local_columns: of it on this rank. divided: rows of logits that were
    divided by `temperature`, of all `scored` rows.
    """

    rows: int = 0
    sequences: int = 0
    padded: int = 0
    columns: int = 0
    local_columns: int = 0
    scored: int = 0
    divided: int = 0
    temperature: float = 1.0


Reader = Callable[[Engine, Layout, Value], Reading]


def ran(engine: Engine) -> Exercised:
    """YES once the model ran a forward."""
    return Exercised.YES if engine.forwards else Exercised.UNKNOWN
