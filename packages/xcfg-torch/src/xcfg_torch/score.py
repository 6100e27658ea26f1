"""One score request on one rank: run the arm; report what ran, what entered, and that nothing changed."""

from __future__ import annotations

import time
from typing import Any

import torch
from xcfg.identity.rollout import Rollout
from xcfg.schema._base import Value
from xcfg.schema.names import Arm
from xcfg.schema.worker import RankRecord, ScoreReport, ScoreRequest

from xcfg_torch.attention import KERNEL_KINDS
from xcfg_torch.backward import BACKWARD, probe_of
from xcfg_torch.batching import packing_fault
from xcfg_torch.consumed import Consumed
from xcfg_torch.decode import Intervention
from xcfg_torch.engine import Engine
from xcfg_torch.head import refuse_request
from xcfg_torch.knobs import construction_applications
from xcfg_torch.layout import Layout, UnsupportedRequestError, layout_of
from xcfg_torch.layout_knobs import layout_applications
from xcfg_torch.prefill import run_prefill
from xcfg_torch.replay import run_replay
from xcfg_torch.scoring import ScoreSheet
from xcfg_torch.transforms import own_transforms, value_chain
from xcfg_torch.weights import State, read_state

ARMS = {
    "training": (Arm.TRAINING.value,),
    "rollout": (Arm.ROLLOUT_PREFILL.value, Arm.ROLLOUT_DECODE.value),
    "reference": (Arm.REFERENCE.value,),
}


def run_score(
    engine: Engine,
    knobs: dict[str, Value],
    request: ScoreRequest,
    rollout: Rollout,
    intervene: Intervention | None = None,
) -> tuple[ScoreReport, dict[str, torch.Tensor]]:
    """Return the report and the flat columns of this rank (none when it owns no sequence).

    Raises UnsupportedRequestError, IdentityError, WorkerError.
    """
    started = time.perf_counter()
    decode = request.arm == Arm.ROLLOUT_DECODE.value
    layout = _checked_layout(engine, knobs, request, rollout)
    chain = value_chain(rollout.manifest.sampling)
    refuse_request(engine.head, request, chain)
    head = engine.injected_head
    engine.backward = probe_of(engine.operator, knobs) if head is None and engine.side == "training" else None
    wide = request.score_dtype == "float64" or engine.dtype == "float64"
    sheet = ScoreSheet(
        rollout,
        engine.scorer,
        columns=request.columns,
        dtype="float64" if wide else "float32",
        chain=chain,
        # An operator of the head bounds the rows of logits itself, and its hidden states are few bytes.
        row_chunk=engine.options.row_chunk if head is None else max(1, len(rollout.token_ids)),
        weight=None if head is None else head.weight,
        backward=engine.backward,
    )
    consumed = Consumed(len(rollout.token_ids))
    before = _begin(engine)
    with torch.no_grad():
        if decode:
            sequences, timeline = run_replay(engine, rollout, layout, sheet, consumed, intervene)
        else:
            sequences, timeline = run_prefill(engine, rollout, layout, sheet, consumed)
    engine.sharding.settle()
    after = read_state(engine.model)
    engine.last_fold = after.fold
    changes = before.changes(after)
    applications = construction_applications(engine, knobs, scored=True)
    applications += layout_applications(engine, knobs, layout, consumed, rollout.sequence_count)
    report = ScoreReport(
        request_id=request.id,
        rank=engine.rank,
        record=_record(engine, rollout, sequences, layout, consumed, decode),
        compute_dtype=engine.observer.compute_dtype(),
        applications=applications,
        attestations=consumed.attestations(rollout, sequences, sheet.selected, consumed_last=not decode),
        transforms=(*own_transforms(engine.model), *chain, *engine.scorer.statements.transforms),
        fold_before=before.fold,
        fold_after=after.fold,
        state_unchanged=not changes,
        forwards=engine.observer.forwards,
        single_token_forwards=engine.observer.single_token_forwards,
        counters=_counters(engine, sheet),
        mechanism=_mechanism(engine, request, layout, before, changes, intervene),
        seconds=time.perf_counter() - started,
        timeline=tuple(timeline),
    )
    return report, dict(sheet.columns) if sequences else {}


def _checked_layout(engine: Engine, knobs: dict[str, Value], request: ScoreRequest, rollout: Rollout) -> Layout:
    arms = ARMS.get(engine.side, ())
    if request.arm not in arms:
        raise UnsupportedRequestError(
            f"the arm {request.arm!r} was asked of the {engine.side} side",
            hint=f"It scores: {', '.join(arms)}.",
        )
    layout = layout_of(engine.side, knobs, request.shuffle_seed)
    fault = packing_fault(rollout) if layout.packing else ""
    if fault:
        raise UnsupportedRequestError(f"batch.packing=True: {fault}")
    return layout


def _begin(engine: Engine) -> State:
    engine.observer.clear()
    engine.sharding.clear()
    engine.operator.clear()
    if engine.head is not None:
        engine.head.clear()
    return read_state(engine.model, engine.last_fold)


def coordinates(engine: Engine) -> dict[str, int]:
    """Return where this rank stands: sequences are spread over dp, nothing else is split."""
    return {"dp": engine.rank, "pp": 0, "tp": 0, "cp": 0, "ep": 0}


def _record(
    engine: Engine, rollout: Rollout, sequences: list[int], layout: Layout, consumed: Consumed, decode: bool
) -> RankRecord:
    spans = [rollout.span(sequence) for sequence in sorted(sequences)]
    sides = [side for side, count in consumed.sides.items() if count]
    return RankRecord(
        rank=engine.rank,
        world_size=engine.sharding.world_size,
        role="owner" if sequences else "none",
        coordinates=coordinates(engine),
        ranges=tuple((span.start, span.stop) for span in spans),
        parallelism="fsdp2" if engine.sharding.world_size > 1 else "none",
        dtype=engine.dtype,
        padding_side="packed" if layout.packing else "+".join(sides) or "none",
        cache_mode="dynamic key-value cache" if decode else "none",
        active_tokens=sum(int(rollout.active[span].sum()) for span in spans),
    )


def _counters(engine: Engine, sheet: ScoreSheet) -> dict[str, int]:
    observer = engine.observer
    attention = {f"attention.{kind}": observer.watch.total(kind) for kind in ("modules", "watched", *KERNEL_KINDS)}
    return {
        "forwards": observer.forwards,
        "single_token_forwards": observer.single_token_forwards,
        "operator.selected_logprob": engine.operator.calls,
        **_head_counters(engine),
        "scored_tokens": int((sheet.selected >= 0).sum()),
        "all_gathers": engine.sharding.all_gathers,
        **{name: count for name, count in attention.items() if count},
    }


def _head_counters(engine: Engine) -> dict[str, int]:
    if engine.head is None:
        return {}
    formed = 0 if engine.injected_head is not None else sum(engine.observer.head_rows.values())
    return {"operator.linear_selected_logprob": engine.head.operator.calls, "head.formed_logits": formed}


def _mechanism(
    engine: Engine,
    request: ScoreRequest,
    layout: Layout,
    before: State,
    changes: list[str],
    intervene: Intervention | None,
) -> dict[str, Any]:
    observer = engine.observer
    decode = request.arm == Arm.ROLLOUT_DECODE.value
    return {
        "scorer": "decode loop with forced tokens" if decode else "full prefill",
        "batch_size": layout.batch_size,
        "shuffle_seed": layout.shuffle_seed,
        "sampled_forwards": observer.sampled_forwards,
        "matmul_inputs": dict(observer.linear_inputs),
        "attention_kernels": dict(observer.watch.kernels),
        "attention_masks": dict(observer.watch.masks),
        "head_rows": {str(rows): count for rows, count in sorted(observer.head_rows.items())},
        "casts_kept_in_float64": observer.keep.promoted if observer.float64 else 0,
        "intervention": intervene is not None,
        "state_changes": changes,
        "parameters_with_gradients": before.gradients,
        **engine.scorer.statements.mechanism(),
        **_gradient(engine),
    }


def _gradient(engine: Engine) -> dict[str, Any]:
    """Return what the operator's gradient was, where a knob of the backward was planned and a row was looked at."""
    found = engine.backward.report() if engine.backward is not None else {}
    return {BACKWARD: found} if found else {}
