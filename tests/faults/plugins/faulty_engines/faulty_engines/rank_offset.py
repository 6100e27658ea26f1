"""Rank 1 adds 1e-3 to every log probability that it scores."""

from __future__ import annotations

from typing import Any

from xcfg_torch.adapter import TorchAdapter

from faulty_engines import XCFG_PRELOAD as XCFG_PRELOAD

OFFSET = 1e-3


class Adapter(TorchAdapter):
    """One rank is off."""

    def score(self, request: Any, rollout: Any) -> Any:
        report, columns = super().score(request, rollout)
        if self.engine.rank == 1 and columns:
            columns["selected_logprob"] = columns["selected_logprob"] + OFFSET
        return report, columns
