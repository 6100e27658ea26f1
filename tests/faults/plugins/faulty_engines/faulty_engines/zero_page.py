"""Zeroes the first page of the KV cache before decode step 8, in every layer."""

from __future__ import annotations

from typing import Any

from xcfg_torch.adapter import TorchAdapter

from faulty_engines import XCFG_PRELOAD as XCFG_PRELOAD

STEP, PAGE = 8, 2


class Adapter(TorchAdapter):
    """Damages the live cache through the replay's own control."""

    def __init__(self) -> None:
        super().__init__()
        self.intervene = self._zero

    def _zero(self, step: int, cache: Any) -> None:
        if step == STEP:
            for layer in cache.layers:
                layer.keys[:, :, :PAGE] = 0
                layer.values[:, :, :PAGE] = 0
