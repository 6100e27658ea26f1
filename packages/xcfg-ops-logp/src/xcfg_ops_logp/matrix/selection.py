"""L2: whether two phases score the frozen ids. A gate gives no number."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from xcfg.schema.names import Status

from xcfg_ops_logp.matrix.ownership import MET, Held
from xcfg_ops_logp.matrix.replay import Phase


def selection(phases: Sequence[Phase], selected: NDArray[np.generic]) -> Held:
    """Return whether each phase scored every active token once, with the id that was frozen for it."""
    for phase in phases:
        seen = 0
        for call in phase.calls():
            mine = call.tokens >= 0
            ids = selected[call.tokens[mine]].astype(np.int64)
            wrong = np.flatnonzero(call.selected.numpy()[mine] != ids)
            if len(wrong):
                token, scored = int(call.tokens[mine][wrong[0]]), int(call.selected.numpy()[mine][wrong[0]])
                why = f"{phase.name} scored the id {scored} at token {token}, frozen as {int(selected[token])}"
                return Status.INVALID_IDENTITY.value, why
            seen += int(mine.sum())
        if seen != phase.count:
            return Status.INVALID_IDENTITY.value, f"{phase.name} scored {seen} of {phase.count} active tokens"
    return MET
