"""An engine factory that loses one construction keyword on its way; the readback is honest."""

from __future__ import annotations

import os
import random

from xcfg.plugin.protocols import RankContext
from xcfg.schema.codec import digest, evolve
from xcfg.schema.worker import BuildReport, WorkerSpec
from xcfg_torch import adapter as embedded
from xcfg_torch.adapter import TorchAdapter

from faulty_engines import XCFG_PRELOAD as XCFG_PRELOAD

KEYWORDS = {
    "rollout": ("rollout.dtype", "rollout.attention_backend"),
    "training": ("training.compute_dtype", "training.attention_backend"),
}
_build_engine = embedded.build_engine


def dropped(spec: WorkerSpec) -> str:
    """Return the keyword that is lost: drawn anew for every configuration, the same for the same seed."""
    seed = digest([os.environ.get("FAULT_SEED", "0"), spec.side, spec.knobs])
    return random.Random(seed).choice(KEYWORDS[spec.side])


class Adapter(TorchAdapter):
    """Builds without one keyword, so that the engine's own default runs."""

    def build(self, spec: WorkerSpec, context: RankContext) -> BuildReport:
        lost = dropped(spec)
        kept = {path: value for path, value in spec.knobs.items() if path != lost}
        embedded.build_engine = lambda whole, where: _build_engine(evolve(whole, knobs=kept), where)
        report = super().build(spec, context)
        return evolve(report, provenance={**report.provenance, "lost": lost})
