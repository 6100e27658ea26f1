"""The RuntimeAdapter of `vllm`: one process that hosts every rank of one engine."""

from __future__ import annotations

import gc
import os
import time
from pathlib import Path
from typing import Any

import torch
from xcfg.errors import LaunchError
from xcfg.identity.rollout import Rollout
from xcfg.plugin.protocols import RankContext
from xcfg.schema.worker import BuildReport, ScoreRequest, WeightReport, WorkerSpec

from xcfg_vllm.build import Engine, build_engine
from xcfg_vllm.capabilities import LAYERS, NATIVE
from xcfg_vllm.force import NATIVE as NATIVE_REPLAY
from xcfg_vllm.force import PROCESSOR, SAMPLER
from xcfg_vllm.generate import run_generate
from xcfg_vllm.inject import registry
from xcfg_vllm.knobs import FAILED_RELOAD, REQUEST_KNOBS, Window, applications
from xcfg_vllm.score import Score, run_score

XCFG_PRELOAD = ("torch", "vllm", "vllm.entrypoints.llm")
"""What `build` imports; half of the time that a small engine takes to start."""
OWN = (NATIVE, *(backend for backend, _ in LAYERS.values()))
"""Backends that are the engine's own: nothing is injected for them."""


class VllmAdapter:
    """One engine. Its reports are lists, one for each tensor-parallel rank."""

    def __init__(self) -> None:
        """Hold nothing; `build` makes the engine."""
        self._engine: Engine | None = None
        self._spec: WorkerSpec | None = None
        self._folds: list[str] = []
        self._cached = 0
        self._reloaded = ""

    @property
    def engine(self) -> Engine:
        """The live engine; LaunchError before `build` and after `close`."""
        if self._engine is None:
            raise LaunchError("the engine of the runtime 'vllm' was not built, or is closed")
        return self._engine

    def build(self, spec: WorkerSpec, context: RankContext) -> BuildReport | list[BuildReport]:
        """Build the engine and read every rank back; one report, or a list where the engine has several ranks.

        Raises what build.build_engine raises.
        """
        started = time.perf_counter()
        injected = {name: item for name, item in spec.operators.items() if item.backend_id not in OWN}
        os.environ[registry.ENVIRONMENT] = registry.environment(injected)
        registry.renew()
        self._spec = spec
        self._engine = build_engine(spec)
        engine = self._engine
        self._cached = engine.probe_cache()
        self._reloaded = _reload(engine, spec)
        engine.every_rank("xcfg_begin", "logits_processors" in engine.arguments)
        seen = engine.every_rank("xcfg_facts")
        engine.mechanism = _mechanism(engine, seen)
        _check_devices(seen, spec)
        facts = [{**item, **self._seen()} for item in seen]
        weights = engine.every_rank("xcfg_weights", spec.checkpoint)
        self._folds = [str(item["fold"]) for item in weights]
        dtype = str(engine.arguments["dtype"])
        built = {path: value for path, value in spec.knobs.items() if path not in REQUEST_KNOBS}
        reports = [
            BuildReport(
                rank=rank,
                world_size=spec.world_size,
                compute_dtype="+".join(facts[rank]["parameter_dtypes"]),
                applications=applications(
                    Window(rank, {**facts[rank], **engine.scheduler()}, {}, engine.arguments, spec.operators), built
                ),
                weights=_weights(weights[rank], dtype),
                provenance=_provenance(engine, facts[rank], weights[rank]),
                coordinates={"dp": 0, "pp": 0, "tp": rank, "cp": 0, "ep": 0},
                seconds=time.perf_counter() - started,
            )
            for rank in range(spec.world_size)
        ]
        return reports if spec.world_size > 1 else reports[0]

    def _seen(self) -> dict[str, Any]:
        """What only the adapter saw while the engine was built."""
        return {"probe_cached": self._cached, "reloaded": self._reloaded}

    def score(self, request: ScoreRequest, rollout: Rollout) -> Score | list[Score]:
        """Score `rollout` in one arm, like `build` one answer or a list; see score.run_score."""
        spec = self._spec
        if spec is None:
            raise LaunchError("the engine of the runtime 'vllm' was not built")
        knobs = {**spec.knobs, **request.knobs}
        scores = run_score(self.engine, knobs, spec.operators, self._folds, request, rollout, self._seen())
        return scores if spec.world_size > 1 else scores[0]

    def generate(self, request: ScoreRequest, prompts: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Sample a continuation of every prompt; see generate.run_generate."""
        spec = self._spec
        if spec is None:
            raise LaunchError("the engine of the runtime 'vllm' was not built")
        size = int(str({**spec.knobs, **request.knobs}.get("batch.size", 8)))
        return run_generate(self.engine, prompts, request.generate, Path(spec.checkpoint), size)

    def close(self) -> None:
        """Shut the engine down, its workers included."""
        engine, self._engine = self._engine, None
        if engine is None:
            return
        engine.llm.llm_engine.engine_core.shutdown()
        engine.llm = None
        gc.collect()
        from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

        cleanup_dist_env_and_memory()


def _mechanism(engine: Engine, facts: list[dict[str, Any]]) -> str:
    """Return how a replay is forced in the engine that was built."""
    if "logits_processors" in engine.arguments:
        return PROCESSOR
    return NATIVE_REPLAY if all(item["native_replay"] for item in facts) else SAMPLER


def _check_devices(facts: list[dict[str, Any]], spec: WorkerSpec) -> None:
    """Raise LaunchError where a rank lies on another kind of device than it was given."""
    for rank, item in enumerate(facts):
        given = spec.devices[rank % len(spec.devices)].partition(":")[0]
        if not str(item["device"]).startswith(given):
            raise LaunchError(f"rank {rank} was given {given} and lies on {item['device']}")


def _reload(engine: Engine, spec: WorkerSpec) -> str:
    """Spoil the weights and have vLLM put the checkpoint's in place again; say by which folds.

    Empty: nothing was asked for. Without spoiling, a reload that does nothing could not be told from one that works;
    a packed layer cannot be spoiled, so that one must have another handler afterwards.
    """
    if spec.knobs.get("weights.path") != "reload":
        return ""
    loaded = engine.every_rank("xcfg_fold", False)
    engine.every_rank("xcfg_hold")
    spoiled = engine.every_rank("xcfg_spoil")
    between = engine.every_rank("xcfg_fold", False)
    engine.reload(spec.checkpoint)
    mended, repacked = engine.every_rank("xcfg_fold", False), engine.every_rank("xcfg_repacked")
    if not all(repacked) or mended != loaded or any(old == new for old, new in zip(loaded, between, strict=True)):
        return FAILED_RELOAD
    return f"{', '.join(loaded)}; {spoiled} parameters negated: {', '.join(between)}; reloaded: {', '.join(mended)}"


def _weights(found: dict[str, Any], dtype: str) -> WeightReport:
    return WeightReport(
        method="digest",
        dtype=dtype,
        tensors=dict(found["tensors"]),
        aliases=dict(found["aliases"]),
        fold=str(found["fold"]),
        local_parameters=int(found["local"]),
        total_parameters=int(found["total"]),
    )


def _provenance(engine: Engine, facts: dict[str, Any], weights: dict[str, Any]) -> dict[str, Any]:
    shown = {name: value for name, value in facts.items() if name not in ("pid",)}
    arguments = {
        name: value
        for name, value in engine.arguments.items()
        if name not in ("model", "logits_processors") and isinstance(value, (bool, int, float, str, dict, type(None)))
    }
    return {
        "engine": "vllm",
        "versions": {"vllm": engine.version, "torch": torch.__version__},
        "device": str(facts["device"]),
        "arguments": arguments,
        "facts": {**shown, "memory": None if engine.memory is None else engine.memory.facts},
        "tensors_that_differ_from_the_checkpoint": list(weights["differing"]),
    }
