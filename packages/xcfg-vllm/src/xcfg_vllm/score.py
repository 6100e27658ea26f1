"""One score request: run the arm, read back what ran on every rank, attest to what entered."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from xcfg.errors import WorkerError
from xcfg.identity.rollout import Rollout
from xcfg.plugin.readback import SELECTED
from xcfg.plugin.stated import Statements
from xcfg.schema._base import Value
from xcfg.schema.names import Arm
from xcfg.schema.operators import OperatorBinding
from xcfg.schema.worker import RankRecord, ScoreReport, ScoreRequest

from xcfg_vllm.build import RAW, Engine
from xcfg_vllm.capabilities import NATIVE
from xcfg_vllm.consumed import Consumed
from xcfg_vllm.force import SAYS
from xcfg_vllm.knobs import Window, applications
from xcfg_vllm.requests import GREEDY, Answer, decode, groups, own_transforms, prefill, transforms

COLD, WARM = "cold", "warm"
Score = tuple[ScoreReport, dict[str, torch.Tensor]]


class UnsupportedRequestError(WorkerError):
    """The engine cannot do what the request asks."""

    error_kind = "unsupported"


@dataclass
class Taken:
    """What one rank took down over all groups of a score, added up.

    linear_inputs, head_inputs: dtype -> calls. head_rows: rows of the head's input -> calls. calls: of injected
    operators. statements: of the injected selected_logprob. temperatures: of the live batches.
    """

    consumed: Consumed
    linear_inputs: Counter[str] = field(default_factory=Counter)
    head_inputs: Counter[str] = field(default_factory=Counter)
    head_rows: Counter[str] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)
    statements: Statements = field(default_factory=Statements)
    temperatures: set[float] = field(default_factory=set)

    def add(self, rollout: Rollout, answers: Sequence[Answer], entered: Mapping[str, Any], *, decode: bool) -> None:
        """Add what `xcfg_taken` returned after one group of requests."""
        self.consumed.take(rollout, answers, entered["forwards"], decode=decode)
        self.linear_inputs.update(entered["linear_inputs"])
        self.head_inputs.update(entered["head_inputs"])
        self.head_rows.update(entered["head_rows"])
        self.calls.update({name: int(item["calls"]) for name, item in entered["operators"].items()})
        if SELECTED in entered["operators"]:
            statements = Statements.of(entered["operators"][SELECTED]["stated"])
            self.statements.add(statements)
            self.consumed.moved |= {answer.sequence for answer in answers if statements.moved}
        self.temperatures.update(entered["temperatures"])

    @property
    def seen(self) -> dict[str, Any]:
        """What the readers of knobs look at beside the facts of the rank."""
        return {
            "linear_inputs": dict(self.linear_inputs),
            "head_inputs": dict(self.head_inputs),
            "temperatures": sorted(self.temperatures),
        }

    @property
    def compute_dtype(self) -> str:
        """The one dtype that entered the linear layers, or the head of a compiled model; empty where several did."""
        found = list(self.linear_inputs or self.head_inputs)
        return found[0] if len(found) == 1 else ""


def run_score(
    engine: Engine,
    knobs: Mapping[str, Value],
    bindings: Mapping[str, OperatorBinding],
    folds: list[str],
    request: ScoreRequest,
    rollout: Rollout,
    built: Mapping[str, Any],
) -> list[Score]:
    """Return report and columns of every rank; rank 0 answers for the tokens, the others took part in every forward.

    folds: of the weights, by rank, when they were last looked at; replaced by those after this score. built:
    what the adapter saw while the engine was built.
    Raises UnsupportedRequestError, WorkerError.
    """
    started = time.perf_counter()
    forced = request.arm == Arm.ROLLOUT_DECODE.value
    _check(request, rollout, engine, bindings)
    before = list(folds)
    size = int(str(knobs.get("batch.size", 8)))
    temperature = float(str(knobs.get("rollout.temperature", GREEDY)))
    raw = engine.arguments.get("logprobs_mode", RAW) == RAW
    chain = transforms(temperature) if forced and not raw else ()
    submitted = list(groups(_order(rollout, request.shuffle_seed), size))
    engine.forget_prefixes()  # a score begins with an empty cache, so what it finds there it has filled itself
    run = partial(_run_groups, engine, rollout, submitted, temperature, forced=forced)
    ranks = [Taken(Consumed(len(rollout.token_ids))) for _ in range(engine.world_size)]
    answers, timeline = run(ranks)
    if request.cache == WARM:  # the same requests again: now the cache has seen them all
        filled, before_that = ranks, timeline
        ranks = [Taken(Consumed(len(rollout.token_ids), filled=item.consumed)) for item in filled]
        answers, timeline = run(ranks)
        timeline = (*({**item, "name": "fill the cache"} for item in before_that), *timeline)
    after = [str(fold) for fold in engine.every_rank("xcfg_fold")]
    folds[:] = after
    facts = engine.every_rank("xcfg_facts")
    result: list[Score] = []
    for rank, taken in enumerate(ranks):
        seen = {**facts[rank], **engine.scheduler(), **taken.seen, **built}
        counters = _counters(taken, rollout, answers, max(map(len, submitted), default=0))
        window = Window(rank, seen, counters, engine.arguments, bindings, counters["cached_tokens"], taken.statements)
        report = ScoreReport(
            request_id=request.id,
            rank=rank,
            record=_record(engine, rollout, rank, seen),
            compute_dtype=taken.compute_dtype,
            applications=applications(window, knobs),
            attestations=taken.consumed.attestations(rollout, answers, consumed_last=not forced),
            transforms=(*own_transforms(facts[rank]), *chain, *taken.statements.transforms),
            fold_before=before[rank],
            fold_after=after[rank],
            state_unchanged=before[rank] == after[rank],
            forwards=taken.consumed.forwards,
            single_token_forwards=taken.consumed.single_token_forwards,
            counters=counters,
            mechanism={
                "scorer": SAYS[engine.mechanism] if forced else "prompt log probabilities",
                "runner": seen["runner"],
                "async_scheduling": seen["async_scheduling"],
                "head_rows": dict(taken.head_rows),
                "determinism": facts[rank]["determinism"],
                "batch_size": size,
                "shuffle_seed": request.shuffle_seed,
                **taken.statements.mechanism(),
                **_shard(facts[rank]["vocabulary"]),
                **_cache(request, counters["cached_tokens"]),
            },
            seconds=time.perf_counter() - started,
            timeline=timeline,
        )
        result.append((report, _columns(rollout, answers, taken.consumed, forced) if rank == 0 else {}))
    return result


def _run_groups(
    engine: Engine,
    rollout: Rollout,
    submitted: Sequence[Sequence[int]],
    temperature: float,
    ranks: Sequence[Taken],
    *,
    forced: bool,
) -> tuple[list[Answer], tuple[dict[str, Any], ...]]:
    """Run one group of sequences after the other; return all answers and the timeline."""
    answers: list[Answer] = []
    timeline: list[dict[str, Any]] = []
    ask = decode if forced else prefill
    for index, group in enumerate(submitted):
        began = time.perf_counter()
        engine.every_rank("xcfg_begin")
        found = ask(engine, rollout, group, temperature)
        for taken, entered in zip(ranks, engine.every_rank("xcfg_taken"), strict=True):
            taken.add(rollout, found, entered, decode=forced)
        answers += found
        timeline.append(
            {
                "name": "replay" if forced else "prefill",
                "batch": index,
                "requests": len(group),
                "seconds": time.perf_counter() - began,
            }
        )
    return answers, tuple(timeline)


def _shard(vocabulary: dict[str, int]) -> dict[str, list[int]]:
    """Return the ids that the live head of this rank holds, padding included; nothing where there is no such head."""
    start, width = vocabulary.get("start"), vocabulary.get("per_rank")
    return {} if start is None or width is None else {"vocabulary_shard": [start, start + width]}


def _cache(request: ScoreRequest, brought: int) -> dict[str, Any]:
    """Return what is said of a control of the cache."""
    return {"cache": {"control": request.cache, "brought_tokens": brought}} if request.cache else {}


def _counters(taken: Taken, rollout: Rollout, answers: Sequence[Answer], submitted: int) -> dict[str, int]:
    """Return the counters of one rank. submitted: the most requests that were submitted at once."""
    consumed = taken.consumed
    return {
        "forwards": consumed.forwards,
        "single_token_forwards": consumed.single_token_forwards,
        "max_tokens": consumed.max_tokens,
        "max_requests": consumed.max_requests,
        "chunked": consumed.chunked,
        "submitted": submitted,
        "sequences": rollout.sequence_count,
        "cached_tokens": sum(answer.cached for answer in answers),
        **{f"operator.{name}": calls for name, calls in taken.calls.items()},
    }


def _check(request: ScoreRequest, rollout: Rollout, engine: Engine, bindings: Mapping[str, OperatorBinding]) -> None:
    if request.arm not in (Arm.ROLLOUT_PREFILL.value, Arm.ROLLOUT_DECODE.value):
        raise UnsupportedRequestError(f"the arm {request.arm!r} was asked of vLLM", hint="It scores rollout arms.")
    if request.cache not in ("", COLD, WARM):
        raise UnsupportedRequestError(f"there is no control {request.cache!r} of the prefix cache")
    if request.columns:
        raise UnsupportedRequestError(f"vLLM has no score column {request.columns[0]!r}")
    if engine.arguments.get("logprobs_mode", RAW) != RAW and bindings["selected_logprob"].backend_id != NATIVE:
        raise UnsupportedRequestError("vLLM computes processed log probabilities in its own way; none can be injected")
    if not bool(rollout.tensors["attention_mask"].all()):
        raise UnsupportedRequestError("the rollout hides tokens from attention, and vLLM's causal mask does not")


def _order(rollout: Rollout, seed: int | None) -> list[int]:
    order = list(range(rollout.sequence_count))
    return order if seed is None else [int(item) for item in np.random.default_rng(seed).permutation(order)]


def _record(engine: Engine, rollout: Rollout, rank: int, facts: Mapping[str, Any]) -> RankRecord:
    owner = rank == 0
    return RankRecord(
        rank=rank,
        world_size=engine.world_size,
        role="owner" if owner else "none",
        coordinates={"dp": 0, "pp": 0, "tp": rank, "cp": 0, "ep": 0},
        ranges=((0, len(rollout.token_ids)),) if owner else (),
        parallelism="tensor" if engine.world_size > 1 else "none",
        dtype="+".join(facts["parameter_dtypes"]),
        padding_side="none",
        cache_mode="paged key-value cache",
        active_tokens=int(rollout.active.sum()) if owner else 0,
    )


def _columns(rollout: Rollout, answers: list[Answer], consumed: Consumed, forced: bool) -> dict[str, torch.Tensor]:
    total = len(rollout.token_ids)
    values = np.full(total, np.nan, dtype=np.float32)
    for answer in answers:
        start = rollout.span(answer.sequence).start + answer.first
        values[start : start + len(answer.values)] = answer.values
    active = rollout.active
    values[~active] = np.nan
    columns = {
        "selected_logprob": torch.from_numpy(values),
        "active": torch.from_numpy(active.copy()),
        "phase": torch.from_numpy(np.where(active, consumed.phase, 0).astype(np.int8)),
        "weight_version": torch.from_numpy(rollout.tensors["weight_version"].astype(np.int32)),
    }
    if forced:
        batch = np.where(active, consumed.step_batch, 0).astype(np.int32)
        columns["step_batch"] = torch.from_numpy(batch)
    return columns
