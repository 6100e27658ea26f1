"""On rank 1 one weight bit flips after the load, before anything is digested."""

from __future__ import annotations

from typing import Any

from xcfg_torch import adapter as embedded
from xcfg_torch.adapter import TorchAdapter

from faulty_engines import XCFG_PRELOAD as XCFG_PRELOAD
from faulty_engines.flips import flip_one_bit

_build_engine = embedded.build_engine


def _flipped(spec: Any, context: Any) -> Any:
    engine, aliases = _build_engine(spec, context)
    if context.rank == 1:
        engine.sharding.settle()
        flip_one_bit(engine.model)
    return engine, aliases


class Adapter(TorchAdapter):
    """Its build loads one wrong bit."""

    def build(self, spec: Any, context: Any) -> Any:
        embedded.build_engine = _flipped
        return super().build(spec, context)
