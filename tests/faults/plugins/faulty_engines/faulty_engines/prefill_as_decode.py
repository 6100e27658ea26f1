"""Answers a decode request with a full prefill and tags the values as if it had decoded them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from xcfg.identity.rollout import Rollout
from xcfg.schema.codec import evolve
from xcfg.schema.names import Arm, Phase
from xcfg.schema.worker import ScoreReport, ScoreRequest
from xcfg_torch.adapter import TorchAdapter

from faulty_engines import XCFG_PRELOAD as XCFG_PRELOAD


class Adapter(TorchAdapter):
    """Never runs a decode step."""

    def score(self, request: ScoreRequest, rollout: Rollout) -> tuple[ScoreReport, dict[str, Any]]:
        if request.arm != Arm.ROLLOUT_DECODE.value:
            return super().score(request, rollout)
        report, columns = super().score(evolve(request, arm=Arm.ROLLOUT_PREFILL.value), rollout)
        phase = np.where(rollout.active, Phase.DECODE.value, Phase.NONE.value).astype(np.int8)
        for sequence in range(rollout.sequence_count):
            span = rollout.span(sequence)
            phase[span.start + int(np.argmax(rollout.active[span]))] = Phase.FIRST_TOKEN.value
        columns["phase"] = torch.from_numpy(phase)
        columns["step_batch"] = torch.from_numpy(rollout.active.astype(np.int32) * int(request.knobs["batch.size"]))
        return report, columns
