"""One score request on one rank: right-padded batches, teacher forcing, log probabilities over a shared vocabulary."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from xcfg.binding import read_determinism
from xcfg.binding.determinism import NVTE
from xcfg.errors import WorkerError
from xcfg.identity.attest import attest_sequence
from xcfg.identity.rollout import Rollout
from xcfg.plugin.stated import scored_ids
from xcfg.schema._base import Value
from xcfg.schema.identity import SequenceAttestation
from xcfg.schema.names import Arm, Phase
from xcfg.schema.worker import RankRecord, ScoreReport, ScoreRequest

from xcfg_megatron.engine import Engine
from xcfg_megatron.errors import UnsupportedRequestError
from xcfg_megatron.forward import forward, logprobs, vocabulary_seen, width_of
from xcfg_megatron.head import refuse_request
from xcfg_megatron.knobs import applications, compute_dtype
from xcfg_megatron.patches import ROTARY_ROWS
from xcfg_megatron.readers import Layout
from xcfg_megatron.switches import TEMPERATURE, TRANSFORMER_ENGINE, VOCABULARY
from xcfg_megatron.weights import local_fold

ROWS = 1024
"""Rows of logits per call of the operator, hence widened to float32 at a time."""


@dataclass
class Sheet:
    """What a score collects over T tokens. mine: tokens whose logits this rank computed; the rest stay unset."""

    values: NDArray[np.float32]
    ids: NDArray[np.int64]
    selected: NDArray[np.int64]
    positions: NDArray[np.int64]
    mine: NDArray[np.bool_]
    temperature: float
    policy: str
    padded: int = 0
    rows: int = 0
    columns: int = 0
    local_columns: int = 0
    scored: int = 0
    divided: int = 0
    timeline: list[dict[str, float | int | str]] = field(default_factory=list)

    @staticmethod
    def empty(total: int, temperature: float, policy: str) -> Sheet:
        """Return a sheet on which nothing stands yet."""
        unset = np.full((3, total), -1, np.int64)
        values = np.full(total, np.nan, np.float32)
        return Sheet(values, unset[0], unset[1], unset[2], np.zeros(total, np.bool_), temperature, policy)

    def layout(self, rollout: Rollout) -> Layout:
        """Return what the readers of knobs look at."""
        return Layout(
            rows=self.rows,
            sequences=rollout.sequence_count,
            padded=self.padded,
            columns=self.columns,
            local_columns=self.local_columns,
            scored=self.scored,
            divided=self.divided,
            temperature=self.temperature,
            owned=int(rollout.active[self.mine].sum()),
            policy=self.policy,
        )


def run_score(
    engine: Engine, knobs: Mapping[str, Value], request: ScoreRequest, rollout: Rollout
) -> tuple[ScoreReport, dict[str, torch.Tensor]]:
    """Return the report and the columns of this rank. Raises UnsupportedRequestError, WorkerError.

    Every rank of the tensor dimension computes the same tokens and its first rank owns them; the ranks of the context
    dimension own the tokens whose logits lie in their columns.
    """
    started = time.perf_counter()
    temperature = float(str(knobs.get(TEMPERATURE, 1.0)))
    chain = (f"temperature:{temperature!r}",) if temperature != 1.0 else ()
    refuse_request(engine, chain)
    engine.clear()
    _check(request, rollout, (*chain, *engine.scorer.statements.transforms))
    total = len(rollout.token_ids)
    sheet = Sheet.empty(total, temperature, str(knobs.get(VOCABULARY, engine.options.vocab_padding_policy)))
    rng = torch.get_rng_state()
    size = int(str(knobs.get("batch.size", 8)))
    order = _order(rollout, request.shuffle_seed)
    with torch.no_grad():
        for start in range(0, len(order), size):
            _batch(engine, rollout, order[start : start + size], sheet)
    if engine.ranks.context > 1:
        _exchange(engine, sheet)
    before, engine.last_fold = engine.last_fold, local_fold(engine)
    quiet = bool(torch.equal(rng, torch.get_rng_state())) and not engine.model.training
    report = ScoreReport(
        request_id=request.id,
        rank=engine.ranks.rank,
        record=_record(engine, rollout, sheet),
        compute_dtype=compute_dtype(engine),
        applications=applications(engine, sheet.layout(rollout), knobs),
        attestations=_attestations(rollout, sheet),
        transforms=(*chain, *engine.scorer.statements.transforms),
        fold_before=before,
        fold_after=engine.last_fold,
        state_unchanged=before == engine.last_fold and quiet,
        forwards=engine.forwards,
        counters={
            "forwards": engine.forwards,
            **{f"operator.{name}": operator.calls for name, operator in sorted(engine.operators.items())},
            **dict(sorted(engine.calls.items())),
        },
        mechanism={
            "scorer": "teacher forcing",
            "batch_size": size,
            "shuffle_seed": request.shuffle_seed,
            **engine.scorer.statements.mechanism(),
            "vocabulary": vocabulary_seen(engine),
            **_head(engine),
            "patches": engine.patches,
            "determinism": _determinism(engine),
        },
        seconds=time.perf_counter() - started,
        timeline=tuple(sheet.timeline),
    )
    return report, _columns(rollout, sheet)


def _head(engine: Engine) -> dict[str, Any]:
    """Return the ids that the live head of this rank holds, and the largest norm of its rows beyond the vocabulary."""
    table = engine.model.embedding.word_embeddings
    start, stop = int(table.vocab_start_index), int(table.vocab_end_index)
    weight = table.weight if engine.shape.tied else engine.model.output_layer.weight
    beyond = weight.detach()[max(0, engine.shape.vocab - start) :].double().norm(dim=1)
    largest = float(beyond.max()) if len(beyond) else 0.0
    return {"vocabulary_shard": [start, stop], "head_padding": {"rows": len(beyond), "largest_norm": largest}}


def _determinism(engine: Engine) -> dict[str, Any]:
    """Return the flags of this process; Transformer Engine runs where the layers are its own, not where it is there."""
    found = read_determinism()
    if engine.layer_spec == TRANSFORMER_ENGINE:
        return found
    return {**found, "libraries": [name for name in found["libraries"] if name != NVTE]}


def _order(rollout: Rollout, seed: int | None) -> list[int]:
    order = list(range(rollout.sequence_count))
    return order if seed is None else [int(item) for item in np.random.default_rng(seed).permutation(order)]


def _columns(rollout: Rollout, sheet: Sheet) -> dict[str, torch.Tensor]:
    return {
        "selected_logprob": torch.from_numpy(sheet.values),
        "active": torch.from_numpy(rollout.active.copy()),
        "phase": torch.from_numpy(np.where(rollout.active, int(Phase.PREFILL), 0).astype(np.int8)),
        "weight_version": torch.from_numpy(rollout.tensors["weight_version"].astype(np.int32)),
    }


def _check(request: ScoreRequest, rollout: Rollout, chain: tuple[str, ...]) -> None:
    if request.arm != Arm.TRAINING.value:
        raise UnsupportedRequestError(f"the arm {request.arm!r} was asked of Megatron-core", hint="It scores training.")
    if request.columns:
        raise UnsupportedRequestError(f"Megatron-core has no score column {request.columns[0]!r}")
    sampling = rollout.manifest.sampling
    if sampling.logprobs_mode == "processed_logprobs" and sampling.transform_chain not in ((), chain):
        raise UnsupportedRequestError(
            f"the rollout's values went through {', '.join(sampling.transform_chain)}; the runtime 'megatron' scores "
            "raw_logprobs or a temperature",
            hint=f"Where the chain is a temperature alone, set {TEMPERATURE} to it.",
        )
    for sequence in range(rollout.sequence_count):
        span = rollout.span(sequence)
        if not bool(rollout.tensors["attention_mask"][span].all()):
            raise UnsupportedRequestError(f"sequence {sequence} hides tokens from attention, the causal mask does not")


def _batch(engine: Engine, rollout: Rollout, group: Sequence[int], sheet: Sheet) -> None:
    began = time.perf_counter()
    spans = [rollout.span(sequence) for sequence in group]
    ids = torch.zeros(len(group), max(span.stop - span.start for span in spans), dtype=torch.int64)
    for row, span in enumerate(spans):
        ids[row, : span.stop - span.start] = torch.from_numpy(rollout.token_ids[span].astype(np.int64))
    seen = len(engine.entered)
    columns, logits = forward(engine, ids)
    if len(engine.entered) != seen + 1 or len(engine.rotary) != seen + 1:
        raise WorkerError("the model did not run exactly one forward for a batch")
    entered = engine.entered[-1].cpu().numpy()
    turned, offset = engine.rotary[-1]
    width = width_of(engine, ids.shape[1])
    if turned < width:
        raise WorkerError(f"{turned} rotary positions for {width} columns")
    at = columns.numpy()
    rows = _rotary_rows(engine, turned, columns)
    for row, span in enumerate(spans):
        length = span.stop - span.start
        held = at < length
        sheet.ids[span][at[held]] = entered[row, held]
        sheet.positions[span][at[held]] = offset + rows[held]
        sheet.mine[span][at[at < length - 1] + 1] = True
        sheet.padded += int(length < width)
        _score(engine, rollout, span, logits[row], at, sheet)
    sheet.rows = max(sheet.rows, entered.shape[0])
    if width > sheet.columns:
        sheet.columns, sheet.local_columns = width, entered.shape[1]
    sheet.timeline.append(
        {"name": "prefill", "rows": len(group), "columns": width, "seconds": time.perf_counter() - began}
    )


def _rotary_rows(engine: Engine, turned: int, columns: torch.Tensor) -> NDArray[np.int64]:
    """Return the rows that the rotary embedding took of its `turned` positions for the columns of this rank."""
    if engine.ranks.context == 1:
        return columns.numpy()
    if turned not in ROTARY_ROWS:
        raise WorkerError(f"nothing saw which of {turned} rotary positions this rank took")
    rows = ROTARY_ROWS[turned]
    if not torch.equal(rows, columns):
        raise WorkerError("the rotary embedding took other positions than the columns that entered")
    return rows.numpy()


def _score(
    engine: Engine, rollout: Rollout, span: slice, logits: torch.Tensor, at: NDArray[np.int64], sheet: Sheet
) -> None:
    """Score the active tokens of one sequence whose logits, one column before them, are on this rank."""
    where = {int(column): index for index, column in enumerate(at)}
    active = [int(token) for token in np.flatnonzero(rollout.active[span]) if int(token) - 1 in where]
    for start in range(0, len(active), ROWS):
        inside = active[start : start + ROWS]
        flat = span.start + np.array(inside)
        wanted = torch.from_numpy(rollout.tensors["selected_token_ids"][flat].astype(np.int64)).to(logits.device)
        rows = logits[torch.tensor([where[token - 1] for token in inside], device=logits.device)]
        if sheet.temperature != 1.0:
            rows = rows.float() / sheet.temperature
            sheet.divided += len(inside)
        sheet.values[flat] = logprobs(engine, rows, wanted, sheet.policy).float().cpu().numpy()
        sheet.selected[flat] = scored_ids(engine.scorer.function, wanted).cpu().numpy()
        sheet.scored += len(inside)


def _exchange(engine: Engine, sheet: Sheet) -> None:
    """Put together what the context-parallel ranks were handed; WorkerError where two were handed one column."""
    for name in ("ids", "positions", "selected"):
        mine = torch.from_numpy(getattr(sheet, name))
        there = mine.to(engine.device)
        owners = (there >= 0).to(torch.int64)
        dist.all_reduce(owners, group=engine.ranks.context_group)
        if bool((owners > 1).any()):
            raise WorkerError("two context-parallel ranks were handed the same column")
        dist.all_reduce(there, dist.ReduceOp.MAX, group=engine.ranks.context_group)
        mine.copy_(there)


def _record(engine: Engine, rollout: Rollout, sheet: Sheet) -> RankRecord:
    ranks = engine.ranks
    ranges: tuple[tuple[int, int], ...] = ((0, len(sheet.mine)),)
    if ranks.context > 1:
        edges = np.flatnonzero(np.diff(np.concatenate(([False], sheet.mine, [False])).astype(np.int8)))
        ranges = tuple((int(start), int(stop)) for start, stop in edges.reshape(-1, 2))
    kinds = [name for name, size in (("tensor", ranks.tensor), ("context", ranks.context)) if size > 1]
    return RankRecord(
        rank=ranks.rank,
        world_size=ranks.world,
        role="owner" if ranks.tensor_rank == 0 else "replica",
        coordinates=ranks.coordinates,
        ranges=ranges,
        parallelism="+".join(kinds) or "none",
        dtype=engine.dtype,
        padding_side="right" if sheet.padded else "none",
        cache_mode="none",
        active_tokens=sum(int(rollout.active[start:stop].sum()) for start, stop in ranges),
    )


def _attestations(rollout: Rollout, sheet: Sheet) -> tuple[SequenceAttestation, ...]:
    """Attest to what the embedding was handed, and to the positions that the rotary embedding was asked for."""
    result = []
    for sequence in range(rollout.sequence_count):
        span = rollout.span(sequence)
        handed_over = sheet.selected[span][rollout.active[span]]
        result.append(attest_sequence(sequence, sheet.ids[span], sheet.positions[span], handed_over))
    return tuple(result)
