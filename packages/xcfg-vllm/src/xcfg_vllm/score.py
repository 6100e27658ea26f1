"""One score request: run the arm, read back what ran on every rank, attest to what entered."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from xcfg.errors import WorkerError
from xcfg.identity.rollout import Rollout
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

Score = tuple[ScoreReport, dict[str, torch.Tensor]]


class UnsupportedRequestError(WorkerError):
    """The engine cannot do what the request asks."""

    error_kind = "unsupported"


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
    order = _order(rollout, request.shuffle_seed)
    size = int(str(knobs.get("batch.size", 8)))
    heat = float(str(knobs.get("rollout.temperature", GREEDY)))
    raw = engine.arguments.get("logprobs_mode", RAW) == RAW
    chain = transforms(heat) if forced and not raw else ()
    total = len(rollout.token_ids)
    ranks = [Consumed(total) for _ in range(engine.world_size)]
    seen_by: list[Counter[str]] = [Counter() for _ in ranks]
    left_by: list[Counter[str]] = [Counter() for _ in ranks]
    head_rows: list[Counter[str]] = [Counter() for _ in ranks]
    called: list[Counter[str]] = [Counter() for _ in ranks]
    heats: list[set[float]] = [set() for _ in ranks]
    answers: list[Answer] = []
    engine.forget_prefixes()
    largest = 0
    timeline = []
    for index, group in enumerate(groups(order, size)):
        began = time.perf_counter()
        engine.every_rank("xcfg_begin")
        found = decode(engine, rollout, group, heat) if forced else prefill(engine, rollout, group, heat)
        taken = engine.every_rank("xcfg_taken")
        for rank, (consumed, entered) in enumerate(zip(ranks, taken, strict=True)):
            consumed.take(rollout, found, entered["forwards"], decode=forced)
            seen_by[rank].update(entered["linear_inputs"])
            left_by[rank].update(entered["head_inputs"])
            heats[rank].update(entered["temperatures"])
            head_rows[rank].update(entered["head_rows"])
            called[rank].update({name: int(item["calls"]) for name, item in entered["operators"].items()})
        largest = max(largest, len(group))
        answers += found
        timeline.append(
            {
                "name": "replay" if forced else "prefill",
                "batch": index,
                "requests": len(group),
                "seconds": time.perf_counter() - began,
            }
        )
    after = [str(fold) for fold in engine.every_rank("xcfg_fold")]
    folds[:] = after
    facts = engine.every_rank("xcfg_facts")
    result: list[Score] = []
    for rank, consumed in enumerate(ranks):
        counters = {
            "forwards": consumed.forwards,
            "single_token_forwards": consumed.single_token_forwards,
            "max_tokens": consumed.max_tokens,
            "max_requests": consumed.max_requests,
            "chunked": consumed.chunked,
            "submitted": largest,
            "sequences": rollout.sequence_count,
            "cached_tokens": sum(answer.cached for answer in answers),
            **{f"operator.{name}": calls for name, calls in called[rank].items()},
        }
        seen = {
            **facts[rank],
            **engine.scheduler(),
            "linear_inputs": dict(seen_by[rank]),
            "head_inputs": dict(left_by[rank]),
        }
        seen |= {**built, "temperatures": sorted(heats[rank])}
        window = Window(rank, seen, counters, engine.arguments, bindings, counters["cached_tokens"])
        computed = list(seen["linear_inputs"] or seen["head_inputs"])
        report = ScoreReport(
            request_id=request.id,
            rank=rank,
            record=_record(engine, rollout, rank, seen),
            compute_dtype=computed[0] if len(computed) == 1 else "",
            applications=applications(window, knobs),
            attestations=consumed.attestations(rollout, answers, consumed_last=not forced),
            transforms=(*own_transforms(facts[rank]), *chain),
            fold_before=before[rank],
            fold_after=after[rank],
            state_unchanged=before[rank] == after[rank],
            forwards=consumed.forwards,
            single_token_forwards=consumed.single_token_forwards,
            counters=counters,
            mechanism={
                "scorer": SAYS[engine.mechanism] if forced else "prompt log probabilities",
                "runner": seen["runner"],
                "async_scheduling": seen["async_scheduling"],
                "head_rows": dict(head_rows[rank]),
                "batch_size": size,
                "shuffle_seed": request.shuffle_seed,
            },
            seconds=time.perf_counter() - started,
            timeline=tuple(timeline),
        )
        result.append((report, _columns(rollout, answers, consumed, forced) if rank == 0 else {}))
    return result


def _check(request: ScoreRequest, rollout: Rollout, engine: Engine, bindings: Mapping[str, OperatorBinding]) -> None:
    if request.arm not in (Arm.ROLLOUT_PREFILL.value, Arm.ROLLOUT_DECODE.value):
        raise UnsupportedRequestError(f"the arm {request.arm!r} was asked of vLLM", hint="It scores rollout arms.")
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
