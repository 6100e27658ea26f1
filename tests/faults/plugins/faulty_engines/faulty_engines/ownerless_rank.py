"""Rank 1 scores its sequences and says that it owns none of them."""

from __future__ import annotations

from typing import Any

from xcfg.schema.codec import evolve
from xcfg_torch.adapter import TorchAdapter

from faulty_engines import XCFG_PRELOAD as XCFG_PRELOAD


class Adapter(TorchAdapter):
    """The ranges of the owners do not cover the rollout."""

    def score(self, request: Any, rollout: Any) -> Any:
        report, columns = super().score(request, rollout)
        if self.engine.rank == 1 and columns:
            report = evolve(report, record=evolve(report.record, role="none", ranges=()))
        return report, columns
