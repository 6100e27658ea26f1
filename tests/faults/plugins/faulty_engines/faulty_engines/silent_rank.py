"""Rank 1 takes part in the score and leaves without a word."""

from __future__ import annotations

import os
from typing import Any

from xcfg_torch.adapter import TorchAdapter

from faulty_engines import XCFG_PRELOAD as XCFG_PRELOAD


class Adapter(TorchAdapter):
    """One rank reports its build, and nothing after."""

    def score(self, request: Any, rollout: Any) -> Any:
        result = super().score(request, rollout)
        if self.engine.rank == 1:
            os._exit(0)
        return result
