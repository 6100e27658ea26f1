"""Batch size, padding side and packing: they act, they are read back, and they change no logical result."""

from __future__ import annotations

import numpy as np
import pytest
from xcfg.errors import XcfgError
from xcfg.identity.attest import expected_attestations
from xcfg.schema.names import Applied, Exercised


def test_layouts_agree_in_float64(built, uneven):
    engine = built("reference", "float64", "sdpa")
    alone = engine.score(uneven, knobs={"batch.size": 1}).values
    for knobs in (
        {"batch.size": 3, "batch.padding_side": "left"},
        {"batch.size": 3, "batch.padding_side": "right"},
        {"batch.size": 5, "batch.packing": True},
        {"batch.size": 2, "batch.packing": True},
    ):
        scored = engine.score(uneven, knobs=knobs)
        assert np.abs(scored.values - alone).max() < 1e-12, knobs
        assert scored.report.attestations == expected_attestations(uneven), knobs


def test_packing_is_kept_apart_under_eager_too(built, uneven):
    engine = built("training", "float64", "eager")
    packed = engine.score(uneven, knobs={"batch.size": 5, "batch.packing": True})
    alone = engine.score(uneven, knobs={"batch.size": 1})
    assert np.abs(packed.values - alone.values).max() < 1e-12
    assert packed.report.mechanism["head_rows"] == {str(len(uneven.token_ids)): 1}


def test_layouts_differ_in_bfloat16(built, uneven):
    engine = built("training", "bfloat16")
    left, right, packed = (
        engine.score(uneven, knobs={"batch.size": 5, **extra}).values
        for extra in (
            {"batch.padding_side": "left"},
            {"batch.padding_side": "right"},
            {"batch.packing": True},
        )
    )
    assert (left != right).any() and (left != packed).any()


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_side_is_read_from_the_masks(built, uneven, side):
    scored = built("training").score(uneven, knobs={"batch.size": 5, "batch.padding_side": side})
    found = scored.applications["batch.padding_side"]
    assert (found.status, found.actual, found.exercised) == (Applied.APPLIED, side, Exercised.YES)
    assert f"{side} 4" in found.evidence[0].detail
    assert scored.report.record.padding_side == side


def test_equal_lengths_do_not_exercise_padding(built, rollout_of):
    rollout = rollout_of([4, 4, 4], [6, 6, 6])
    scored = built("training").score(rollout, knobs={"batch.size": 3, "batch.padding_side": "left"})
    assert scored.applications["batch.padding_side"].exercised is Exercised.NO


def test_a_side_that_was_not_asked_for_is_a_fallback(built, uneven, monkeypatch):
    """Were the padding code to ignore the knob, the masks would say so."""
    from xcfg_torch import prefill

    monkeypatch.setattr(
        prefill, "pad", lambda pieces, side, pad_id, original=prefill.pad: original(pieces, "right", pad_id)
    )
    scored = built("training").score(uneven, knobs={"batch.size": 5, "batch.padding_side": "left"})
    found = scored.applications["batch.padding_side"]
    assert (found.status, found.actual) == (Applied.FALLBACK, "right")


@pytest.mark.parametrize(
    ("size", "exercised"), [(1, Exercised.YES), (2, Exercised.YES), (5, Exercised.YES), (9, Exercised.NO)]
)
def test_batch_size_is_counted(built, uneven, size, exercised):
    scored = built("training").score(uneven, knobs={"batch.size": size})
    found = scored.applications["batch.size"]
    assert (found.status, found.exercised) == (Applied.APPLIED, exercised)
    assert scored.report.forwards == -(-5 // size)
    assert f"largest batch {min(size, 5)} sequences" in found.evidence[0].detail


def test_packing_is_read_from_position_resets(built, uneven):
    engine = built("training")
    packed = engine.score(uneven, knobs={"batch.size": 5, "batch.packing": True}).applications["batch.packing"]
    assert (packed.status, packed.actual, packed.exercised) == (Applied.APPLIED, True, Exercised.YES)
    assert "at most 5 sequences in a row" in packed.evidence[0].detail
    plain = engine.score(uneven, knobs={"batch.size": 5, "batch.packing": False}).applications["batch.packing"]
    assert (plain.status, plain.actual) == (Applied.APPLIED, False)


def test_packed_rows_that_leak_are_not_applied(built, uneven, monkeypatch):
    """A model that gives packed rows no mask between sequences must not pass as packing."""
    from transformers import masking_utils

    monkeypatch.setattr(masking_utils, "find_packed_sequence_indices", lambda position_ids: None)
    scored = built("training").score(uneven, knobs={"batch.size": 5, "batch.packing": True})
    assert scored.applications["batch.packing"].status is Applied.UNOBSERVABLE


@pytest.mark.parametrize("side", ["rollout", "training", "reference"])
def test_defaults_are_those_of_the_shared_knobs(side):
    from xcfg.plugin.builtin.knobs import SHARED_KNOBS
    from xcfg_torch.layout import DEFAULT_LAYOUT, Layout, layout_of

    declared = {knob.name: knob.default for knob in SHARED_KNOBS}
    assert {path: declared[path] for path in DEFAULT_LAYOUT} == DEFAULT_LAYOUT
    assert layout_of(side, {}) == layout_of(side, DEFAULT_LAYOUT) == Layout(8, "right", False)


def test_packing_is_refused_where_it_would_be_wrong(built, uneven, rollout_of):
    with pytest.raises(XcfgError, match="one sequence per row") as caught:
        built("rollout").score(uneven, "rollout_decode", {"batch.size": 2, "batch.packing": True})
    assert caught.value.kind == "unsupported"
    shifted = rollout_of([3, 3], [4, 4], tensors={"position_ids": np.concatenate([np.arange(7) + 2] * 2)})
    with pytest.raises(XcfgError, match="do not count from 0"):
        built("training").score(shifted, knobs={"batch.size": 2, "batch.packing": True})


def test_logits_to_keep_scores_the_same_tokens(built, uneven):
    whole = built("training", "float64").score(uneven, knobs={"batch.size": 5})
    kept = built("training", "float64", options={"logits_to_keep": True}).score(uneven, knobs={"batch.size": 5})
    assert np.abs(whole.values - kept.values).max() < 1e-12
    assert kept.report.mechanism["head_rows"] != whole.report.mechanism["head_rows"]


def test_row_chunks_change_nothing(built, uneven):
    whole = built("training", "bfloat16").score(uneven)
    small = built("training", "bfloat16", options={"row_chunk": 3}).score(uneven)
    assert np.array_equal(whole.values, small.values)
    assert small.report.counters["operator.selected_logprob"] > whole.report.counters["operator.selected_logprob"]
