"""Rank 1 reports as rank 0."""

from __future__ import annotations

from typing import Any

from xcfg.schema.codec import evolve
from xcfg_torch.adapter import TorchAdapter

from faulty_engines import XCFG_PRELOAD as XCFG_PRELOAD


class Adapter(TorchAdapter):
    """Two processes, one rank."""

    def build(self, spec: Any, context: Any) -> Any:
        return evolve(super().build(spec, context), rank=0)
