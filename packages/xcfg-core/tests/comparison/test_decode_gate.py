"""A decode replay shows itself by its tags and its counted steps, never by its numbers."""

from __future__ import annotations

import numpy as np
import pytest
from xcfg.comparison import decode_errors
from xcfg.schema.names import Phase
from xcfg.schema.worker import RankRecord, ScoreReport

LENGTHS = [6, 4, 3]  # with one prompt token each: 5 + 3 + 2 active, of them 4 + 2 + 1 decoded


def record(rank, role):
    return RankRecord(
        rank=rank,
        world_size=2,
        role=role,
        coordinates={},
        ranges=(),
        parallelism="none",
        dtype="float32",
        padding_side="none",
        cache_mode="",
        active_tokens=0,
    )


def reports(*singles, roles=("owner", "owner")):
    return [
        ScoreReport(request_id="a", rank=rank, record=record(rank, roles[rank]), single_token_forwards=count)
        for rank, count in enumerate(singles)
    ]


@pytest.fixture
def replay(rollout_of):
    """A rollout with the columns of an honest replay of all three sequences in one batch: steps of 3, 2, 1, 1 rows."""
    rollout = rollout_of(LENGTHS)
    phase = np.where(rollout.active, Phase.DECODE.value, Phase.NONE.value).astype(np.int8)
    phase[[1, 7, 11]] = Phase.FIRST_TOKEN.value
    step_batch = np.zeros(len(phase), dtype=np.int32)
    step_batch[[1, 7, 11]] = 3
    step_batch[[2, 8, 12]] = 3
    step_batch[[3, 9]] = 2
    step_batch[[4, 5]] = 1
    return rollout, {"phase": phase, "step_batch": step_batch, "owner_rank": np.zeros(len(phase), dtype=np.int16)}


def test_an_honest_replay_has_exactly_the_steps_it_needs(replay):
    rollout, columns = replay
    assert decode_errors(rollout, columns, reports(4)) == []
    assert decode_errors(rollout, columns, reports(9)) == []
    assert decode_errors(rollout, columns, reports(3)) == [
        "rank 0 counted 3 single-token forwards, and its 7 decoded tokens need at least 4"
    ]


def test_steps_are_counted_from_the_batch_of_each_step(replay):
    """Alone, each of the seven decoded tokens has a step of its own; 3/2 of a step is two steps."""
    rollout, columns = replay
    alone = {**columns, "step_batch": np.ones_like(columns["step_batch"])}
    assert decode_errors(rollout, alone, reports(7)) == []
    assert "need at least 7" in decode_errors(rollout, alone, reports(6))[0]
    pairs = {**columns, "step_batch": np.full_like(columns["step_batch"], 2)}
    assert "need at least 4" in decode_errors(rollout, pairs, reports(3))[0]
    untold = {name: column for name, column in columns.items() if name != "step_batch"}
    assert "need at least 4" in decode_errors(rollout, untold, reports(0))[0], "the longest sequence needs four"


def test_every_owner_answers_for_its_own_tokens(replay):
    rollout, columns = replay
    owner = np.zeros(len(rollout.active), dtype=np.int16)
    owner[6:] = 1
    columns = {**columns, "owner_rank": owner, "step_batch": np.where(owner == 0, 1, columns["step_batch"])}
    assert decode_errors(rollout, columns, reports(4, 2)) == []
    assert decode_errors(rollout, columns, reports(4, 0))[0].startswith("rank 1 counted 0 ")
    assert decode_errors(rollout, columns, reports(4, 0, roles=("owner", "replica"))) == []


def test_tags_that_no_replay_gives(replay):
    rollout, columns = replay
    for phase, said in ((Phase.PREFILL, "neither first_token"), (Phase.NONE, "neither first_token")):
        wrong = {**columns, "phase": np.where(columns["phase"] == Phase.DECODE.value, phase.value, columns["phase"])}
        errors = decode_errors(rollout, wrong, reports(9))
        assert errors[0].startswith("7 active tokens are tagged") and said in errors[0]
        assert errors[1] == "no active token is tagged decode"
    every_first = {**columns, "phase": np.full_like(columns["phase"], Phase.FIRST_TOKEN.value)}
    assert decode_errors(rollout, every_first, reports(9))[0].startswith("7 tokens are tagged first_token and follow")
    assert decode_errors(rollout, {}, reports(9))[0].startswith("it has no column 'phase'")


def test_a_first_token_may_open_every_turn_and_recomputed_is_a_tag(replay):
    rollout, columns = replay
    rollout.tensors["active_mask"] = rollout.active.copy()
    rollout.tensors["active_mask"][3] = False  # an observation between two turns of sequence 0
    phase = columns["phase"].copy()
    phase[3], phase[4], phase[5] = Phase.NONE.value, Phase.FIRST_TOKEN.value, Phase.RECOMPUTED.value
    assert decode_errors(rollout, {**columns, "phase": phase}, reports(4)) == []


@pytest.mark.parametrize("name", ["step_batch", "owner_rank"])
@pytest.mark.parametrize("spoil", [lambda column: column[:-1], lambda column: np.full(len(column), np.nan)])
def test_a_column_that_counts_no_steps_is_an_error(replay, name, spoil):
    """Failing means that stored columns of another form end a verification in a traceback, or loosen its bound."""
    rollout, columns = replay
    (error,) = decode_errors(rollout, {**columns, name: spoil(columns[name])}, reports(4))
    assert error.startswith(f"its column {name!r} is no integer per token")


def test_without_two_tokens_in_a_row_nothing_is_decoded(rollout_of):
    rollout = rollout_of([2, 2])
    phase = np.asarray([0, 1, 0, 1], dtype=np.int8)
    assert decode_errors(rollout, {"phase": phase}, reports(0)) == []
    rollout.tensors["active_mask"] = np.zeros(4, dtype=bool)
    assert decode_errors(rollout, {"phase": np.zeros(4, dtype=np.int8)}, reports(0)) == []
