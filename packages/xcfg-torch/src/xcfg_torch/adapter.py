"""The RuntimeAdapter of `torch`: build, score, generate, close; everything else lies beside it by job."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from xcfg.errors import LaunchError
from xcfg.identity.rollout import Rollout
from xcfg.plugin.protocols import RankContext
from xcfg.schema._base import Value
from xcfg.schema.worker import BuildReport, ScoreReport, ScoreRequest, WorkerSpec

from xcfg_torch.build import build_engine
from xcfg_torch.decode import Intervention
from xcfg_torch.engine import Engine
from xcfg_torch.generate import parse_sampling, prompt_ids, run_generate
from xcfg_torch.knobs import construction_applications
from xcfg_torch.layout import UnsupportedRequestError, layout_of
from xcfg_torch.provenance import provenance
from xcfg_torch.score import coordinates, run_score
from xcfg_torch.weights import weight_report

XCFG_PRELOAD = ("torch", "transformers.modeling_utils", "transformers.models.auto.modeling_auto")
"""What a worker's build imports: a forked worker finds it in memory (2.5 s of CPU less for SmolLM2-135M)."""


class TorchAdapter:
    """One rank of the runtime `torch`.

    intervene: None, or a control that is handed the live KV cache before each decode step.
    """

    def __init__(self) -> None:
        """Hold nothing; `build` makes the engine."""
        self._engine: Engine | None = None
        self._spec: WorkerSpec | None = None
        self.intervene: Intervention | None = None

    @property
    def engine(self) -> Engine:
        """The live engine; LaunchError before `build` and after `close`."""
        if self._engine is None:
            raise LaunchError("the engine of the runtime 'torch' was not built, or is closed")
        return self._engine

    def build(self, spec: WorkerSpec, context: RankContext) -> BuildReport:
        """Build the engine and say what it is; see build.build_engine for errors."""
        started = time.perf_counter()
        self._spec = spec
        self._engine, aliases = build_engine(spec, context)
        engine = self._engine
        engine.sharding.settle()
        # Read what the probe did before the digests gather every parameter once more.
        applications = construction_applications(engine, spec.knobs, scored=False)
        compute_dtype = engine.observer.compute_dtype()
        weights = weight_report(engine.model, engine.dtype, engine.sharding, aliases)
        engine.last_fold = weights.fold
        return BuildReport(
            rank=context.rank,
            world_size=context.world_size,
            compute_dtype=compute_dtype,
            applications=applications,
            weights=weights,
            provenance=provenance(engine),
            coordinates=coordinates(engine),
            seconds=time.perf_counter() - started,
        )

    def score(self, request: ScoreRequest, rollout: Rollout) -> tuple[ScoreReport, dict[str, torch.Tensor]]:
        """Score `rollout` in one arm; see score.run_score."""
        return run_score(self.engine, self._knobs(request), request, rollout, self.intervene)

    def generate(self, request: ScoreRequest, prompts: list[Any]) -> list[dict[str, Any]]:
        """Sample a continuation of every prompt, in batches of the request's layout."""
        engine, knobs = self.engine, self._knobs(request)
        if engine.injected_head is not None:
            raise UnsupportedRequestError(
                f"{engine.scorer.binding.backend_id!r} forms no logits that a token could be sampled from",
                hint="Sample with the model's own head.",
            )
        layout = layout_of(engine.side, knobs)
        folder = Path(self._spec.checkpoint if self._spec else "")
        seed = self._spec.seed if self._spec else 0
        engine.observer.clear()
        return run_generate(
            engine,
            prompt_ids(prompts, folder),
            parse_sampling(request.generate),
            batch_size=layout.batch_size,
            padding_side=layout.padding_side,
            seed=seed,
        )

    def close(self) -> None:
        """Drop the model, its hooks and the process group."""
        engine, self._engine = self._engine, None
        if engine is None:
            return
        engine.observer.detach()
        if engine.head is not None:
            engine.head.remove()
        engine.sharding.close()
        if engine.device.startswith("cuda"):
            torch.cuda.empty_cache()

    def _knobs(self, request: ScoreRequest) -> dict[str, Value]:
        built = self._spec.knobs if self._spec else {}
        return {**built, **request.knobs}
