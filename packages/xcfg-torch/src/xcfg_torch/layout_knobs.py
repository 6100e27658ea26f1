"""Request knobs read back from what entered the model: rows, padding cells, position resets."""

from __future__ import annotations

from xcfg.plugin.readback import Reading, application, execution
from xcfg.schema._base import Value
from xcfg.schema.names import Exercised, Lifecycle
from xcfg.schema.runtime import KnobApplication

from xcfg_torch.consumed import Consumed
from xcfg_torch.engine import Engine
from xcfg_torch.layout import Layout


def layout_applications(
    engine: Engine, knobs: dict[str, Value], layout: Layout, consumed: Consumed, sequences: int
) -> tuple[KnobApplication, ...]:
    """Return one record per request knob in `knobs`. sequences: of the whole problem, over all ranks."""
    readings = {
        "batch.size": _batch_size(layout, consumed, sequences),
        "batch.padding_side": _padding_side(layout, consumed),
        "batch.packing": _packing(layout, consumed),
    }
    return tuple(
        application(path, value, readings[path], side=engine.side, rank=engine.rank)
        for path, value in sorted(knobs.items())
        if path in readings
    )


def _batch_size(layout: Layout, consumed: Consumed, sequences: int) -> Reading:
    largest = consumed.max_sequences
    detail = f"largest batch {largest} sequences in {consumed.max_rows} rows, {sequences} sequences in all"
    evidence = (execution("sequences in the forwards that ran", detail),)
    if largest == 0:
        return Reading(layout.batch_size, None, evidence, Lifecycle.REQUEST, reason="no forward ran")
    if largest < layout.batch_size:
        # A cap that was never reached: nothing larger ran, and nothing was left to fill the batch.
        reason = f"no batch of {layout.batch_size} could be filled here"
        return Reading(layout.batch_size, layout.batch_size, evidence, Lifecycle.REQUEST, Exercised.NO, reason)
    shown = Exercised.YES if sequences > 1 else Exercised.NO
    return Reading(layout.batch_size, largest, evidence, Lifecycle.REQUEST, shown)


def _padding_side(layout: Layout, consumed: Consumed) -> Reading:
    left, right = consumed.sides["left"], consumed.sides["right"]
    detail = f"rows padded left {left}, right {right}; batches of unequal lengths {consumed.uneven_batches}"
    evidence = (execution("attention masks that entered the model", detail),)
    if not left and not right:
        reason = "no row was padded, and then both sides are one layout"
        return Reading(layout.padding_side, layout.padding_side, evidence, Lifecycle.REQUEST, Exercised.NO, reason)
    actual = "mixed" if left and right else "left" if left else "right"
    return Reading(layout.padding_side, actual, evidence, Lifecycle.REQUEST, Exercised.YES)


def _packing(layout: Layout, consumed: Consumed) -> Reading:
    most = consumed.max_sequences_per_row
    detail = f"at most {most} sequences in a row by position resets; unmasked packed rows {consumed.leaks}"
    evidence = (execution("positions that entered the model", detail),)
    if consumed.leaks:
        reason = "packed sequences were given no mask between them"
        return Reading(layout.packing, None, evidence, Lifecycle.REQUEST, reason=reason)
    if most <= 1 and layout.packing:
        reason = "every row held one sequence, so there was nothing to pack"
        return Reading(True, True, evidence, Lifecycle.REQUEST, Exercised.NO, reason)
    shown = Exercised.YES if most > 1 or consumed.max_sequences > 1 else Exercised.NO
    return Reading(layout.packing, most > 1, evidence, Lifecycle.REQUEST, shown)
