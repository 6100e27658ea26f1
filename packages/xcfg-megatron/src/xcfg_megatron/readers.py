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

    columns: of the widest batch, over all ranks; local_columns: of it that entered this rank. divided: rows of logits
    that were divided by `temperature`, of all `scored` rows. owned: active tokens whose logits this rank computes;
    policy: what was asked of it for the columns that pad the vocabulary.
    """

    rows: int = 0
    sequences: int = 0
    padded: int = 0
    columns: int = 0
    local_columns: int = 0
    scored: int = 0
    divided: int = 0
    temperature: float = 1.0
    owned: int = 0
    policy: str = ""

    @property
    def idle(self) -> bool:
        """Whether a score left this rank nothing to do: of a split context it held no column before an active token."""
        return self.sequences > 0 and self.owned == 0 and self.scored == 0


Reader = Callable[[Engine, Layout, Value], Reading]


def ran(engine: Engine) -> Exercised:
    """YES once the model ran a forward."""
    return Exercised.YES if engine.forwards else Exercised.UNKNOWN
