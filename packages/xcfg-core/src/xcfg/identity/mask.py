"""The mask of a frozen rollout, computed again from the segments and versions that lie beside it."""

from __future__ import annotations

import numpy as np

from xcfg.identity.rollout import Rollout
from xcfg.schema.identity import SEGMENT_GENERATED


def mask_faults(rollout: Rollout) -> list[str]:
    """Return where `active_mask` is not what the other tensors of `rollout` give; empty when it is.

    No rollout has an active token of another weight version than its checkpoint's. One that was frozen from a
    dump is active exactly where a token was generated under that version, and its manifest counts the others.
    """
    current = rollout.tensors["weight_version"] == rollout.manifest.checkpoint.weight_version
    active = rollout.active
    faults = []
    if bool((active & ~current).any()):
        faults.append(f"active_mask marks {int((active & ~current).sum())} tokens of another weight version")
    if "dump" not in rollout.manifest.generator:
        return faults
    generated = rollout.tensors["segment"] == SEGMENT_GENERATED
    odd = np.flatnonzero(active != (generated & current))
    if len(odd):
        faults.append(f"active_mask is not what segment and weight_version give at {len(odd)} tokens, first {odd[0]}")
    others = int((generated & ~current).sum())
    if others != rollout.manifest.inactive_other_version:
        faults.append(
            f"{others} generated tokens are of another weight version, "
            f"inactive_other_version says {rollout.manifest.inactive_other_version}"
        )
    return faults
