"""Two files of one side each: what is joined, what is refused by name, and that nothing in common is no pass."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from xcfg.dumps import Rows, collect, collect_rows, join, order_sides, table_of
from xcfg.dumps.columns import SCORES
from xcfg.errors import ArtifactError


def side(score: str, samples: dict[Any, list[tuple[Any, ...]]], **extra: list[Any]) -> Rows:
    """Rows of one side: sample -> [(position, token, active, score)]."""
    lines = [(name, *row) for name, rows in samples.items() for row in rows]
    ids, positions, tokens, active, values = zip(*lines, strict=True)
    return collect_rows(
        [
            {
                "sample_id": np.array(ids, dtype=object),
                "position": np.array(positions),
                "token_id": np.array(tokens),
                "active": np.array(active, dtype=bool),
                score: np.array(values, dtype=np.float64),
                **{name: np.array(column) for name, column in extra.items()},
            }
        ],
        source=f"{score}.jsonl",
    )


ROLLOUT = {"a": [(2, 12, True, -1.0), (3, 13, True, -2.0)], "b": [(1, 21, True, -3.0)]}
TRAIN = {
    "b": [(0, 20, False, np.nan), (1, 21, True, -3.5)],
    "a": [(0, 10, False, np.nan), (1, 11, False, np.nan), (2, 12, True, -1.5), (3, 13, False, -9.0)],
}


def test_rows_meet_by_sample_and_position_whatever_their_order() -> None:
    rows, report = join(side("logp_rollout", ROLLOUT), side("logp_train", TRAIN, rank=[5, 5, 4, 4, 4, 4]))
    table = table_of(rows, report)
    assert table.sample_ids == ("a", "b")
    assert table.offsets.tolist() == [0, 4, 6]
    assert table.positions.tolist() == [0, 1, 2, 3, 0, 1]
    assert table.token_ids.tolist() == [10, 11, 12, 13, 20, 21]
    assert table.active.tolist() == [False, False, True, False, False, True]  # active in both files
    np.testing.assert_array_equal(table.rollout, [np.nan, np.nan, -1.0, -2.0, np.nan, -3.0])
    np.testing.assert_array_equal(table.training, [np.nan, np.nan, -1.5, -9.0, np.nan, -3.5])
    assert table.rank is not None and table.rank.tolist() == [4, 4, 4, 4, 5, 5]
    assert (report.samples, report.tokens) == (2, 3)
    assert table.sources == ("logp_rollout.jsonl", "logp_train.jsonl")
    assert table.joined is report


def test_the_join_of_the_halves_is_the_whole(columns: Any) -> None:
    """The oracle is the dump that never was apart."""
    whole = collect([columns])
    halves = [{name: columns[name] for name in columns if name != score} for score in ("logp_train", "logp_rollout")]
    first, second = (collect_rows([half], source=str(number)) for number, half in enumerate(halves))
    table = table_of(*join(first, second))
    for name in ("training", "rollout", "active", "token_ids", "positions", "offsets"):
        np.testing.assert_array_equal(getattr(table, name), getattr(whole, name), err_msg=name)
    assert table.sample_ids == whole.sample_ids
    assert table.training.dtype == np.float32


def test_an_integer_id_meets_its_text() -> None:
    rows, _ = join(side("logp_rollout", {7: ROLLOUT["b"]}), side("logp_train", {"7": TRAIN["b"]}))
    assert rows.count == 2


@pytest.mark.parametrize(
    ("rollout", "train"),
    [
        ({"a": ROLLOUT["a"]}, {"x": TRAIN["a"]}),
        ({"a": [(5, 12, True, -1.0)]}, {"a": [(2, 12, True, -1.5)]}),
    ],
)
def test_nothing_in_common_is_an_empty_join_that_shows_a_key_of_each(rollout: Any, train: Any) -> None:
    rows, report = join(side("logp_rollout", rollout), side("logp_train", train))
    assert rows.count == 0 and table_of(rows, report).rows == 0
    assert "sample 'a', position" in report.example and "logp_train.jsonl" in report.example


def test_samples_of_one_file_are_counted_and_left_out() -> None:
    rows, report = join(side("logp_rollout", ROLLOUT | {"c": ROLLOUT["a"]}), side("logp_train", {"a": TRAIN["a"]}))
    assert rows.sample_ids == ("a",)
    assert (report.only_rollout, report.only_training) == (("b", "c"), ())
    assert "2 only in logp_rollout.jsonl ('b', 'c')" in report.describe()


def test_another_token_at_a_key_is_refused_by_name() -> None:
    train = TRAIN | {"b": [(1, 99, True, -3.5)]}
    with pytest.raises(ArtifactError, match="differ at 1 of 3 joined rows, the first at sample 'b', position 1: 21"):
        join(side("logp_rollout", ROLLOUT), side("logp_train", train))


def test_a_shift_by_one_is_refused_and_not_compared() -> None:
    """Failing means that a lag between the files is measured as drift."""
    shifted = {"a": [(position + 1, token, active, score) for position, token, active, score in ROLLOUT["a"]]}
    with pytest.raises(ArtifactError, match="token ids differ"):
        join(side("logp_rollout", shifted), side("logp_train", {"a": TRAIN["a"]}))


@pytest.mark.parametrize("which", ["rollout", "train"])
def test_a_row_that_is_active_here_and_absent_there_is_another_length(which: str) -> None:
    rollout, train = {"a": list(ROLLOUT["a"])}, {"a": list(TRAIN["a"])}
    longer = rollout if which == "rollout" else train
    longer["a"].append((4, 14, True, -1.0))
    with pytest.raises(ArtifactError, match="sample 'a' has other lengths in the two files: position 4") as caught:
        join(side("logp_rollout", rollout), side("logp_train", train))
    assert "3 rows at positions 2 to 4" in str(caught.value) or "5 rows at positions 0 to 4" in str(caught.value)


def test_a_tail_that_is_not_active_may_stand_in_one_file() -> None:
    train = {"a": [*TRAIN["a"], (4, 14, False, np.nan)]}
    rows, _ = join(side("logp_rollout", {"a": ROLLOUT["a"]}), side("logp_train", train))
    assert rows.count == 5 and int(rows.columns["active"].sum()) == 1


def test_duplicates_within_a_file_are_refused_before_any_join() -> None:
    with pytest.raises(ArtifactError, match="1 duplicate rows, the first for sample 'a', position 2"):
        side("logp_rollout", {"a": [(2, 12, True, -1.0), (2, 12, True, -1.0)]})


def test_the_order_of_the_files_is_free_and_the_sides_are_not(columns: Any) -> None:
    rollout, train = side("logp_rollout", ROLLOUT), side("logp_train", TRAIN)
    both = collect_rows([columns], source="both.npz")
    assert order_sides(rollout, train) == order_sides(train, rollout) == (rollout, train)
    for first, second, says in (
        (both, both, "both files hold both log probabilities"),
        (rollout, rollout, "both hold the rollout side; the training side is missing"),
    ):
        with pytest.raises(ArtifactError, match=says):
            order_sides(first, second)


def test_a_file_with_both_sides_gives_the_one_that_the_other_lacks() -> None:
    """What a trainer dumps often repeats what the rollout recorded: the rollout's own file is the better witness."""
    repeated = side("logp_train", TRAIN)
    repeated.columns["logp_rollout"] = np.full(repeated.count, -9.0, dtype=np.float32)
    alone = join(side("logp_rollout", ROLLOUT), side("logp_train", TRAIN))
    for order in ((0, 1), (1, 0)):
        files = (side("logp_rollout", ROLLOUT), repeated)
        rows, report = join(*order_sides(files[order[0]], files[order[1]]))
        assert all(np.array_equal(rows.columns[name], alone[0].columns[name], equal_nan=True) for name in SCORES)
        assert report.describe() == f"{alone[1].describe()}; logp_rollout of {repeated.source} is not used"


@pytest.mark.parametrize(("score", "missing"), [("logp_rollout", "training"), ("logp_train", "rollout")])
def test_one_side_alone_is_refused_with_what_is_missing(score: str, missing: str) -> None:
    rows = ROLLOUT if score == "logp_rollout" else TRAIN
    with pytest.raises(ArtifactError, match=f"the {missing} side is missing") as caught:
        table_of(side(score, rows))
    assert "xcfg compare ROLLOUT TRAIN" in caught.value.hint


def test_no_score_at_all_is_no_side(columns: Any) -> None:
    for name in ("logp_rollout", "logp_train"):
        columns.pop(name)
    with pytest.raises(ArtifactError, match="no column 'logp_rollout', 'logp_train'"):
        collect_rows([columns])


def test_attested_dtypes_of_both_files_are_kept() -> None:
    rollout, train = side("logp_rollout", ROLLOUT), side("logp_train", TRAIN)
    left = Rows(rollout.columns, rollout.sample_ids, "r", {"rollout": "bfloat16"})
    right = Rows(train.columns, train.sample_ids, "t", {"training": "float32"})
    assert table_of(*join(left, right)).dtypes == {"rollout": "bfloat16", "training": "float32"}


@pytest.mark.parametrize("seed", range(5))
def test_random_halves_join_as_a_dictionary_does(seed: int) -> None:
    """The oracle is a plain dictionary by key."""
    random = np.random.default_rng(seed)
    names = [f"s{number}" for number in range(30)]
    truth = {
        (name, position): (int(random.integers(1000)), -random.random(), -random.random())
        for name in names
        for position in range(1, int(random.integers(2, 9)))
    }
    halves = []
    for score in (1, 2):
        keys = list(truth)
        random.shuffle(keys)
        halves.append({name: [] for name, _ in keys} | {})
        for name, position in keys:
            halves[-1][name].append((position, truth[name, position][0], True, truth[name, position][score]))
    table = table_of(*join(side("logp_rollout", halves[0]), side("logp_train", halves[1])))
    names_of = np.repeat(table.sample_ids, np.diff(table.offsets))
    found = {
        (str(name), int(position)): (int(token), float(a), float(b))
        for name, position, token, a, b in zip(
            names_of, table.positions, table.token_ids, table.rollout, table.training, strict=True
        )
    }
    assert found == truth
    assert table.active.all()
