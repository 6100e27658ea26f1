"""On rank 1 one weight bit flips between the build, whose digests are right, and the score."""

from __future__ import annotations

from typing import Any

from xcfg_torch.adapter import TorchAdapter

from faulty_engines import XCFG_PRELOAD as XCFG_PRELOAD
from faulty_engines.flips import flip_one_bit


class Adapter(TorchAdapter):
    """Its memory rots while it waits."""

    def score(self, request: Any, rollout: Any) -> Any:
        if self.engine.rank == 1:
            flip_one_bit(self.engine.model)
        return super().score(request, rollout)
