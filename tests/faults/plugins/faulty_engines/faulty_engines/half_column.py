"""Returns its log probabilities in float16, which the store does not hold."""

from __future__ import annotations

from typing import Any

import torch
from xcfg_torch.adapter import TorchAdapter

from faulty_engines import XCFG_PRELOAD as XCFG_PRELOAD


class Adapter(TorchAdapter):
    """Rounds what it reports."""

    def score(self, request: Any, rollout: Any) -> Any:
        report, columns = super().score(request, rollout)
        return report, {**columns, "selected_logprob": columns["selected_logprob"].to(torch.float16)}
