"""Ranks to one score: no token without exactly one owner, no value of a rank that does not own it."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from xcfg.errors import MissingRankError, WorkerError
from xcfg.runtime.merge import merge_ranks
from xcfg.schema.worker import RankRecord, ScoreReport

ACTIVE = np.array([False, True, True, False, True, True])


def report(rank, role="owner", *ranges, record=True):
    made = RankRecord(
        rank=rank,
        world_size=2,
        role=role,
        coordinates={},
        ranges=ranges,
        parallelism="dp",
        dtype="float32",
        padding_side="right",
        cache_mode="none",
        active_tokens=0,
    )
    return ScoreReport(request_id="r", rank=rank, record=made if record else None)


def values(base, dtype=np.float32, **more):
    return {"selected_logprob": np.arange(6, dtype=dtype) + base, **more}


def test_each_token_has_the_value_of_its_owner():
    merged = merge_ranks(
        [report(0, "owner", (0, 2), (4, 6)), report(1, "owner", (2, 4))], {0: values(0), 1: values(100)}, ACTIVE
    )
    assert merged.columns["selected_logprob"].tolist() == [0, 1, 102, 103, 4, 5]
    assert merged.columns["owner_rank"].tolist() == [0, 0, 1, 1, 0, 0]
    assert merged.columns["owner_rank"].dtype == np.int16
    assert merged.columns["active"].tolist() == ACTIVE.tolist()
    assert [record.rank for record in merged.records] == [0, 1]
    assert merged.replica_disagreements == ()


def test_a_token_that_nobody_owns_has_no_value():
    merged = merge_ranks([report(0, "owner", (1, 3), (4, 6))], {0: values(0)}, ACTIVE)
    assert np.isnan(merged.columns["selected_logprob"][[0, 3]]).all()
    assert merged.columns["owner_rank"].tolist() == [-1, 0, 0, -1, 0, 0]


@pytest.mark.parametrize("ranges", [[(0, 2), (3, 6)], [(0, 5)], [(2, 6)], []])
def test_an_active_token_without_an_owner_is_a_missing_rank(ranges):
    with pytest.raises(MissingRankError, match="no owner"):
        merge_ranks([report(0, "owner", *ranges)], {0: values(0)}, ACTIVE)


@given(st.lists(st.integers(0, 12), min_size=0, max_size=6), st.integers(1, 3))
def test_a_tiling_by_any_number_of_ranks_is_exact(cuts, ranks):
    bounds = [0, *sorted(min(cut, 6) for cut in cuts), 6]
    spans = list(pairwise(bounds))
    reports = [report(rank, "owner", *spans[rank::ranks]) for rank in range(ranks)]
    merged = merge_ranks(reports, {rank: values(100 * rank) for rank in range(ranks)}, ACTIVE)
    for number, (start, stop) in enumerate(spans):
        expected = [token + 100 * (number % ranks) for token in range(start, stop)]
        assert merged.columns["selected_logprob"][start:stop].tolist() == expected
        assert merged.columns["owner_rank"][start:stop].tolist() == [number % ranks] * (stop - start)


@pytest.mark.parametrize("second", [(0, 6), (5, 6), (3, 4)])
def test_two_owners_of_one_token_are_refused_even_where_it_is_not_active(second):
    with pytest.raises(MissingRankError, match="ranks 0 and 1 both own"):
        merge_ranks([report(0, "owner", (0, 6)), report(1, "owner", second)], {0: values(0), 1: values(0)}, ACTIVE)


def test_one_rank_that_names_a_token_twice_is_refused():
    with pytest.raises(MissingRankError, match="ranks 0 and 0 both own the token at flat index 2"):
        merge_ranks([report(0, "owner", (0, 3), (2, 6))], {0: values(0)}, ACTIVE)


@pytest.mark.parametrize("ranges", [(-1, 6), (0, 7), (4, 2), (7, 9)])
@pytest.mark.parametrize("role", ["owner", "replica"])
def test_a_range_outside_the_tokens_is_refused(role, ranges):
    reports = [report(0, "owner", (0, 6)), report(1, role, ranges)]
    if role == "owner":
        reports[0] = report(0, "none")
    with pytest.raises(WorkerError, match="of 6 tokens"):
        merge_ranks(reports, {0: values(0), 1: values(0)}, ACTIVE)


def test_a_rank_without_a_record_is_missing():
    with pytest.raises(MissingRankError, match=r"\[1, 2\]"):
        merge_ranks(
            [report(0, "owner", (0, 6)), report(2, record=False), report(1, record=False)], {0: values(0)}, ACTIVE
        )


def test_role_none_owns_nothing_whatever_it_sends():
    merged = merge_ranks([report(0, "owner", (0, 6)), report(1, "none")], {0: values(0), 1: values(9)}, ACTIVE)
    assert merged.columns["selected_logprob"].tolist() == [0, 1, 2, 3, 4, 5]
    assert merged.replica_disagreements == ()
    with pytest.raises(MissingRankError):
        merge_ranks([report(0, "none", (0, 6))], {0: values(0)}, ACTIVE)


def test_a_replica_owns_nothing():
    with pytest.raises(MissingRankError):
        merge_ranks([report(0, "replica", (0, 6))], {0: values(0)}, ACTIVE)


@pytest.mark.parametrize(
    ("mine", "theirs", "differ", "gap"),
    [
        (-1.0, -1.0, 0, None),
        (-1.0, np.nextafter(np.float32(-1.0), np.float32(0)), 1, 2.0**-24),
        (-1.0, -1.5, 1, 0.5),
        (np.nan, np.nan, 0, None),
        (-1.0, np.nan, 1, None),
        (np.nan, -1.0, 1, None),
        (-np.inf, -np.inf, 0, None),
        (-np.inf, -1.0, 1, None),
        (0.0, -0.0, 0, None),
    ],
)
def test_a_replica_is_compared_exactly_and_never_overwrites(mine, theirs, differ, gap):
    first, second = values(0), values(0)
    first["selected_logprob"][4], second["selected_logprob"][4] = mine, theirs
    merged = merge_ranks([report(0, "owner", (0, 6)), report(1, "replica", (0, 6))], {0: first, 1: second}, ACTIVE)
    assert merged.columns["selected_logprob"].tobytes() == first["selected_logprob"].tobytes()
    expected = ({"rank": 1, "tokens": differ, "max_abs": gap},) if differ else ()
    assert merged.replica_disagreements == expected


def test_a_replica_counts_its_active_tokens_within_its_ranges():
    other = values(1)  # differs everywhere
    for ranges, tokens in (((0, 6),), 4), (((0, 2),), 1), (((2, 4), (4, 5)), 2), ((), 4), (((3, 4),), 0):
        merged = merge_ranks(
            [report(0, "owner", (0, 6)), report(1, "replica", *ranges)], {0: values(0), 1: other}, ACTIVE
        )
        assert [item["tokens"] for item in merged.replica_disagreements] == ([tokens] if tokens else [])


def test_every_replica_is_a_finding_of_its_own():
    merged = merge_ranks(
        [report(0, "owner", (0, 6)), report(1, "replica"), report(2, "replica"), report(3, "replica")],
        {0: values(0), 1: values(0.5), 2: values(0), 3: values(-2)},
        ACTIVE,
    )
    assert [(item["rank"], item["max_abs"]) for item in merged.replica_disagreements] == [(1, 0.5), (3, 2.0)]


@pytest.mark.parametrize("shape", [(5,), (7,), (0,), ()])
@pytest.mark.parametrize("wrong", [0, 1])
def test_a_column_of_another_length_is_refused(wrong, shape):
    reports = [report(0, "owner", (0, 6)), report(1, "replica", (0, 6))]
    tensors = {0: values(0), 1: values(0), wrong: {"selected_logprob": np.zeros(shape, dtype=np.float32)}}
    with pytest.raises(WorkerError, match=f"rank {wrong} sent selected_logprob with shape"):
        merge_ranks(reports, tensors, ACTIVE)


def test_an_owner_without_scores_is_refused():
    for tensors in ({}, {0: {}}, {0: {"entropy": np.zeros(6)}}):
        with pytest.raises(WorkerError, match="selected_logprob"):
            merge_ranks([report(0, "owner", (0, 6))], tensors, ACTIVE)


def test_a_replica_without_scores_is_a_missing_rank():
    with pytest.raises(MissingRankError, match="rank 1 is a replica"):
        merge_ranks([report(0, "owner", (0, 6)), report(1, "replica")], {0: values(0)}, ACTIVE)


@pytest.mark.parametrize("other", [np.zeros(6), np.zeros((6, 2), dtype=np.float32), np.zeros(6, dtype=np.int32)])
def test_owners_that_disagree_about_a_column_are_refused_instead_of_cast(other):
    reports = [report(0, "owner", (0, 3)), report(1, "owner", (3, 6))]
    for name in ("selected_logprob", "entropy"):
        first = values(0, entropy=np.zeros(6, dtype=np.float32))
        second = values(0, entropy=np.zeros(6, dtype=np.float32)) | {name: other}
        with pytest.raises(WorkerError, match=f"rank 1 sent {name}"):
            merge_ranks(reports, {0: first, 1: second}, ACTIVE)


def test_a_float64_score_stays_exact():
    exact = np.full(6, -1 / 3)
    merged = merge_ranks([report(0, "owner", (0, 6))], {0: {"selected_logprob": exact}}, ACTIVE)
    assert merged.columns["selected_logprob"].dtype == np.float64
    assert merged.columns["selected_logprob"].tobytes() == exact.tobytes()


def test_extra_columns_follow_the_owner_and_are_empty_elsewhere():
    extra = {
        "entropy": np.arange(6, dtype=np.float32),
        "token_rank": np.arange(1, 7, dtype=np.int32),
        "phase": np.full(6, 2, dtype=np.int8),
        "routed_experts": np.ones((6, 2, 3), dtype=np.int16),
    }
    reports = [report(0, "owner", (0, 3)), report(1, "owner", (4, 6))]
    merged = merge_ranks(reports, {0: values(0), 1: values(0, **extra)}, ACTIVE)
    assert np.isnan(merged.columns["entropy"][:4]).all()
    assert merged.columns["entropy"][4:].tolist() == [4, 5]
    assert merged.columns["token_rank"].tolist() == [0, 0, 0, 0, 5, 6]
    assert merged.columns["phase"].tolist() == [0, 0, 0, 0, 2, 2]
    assert merged.columns["routed_experts"].shape == (6, 2, 3)
    assert not merged.columns["routed_experts"][:4].any()


def test_what_a_rank_says_about_mask_and_owner_is_not_believed():
    lies = values(0, active=np.ones(6, dtype=bool), owner_rank=np.full(6, 9, dtype=np.int16))
    merged = merge_ranks([report(0, "owner", (0, 6))], {0: lies}, ACTIVE)
    assert merged.columns["active"].tolist() == ACTIVE.tolist()
    assert merged.columns["owner_rank"].tolist() == [0] * 6
    merged.columns["active"][0] = True
    assert not ACTIVE[0]


def test_nothing_active_and_nobody_to_score_it_is_no_crash():
    nothing = np.zeros(6, dtype=bool)
    merged = merge_ranks([report(0, "none"), report(1, "replica")], {1: values(0)}, nothing)
    assert "selected_logprob" not in merged.columns
    assert merged.replica_disagreements == ()
