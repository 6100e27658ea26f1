"""One score request on one rank: right-padded batches, teacher forcing, vocab-parallel log probabilities."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from xcfg.errors import WorkerError
from xcfg.identity.attest import attest_sequence
from xcfg.identity.rollout import Rollout
from xcfg.schema._base import Value
from xcfg.schema.identity import SequenceAttestation
from xcfg.schema.names import Arm, Phase
from xcfg.schema.worker import RankRecord, ScoreReport, ScoreRequest

from xcfg_megatron.build import Engine
from xcfg_megatron.knobs import Layout, applications, compute_dtype
from xcfg_megatron.logprob import VocabParallel
from xcfg_megatron.weights import local_fold

ROWS = 1024
"""Rows of logits per call of the operator, hence widened to float32 at a time."""


class UnsupportedRequestError(WorkerError):
    """The engine cannot do what the request asks."""

    error_kind = "unsupported"


@dataclass
class Sheet:
    """What a score collects over T tokens."""

    values: NDArray[np.float32]
    ids: NDArray[np.int64]
    selected: NDArray[np.int64]
    positions: NDArray[np.int64]
    padded: int = 0
    rows: int = 0
    timeline: list[dict[str, float | int | str]] = field(default_factory=list)


def run_score(
    engine: Engine, knobs: Mapping[str, Value], request: ScoreRequest, rollout: Rollout
) -> tuple[ScoreReport, dict[str, torch.Tensor]]:
    """Return the report and the columns of this rank; every rank computes every token, rank 0 owns them.

    Raises UnsupportedRequestError, WorkerError.
    """
    started = time.perf_counter()
    _check(request, rollout)
    engine.clear()
    total = len(rollout.token_ids)
    unset = np.full((3, total), -1, np.int64)
    sheet = Sheet(np.full(total, np.nan, np.float32), unset[0], unset[1], unset[2])
    rng = torch.get_rng_state()
    size = int(str(knobs.get("batch.size", 8)))
    order = list(range(rollout.sequence_count))
    if request.shuffle_seed is not None:
        order = [int(item) for item in np.random.default_rng(request.shuffle_seed).permutation(order)]
    with torch.no_grad():
        for start in range(0, len(order), size):
            _batch(engine, rollout, order[start : start + size], sheet)
    before, engine.last_fold = engine.last_fold, local_fold(engine)
    quiet = bool(torch.equal(rng, torch.get_rng_state())) and not engine.model.training
    layout = Layout(sheet.rows, rollout.sequence_count, sheet.padded)
    owner = engine.rank == 0
    report = ScoreReport(
        request_id=request.id,
        rank=engine.rank,
        record=RankRecord(
            rank=engine.rank,
            world_size=engine.ranks,
            role="owner" if owner else "replica",
            coordinates=coordinates(engine),
            ranges=((0, total),),
            parallelism="tensor" if engine.ranks > 1 else "none",
            dtype=engine.dtype,
            padding_side="right" if sheet.padded else "none",
            cache_mode="none",
            active_tokens=int(rollout.active.sum()),
        ),
        compute_dtype=compute_dtype(engine),
        applications=applications(engine, layout, knobs),
        attestations=_attestations(rollout, sheet),
        transforms=(),
        fold_before=before,
        fold_after=engine.last_fold,
        state_unchanged=before == engine.last_fold and quiet,
        forwards=engine.forwards,
        counters={"forwards": engine.forwards, "operator.selected_logprob": engine.operator.calls},
        mechanism={
            "scorer": "teacher forcing",
            "batch_size": size,
            "shuffle_seed": request.shuffle_seed,
            "vocabulary": {"real": engine.shape.vocab, "padded": engine.shape.padded},
            "patches": engine.patches,
        },
        seconds=time.perf_counter() - started,
        timeline=tuple(sheet.timeline),
    )
    columns = {
        "selected_logprob": torch.from_numpy(sheet.values),
        "active": torch.from_numpy(rollout.active.copy()),
        "phase": torch.from_numpy(np.where(rollout.active, int(Phase.PREFILL), 0).astype(np.int8)),
        "weight_version": torch.from_numpy(rollout.tensors["weight_version"].astype(np.int32)),
    }
    return report, columns


def coordinates(engine: Engine) -> dict[str, int]:
    """Return where this rank stands."""
    return {"dp": 0, "pp": 0, "tp": engine.rank, "cp": 0, "ep": 0}


def _check(request: ScoreRequest, rollout: Rollout) -> None:
    if request.arm != Arm.TRAINING.value:
        raise UnsupportedRequestError(f"the arm {request.arm!r} was asked of Megatron-core", hint="It scores training.")
    if request.columns:
        raise UnsupportedRequestError(f"Megatron-core has no score column {request.columns[0]!r}")
    sampling = rollout.manifest.sampling
    if sampling.logprobs_mode == "processed_logprobs" and sampling.transform_chain:
        raise UnsupportedRequestError("the rollout's values were processed; the runtime 'megatron' scores raw_logprobs")
    for sequence in range(rollout.sequence_count):
        span = rollout.span(sequence)
        if not bool(rollout.tensors["attention_mask"][span].all()):
            raise UnsupportedRequestError(f"sequence {sequence} hides tokens from attention, the causal mask does not")


def _batch(engine: Engine, rollout: Rollout, group: Sequence[int], sheet: Sheet) -> None:
    began = time.perf_counter()
    spans = [rollout.span(sequence) for sequence in group]
    width = max(span.stop - span.start for span in spans)
    ids = torch.zeros(len(group), width, dtype=torch.int64)
    for row, span in enumerate(spans):
        ids[row, : span.stop - span.start] = torch.from_numpy(rollout.token_ids[span].astype(np.int64))
    positions = torch.arange(width)[None].expand(len(group), width)
    mask = torch.ones(1, 1, width, width, dtype=torch.bool).triu(1)
    seen = len(engine.entered)
    logits = engine.model(ids.to(engine.device), positions.to(engine.device), mask.to(engine.device))
    if len(engine.entered) != seen + 1 or len(engine.rotary) != seen + 1:
        raise WorkerError("the model did not run exactly one forward for a batch")
    entered = engine.entered[-1].cpu().numpy()
    turned, offset = engine.rotary[-1]
    if turned < entered.shape[1]:
        raise WorkerError(f"{turned} rotary positions for {entered.shape[1]} columns")
    for row, span in enumerate(spans):
        length = span.stop - span.start
        sheet.ids[span] = entered[row, :length]
        sheet.positions[span] = np.arange(offset, offset + length)
        sheet.padded += int(length < entered.shape[1])
        _score(engine, rollout, span, logits[row], sheet)
    sheet.rows = max(sheet.rows, entered.shape[0])
    sheet.timeline.append(
        {"name": "prefill", "rows": len(group), "columns": width, "seconds": time.perf_counter() - began}
    )


def _score(engine: Engine, rollout: Rollout, span: slice, logits: torch.Tensor, sheet: Sheet) -> None:
    active = np.flatnonzero(rollout.active[span])
    for start in range(0, len(active), ROWS):
        inside = active[start : start + ROWS]
        flat = span.start + inside
        wanted = torch.from_numpy(rollout.tensors["selected_token_ids"][flat].astype(np.int64)).to(logits.device)
        rows = logits[torch.from_numpy(inside - 1).to(logits.device)]
        if not isinstance(engine.operator.function, VocabParallel):
            rows = _gathered(engine, rows)
        sheet.values[flat] = engine.operator(rows, wanted).float().cpu().numpy()
        sheet.selected[flat] = wanted.cpu().numpy()


def _gathered(engine: Engine, rows: torch.Tensor) -> torch.Tensor:
    """Return [N, real vocabulary] for an operator that knows no shards."""
    if engine.ranks > 1:
        shares = [torch.empty_like(rows.contiguous()) for _ in range(engine.ranks)]
        dist.all_gather(shares, rows.contiguous(), group=engine.group)
        rows = torch.cat(shares, dim=-1)
    return rows[:, : engine.shape.vocab]


def _attestations(rollout: Rollout, sheet: Sheet) -> tuple[SequenceAttestation, ...]:
    """Attest to what the embedding was handed, and to the positions that the rotary embedding was asked for."""
    result = []
    for sequence in range(rollout.sequence_count):
        span = rollout.span(sequence)
        handed = sheet.selected[span][rollout.active[span]]
        result.append(attest_sequence(sequence, sheet.ids[span], sheet.positions[span], handed))
    return tuple(result)
