"""Triton kernels of selected log probability; MissingDependencyError where Triton is not installed.

online      the arithmetic that all kernels share: fold a tile into (top, total, weighted), merge two of them
selected    logits [N, V] read once: log probability, log-sum-exp, entropy; gradient of the logits
linear      head product and log probability over chunks of the vocabulary, forward and backward
linear_tile the same in one kernel that never writes a logit
"""

from __future__ import annotations

import importlib.util

from xcfg.errors import MissingDependencyError

if importlib.util.find_spec("triton") is None:
    raise MissingDependencyError(
        "the kernels of selected log probability need the package 'triton'",
        hint="pip install 'xcfg-ops-logp[triton]'",
    )
