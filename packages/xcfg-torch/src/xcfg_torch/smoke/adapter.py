"""The RuntimeAdapter of `cpu-smoke`: sequences one by one through the synthetic model."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from xcfg.errors import ExecutionError, LaunchError
from xcfg.identity.attest import attest_sequence, fold
from xcfg.identity.rollout import Rollout
from xcfg.plugin.operators import BoundOperator, backend_meant, instantiate
from xcfg.plugin.protocols import RankContext
from xcfg.schema._base import Value
from xcfg.schema.names import Applied, EvidenceKind, Exercised, Lifecycle, Phase
from xcfg.schema.runtime import Evidence, KnobApplication
from xcfg.schema.worker import BuildReport, RankRecord, ScoreReport, ScoreRequest, WeightReport, WorkerSpec

from xcfg_torch.smoke.model import synthetic_logits, vocabulary

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
NO_PARAMETERS = fold(())
"""The fold over no tensor: there is nothing that a score could change."""
ARMS = {"training": "training", "rollout": "rollout_prefill"}
INHERENT: dict[str, Value] = {
    "rollout.tensor_parallel_size": 1,
    "rollout.context_parallel_size": 1,
    "rollout.enable_prefix_caching": False,
    "rollout.enforce_eager": True,
    "rollout.attention_backend": "model_default",
    "training.attention_backend": "eager",
    "training.sharding": "unsharded",
    "batch.padding_side": "right",
    "batch.packing": False,
}


class UnsupportedArmError(ExecutionError):
    """An arm that the synthetic model cannot score."""

    kind = "unsupported"


class SmokeAdapter:
    """One rank, no engine: the synthetic model has no parameters, so its weight report is empty."""

    def __init__(self) -> None:
        """Hold nothing until `build`."""
        self._spec: WorkerSpec | None = None
        self._operator: BoundOperator | None = None
        self._dtype = "float32"
        self._logits_dtypes: set[str] = set()
        self._largest_batch = 0

    def build(self, spec: WorkerSpec, context: RankContext) -> BuildReport:
        """Instantiate the operator; LaunchError for more than one rank or a missing binding."""
        if context.world_size != 1:
            raise LaunchError(f"cpu-smoke runs as one rank, not {context.world_size}")
        if "selected_logprob" not in spec.operators:
            raise LaunchError("the worker was given no binding of 'selected_logprob'", hint="Bind a smoke operator.")
        self._spec, self._operator = spec, instantiate(spec.operators["selected_logprob"])
        name = "rollout.dtype" if spec.side == "rollout" else "training.compute_dtype"
        self._dtype = str(spec.knobs.get(name, "float32"))
        if self._dtype not in DTYPES:
            raise LaunchError(f"{name} is {self._dtype!r}", hint=f"cpu-smoke has {', '.join(DTYPES)}.")
        probe = synthetic_logits(
            torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64), 2, DTYPES[self._dtype]
        )
        self._logits_dtypes = {str(probe.dtype).removeprefix("torch.")}
        return BuildReport(
            rank=0,
            world_size=1,
            compute_dtype=self._observed(),
            applications=self._applications(),
            weights=WeightReport(method="digest", dtype=self._dtype, fold=NO_PARAMETERS),
            provenance={
                "engine": "synthetic",
                "parameters": "none: the model is a closed form",
                "torch": torch.__version__,
            },
            coordinates={"dp": 0, "pp": 0, "tp": 0, "cp": 0, "ep": 0},
        )

    def score(self, request: ScoreRequest, rollout: Rollout) -> tuple[ScoreReport, dict[str, torch.Tensor]]:
        """Score every sequence; a batch of `batch.size` sequences is one call of the operator."""
        started = time.perf_counter()
        generator_state = torch.get_rng_state()
        spec, operator = self._built()
        if request.arm != ARMS.get(spec.side):
            raise UnsupportedArmError(f"cpu-smoke cannot score the arm {request.arm!r} on the {spec.side} side")
        operator.calls, self._logits_dtypes, self._largest_batch = 0, set(), 0
        knobs = {**spec.knobs, **request.knobs}
        size = knobs.get("batch.size", 1)
        columns, selected = self._columns(rollout, operator, size if isinstance(size, int) else 1, request)
        spans = [rollout.span(index) for index in range(rollout.sequence_count)]
        report = ScoreReport(
            request_id=request.id,
            rank=0,
            record=RankRecord(
                rank=0,
                world_size=1,
                role="owner",
                coordinates={"dp": 0, "pp": 0, "tp": 0, "cp": 0, "ep": 0},
                ranges=tuple((span.start, span.stop) for span in spans),
                parallelism="none",
                dtype=self._dtype,
                padding_side="none",
                cache_mode="none",
                active_tokens=int(rollout.active.sum()),
            ),
            compute_dtype=self._observed(),
            applications=(*self._applications(), *self._batch_application(knobs, rollout.sequence_count)),
            attestations=tuple(
                attest_sequence(
                    index,
                    rollout.token_ids[span],
                    rollout.tensors["position_ids"][span].astype(np.int64),
                    selected[span][rollout.active[span]],
                )
                for index, span in enumerate(spans)
            ),
            fold_before=NO_PARAMETERS,
            fold_after=NO_PARAMETERS,
            transforms=(),
            state_unchanged=bool(torch.equal(generator_state, torch.get_rng_state())),
            forwards=operator.calls,
            counters={"operator.selected_logprob": operator.calls},
            mechanism={"scorer": "closed form", "parameters": "none"},
            seconds=time.perf_counter() - started,
        )
        return report, columns

    def close(self) -> None:
        """Forget the operator."""
        self._operator = None

    def _built(self) -> tuple[WorkerSpec, BoundOperator]:
        if self._spec is None or self._operator is None:
            raise LaunchError("cpu-smoke was not built, or is closed")
        return self._spec, self._operator

    def _columns(
        self, rollout: Rollout, operator: BoundOperator, size: int, request: ScoreRequest
    ) -> tuple[dict[str, torch.Tensor], np.ndarray[Any, np.dtype[np.int64]]]:
        ids = torch.from_numpy(rollout.token_ids.copy())
        positions = torch.from_numpy(rollout.tensors["position_ids"].astype(np.int64))
        targets = torch.from_numpy(rollout.tensors["selected_token_ids"].astype(np.int64))
        width = vocabulary(ids)
        dtype = torch.float64 if request.score_dtype == "float64" else torch.float32
        values = torch.full((len(ids),), torch.nan, dtype=dtype)
        selected = np.full(len(ids), -1, dtype=np.int64)
        order = np.arange(rollout.sequence_count)
        if request.shuffle_seed is not None:
            order = np.random.default_rng(request.shuffle_seed).permutation(order)
        for start in range(0, len(order), size):
            group = order[start : start + size]
            self._largest_batch = max(self._largest_batch, len(group))
            flat = np.concatenate(
                [rollout.span(int(i)).start + np.flatnonzero(rollout.active[rollout.span(int(i))]) for i in group]
            )
            where = torch.from_numpy(flat)
            logits = synthetic_logits(ids[where - 1], positions[where - 1], width, DTYPES[self._dtype])
            self._logits_dtypes.add(str(logits.dtype).removeprefix("torch."))
            values[where] = operator(logits, targets[where]).to(dtype)
            selected[flat] = targets[where].numpy()
        phase = torch.zeros(len(ids), dtype=torch.int8)
        phase[torch.from_numpy(rollout.active.copy())] = int(Phase.PREFILL)
        return {
            "selected_logprob": values,
            "active": torch.from_numpy(rollout.active.copy()),
            "phase": phase,
        }, selected

    def _observed(self) -> str:
        return next((name for name in DTYPES if name in self._logits_dtypes), "")

    def _applications(self) -> tuple[KnobApplication, ...]:
        spec, operator = self._built()
        result = []
        for path, value in sorted(spec.knobs.items()):
            if path == "batch.size":
                continue
            if path in ("rollout.dtype", "training.compute_dtype"):
                evidence = Evidence(kind=EvidenceKind.EXECUTION, source="dtype of the logits", detail=self._observed())
                result.append(self._application(path, value, self._observed(), evidence, Exercised.YES))
            elif path == "logp.backend":
                result.append(self._logp(value, operator))
            elif path in INHERENT:
                evidence = Evidence(
                    kind=EvidenceKind.INHERENT, source="the synthetic model", detail=repr(INHERENT[path])
                )
                result.append(self._application(path, value, INHERENT[path], evidence, Exercised.NO))
        return tuple(result)

    def _logp(self, value: Value, operator: BoundOperator) -> KnobApplication:
        binding = operator.binding
        actual, meant = binding.backend_id, backend_meant(binding, value)
        if operator.calls:
            evidence = Evidence(kind=EvidenceKind.EXECUTION, source="calls of the operator", detail=str(operator.calls))
            return self._application("logp.backend", value, actual, evidence, Exercised.YES, meant=meant)
        evidence = Evidence(kind=EvidenceKind.STATE, source="instantiated operator", detail=binding.backend_id)
        return self._application("logp.backend", value, actual, evidence, Exercised.UNKNOWN, meant=meant)

    def _batch_application(self, knobs: dict[str, Value], sequences: int) -> tuple[KnobApplication, ...]:
        if "batch.size" not in knobs:
            return ()
        asked, ran = knobs["batch.size"], self._largest_batch
        reached = ran == asked
        evidence = Evidence(
            kind=EvidenceKind.EXECUTION,
            source="sequences per operator call",
            detail=f"at most {ran} of {sequences}",
        )
        actual = ran if reached or not isinstance(asked, int) or ran > asked else asked
        shown = Exercised.YES if reached and sequences > 1 else Exercised.NO
        return (self._application("batch.size", asked, actual, evidence, shown, Lifecycle.REQUEST),)

    def _application(
        self,
        path: str,
        requested: Value,
        actual: Value,
        evidence: Evidence,
        exercised: Exercised,
        lifecycle: Lifecycle = Lifecycle.ENGINE_CONSTRUCTION,
        *,
        meant: Value = None,
    ) -> KnobApplication:
        """Return the record of one reading; `meant`: what the requested name stands for, where it is a name."""
        spec, _ = self._built()
        wanted = requested if meant is None else meant
        same = type(actual) is type(wanted) and actual == wanted
        return KnobApplication(
            path=path,
            side=spec.side,
            rank=0,
            requested=requested,
            materialized=actual if meant is None else meant,
            actual=actual,
            status=Applied.APPLIED if same else Applied.FALLBACK,
            lifecycle=lifecycle,
            evidence=(evidence,),
            exercised=exercised,
            reason="" if same else f"asked for {requested!r}, the synthetic model has {actual!r}",
        )
