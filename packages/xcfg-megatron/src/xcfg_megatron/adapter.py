"""The RuntimeAdapter of `megatron`: one rank of a GPTModel."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from xcfg.errors import LaunchError
from xcfg.identity.rollout import Rollout
from xcfg.plugin.protocols import RankContext
from xcfg.schema.worker import BuildReport, ScoreReport, ScoreRequest, WorkerSpec

from xcfg_megatron.build import build_engine
from xcfg_megatron.engine import Engine
from xcfg_megatron.forward import forward, logprobs
from xcfg_megatron.knobs import REQUEST_KNOBS, applications, compute_dtype
from xcfg_megatron.parallel import leave
from xcfg_megatron.readers import Layout
from xcfg_megatron.score import run_score
from xcfg_megatron.weights import weight_report

XCFG_PRELOAD = ("torch", "megatron.core.models.gpt.gpt_model", "megatron.core.models.gpt.gpt_layer_specs")
"""What `build` imports."""
PROBE_TOKENS = 16
"""A multiple of 8, as 8-bit products take."""


class MegatronAdapter:
    """One rank."""

    def __init__(self) -> None:
        """Hold nothing; `build` makes the engine."""
        self._engine: Engine | None = None
        self._spec: WorkerSpec | None = None

    @property
    def engine(self) -> Engine:
        """The live engine; LaunchError before `build` and after `close`."""
        if self._engine is None:
            raise LaunchError("the engine of the runtime 'megatron' was not built, or is closed")
        return self._engine

    def build(self, spec: WorkerSpec, context: RankContext) -> BuildReport:
        """Build, run a probe of a few tokens, read back; see build.build_engine for errors."""
        started = time.perf_counter()
        self._spec = spec
        self._engine = build_engine(spec, context)
        engine = self._engine
        _probe(engine)
        built = {path: value for path, value in spec.knobs.items() if path not in REQUEST_KNOBS}
        applied = applications(engine, Layout(), built)
        dtype = compute_dtype(engine)
        weights = weight_report(engine)
        engine.last_fold = weights.fold
        return BuildReport(
            rank=context.rank,
            world_size=context.world_size,
            compute_dtype=dtype,
            applications=applied,
            weights=weights,
            provenance=_provenance(engine),
            coordinates=engine.ranks.coordinates,
            seconds=time.perf_counter() - started,
        )

    def score(self, request: ScoreRequest, rollout: Rollout) -> tuple[ScoreReport, dict[str, torch.Tensor]]:
        """Score `rollout`; see score.run_score."""
        built = self._spec.knobs if self._spec else {}
        return run_score(self.engine, {**built, **request.knobs}, request, rollout)

    def close(self) -> None:
        """Drop the model and the process groups, also those of a build that failed."""
        self._engine = None
        if self._spec is None:
            return
        leave()


def _probe(engine: Engine) -> None:
    """Run one short sequence and its log probabilities, so that the build can show what ran."""
    engine.clear()
    wanted = np.arange(PROBE_TOKENS, dtype=np.int64) % engine.shape.vocab
    with torch.no_grad():
        _, logits = forward(engine, torch.from_numpy(wanted)[None])
        rows = logits[0, : min(2, logits.shape[1])]
        logprobs(engine, rows, torch.zeros(len(rows), dtype=torch.int64, device=rows.device), "mask")
    engine.scorer.forget()  # two rows of one id show neither an option of many rows nor a shift


def _provenance(engine: Engine) -> dict[str, Any]:
    import megatron.core

    from xcfg_megatron.watch import COUNTED

    return {
        "engine": "megatron-core",
        "model_class": type(engine.model).__name__,
        "layer_spec": engine.layer_spec,
        "versions": {"megatron_core": str(megatron.core.__version__), "torch": torch.__version__},
        "device": engine.device,
        "threads": torch.get_num_threads(),
        "patches": engine.patches,
        "counted": sorted(COUNTED.values()),
        "vocabulary": {"real": engine.shape.vocab, "padded": engine.shape.padded},
    }
