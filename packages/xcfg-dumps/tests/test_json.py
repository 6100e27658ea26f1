"""NeMo-RL and prime-rl: records of one sample per line, and every way in which a line can be wrong."""

from __future__ import annotations

import json

import numpy as np
import pytest
from xcfg.dumps import table_of
from xcfg.errors import ArtifactError
from xcfg_dumps import records

NAN = float("nan")


def test_nemo_rl_cuts_padding_and_drops_the_dummy(layouts, rows, tmp_path):
    path = layouts.jsonl(tmp_path, [layouts.nemo_record(1), layouts.nemo_record(0)])
    table = table_of(rows("nemo-rl", path))
    assert table.sample_ids == ("1", "0")
    assert table.token_ids.tolist() == [21, 22, 23, 11, 12, 300, 70_000, 13]
    assert table.rollout[table.active].tolist() == [-0.75, -0.5, -1.25, -3.0]
    assert table.training[table.active].tolist() == [-0.8125, -0.5, -1.5, -2.875]
    assert np.isnan(table.rollout[0]) and np.isnan(table.training[3])


@pytest.mark.parametrize(
    ("changes", "active"),
    [
        ({"sample_loss_mask": [0.0]}, [0, 0, 0, 0, 0]),
        ({"token_loss_mask": [[1.0, 1.0, 0.0, 1.0, 1.0]]}, [0, 1, 0, 1, 1]),  # index 0 never counts
        ({"token_loss_mask": [[True, False, True, False, False]]}, [0, 0, 1, 0, 0]),
        ({"input_lengths": [4]}, [0, 0, 1, 1]),
    ],
)
def test_nemo_rl_masks(layouts, rows, tmp_path, changes, active):
    path = layouts.jsonl(tmp_path, [layouts.nemo_record(0, **changes)])
    assert rows("nemo-rl", path).columns["active"].tolist() == active


def test_nan_where_nothing_is_compared_is_no_fault(layouts, rows, tmp_path):
    """json.dumps writes the literal NaN; the mask decides whether a score was needed there."""
    record = layouts.nemo_record(0, generation_logprobs=[[NAN, NAN, -0.5, -1.25, -3.0]])
    assert "NaN" in json.dumps(record)
    assert rows("nemo-rl", layouts.jsonl(tmp_path, [record])).columns["active"].sum() == 3


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"generation_logprobs": [[0.0, 0.0, NAN, -1.0, -3.0]]}, "logp_rollout is nan on 1 active tokens"),
        ({"prev_logprobs": [[0.0, 0.0, -1.0, float("inf"), -3.0]]}, "logp_train is inf on 1 active tokens"),
        ({"prev_logprobs": [[0.0, 0.0, None, -1.0, -3.0]]}, "logp_train is nan on 1 active tokens"),
        ({"prev_logprobs": [[0.0, 0.0, -1.0]]}, "columns of different lengths"),
        ({"token_ids": [[1, 2, 3]]}, "columns of different lengths"),
        ({"input_lengths": [6]}, "columns of different lengths"),
        ({"input_lengths": [0]}, "columns of different lengths"),
        ({"input_lengths": [10**15]}, "not an integer from 0"),
        ({"input_lengths": ["5"]}, "not an integer from 0"),
        ({"token_ids": [[1, 2.0, 3, 4, 5]]}, "not a list of integers"),
        ({"token_ids": [[1, True, 3, 4, 5]]}, "not a list of integers"),
        ({"token_ids": [[1, 10**30, 3, 4, 5]]}, "more than 64 bits"),
        ({"token_ids": [[1, 2**40, 3, 4, 5]]}, "out of range"),
        ({"token_ids": [[1, 2], [3, 4]]}, "holds 2 samples"),
        ({"token_ids": "11 12"}, "not a list of integers"),
        ({"prev_logprobs": [["-1", "-1", "-1", "-1", "-1"]]}, "not a list of numbers"),
        ({"prev_logprobs": [[[0], [0], [0], [0], [0]]]}, "not a list of numbers"),
        ({"prev_logprobs": [{"0": -1.0}]}, "not a list of numbers"),
        ({"token_loss_mask": [[0, 0, 2, 1, 1]]}, "something else than 0 and 1"),
        ({"token_loss_mask": [[0, 0, "1", 1, 1]]}, "not a mask"),
        ({"sample_loss_mask": [0.5]}, "something else than 0 and 1"),
        ({"idx": None}, "idx is None"),
    ],
)
def test_a_nemo_rl_record_that_is_not_whole_is_refused(layouts, rows, tmp_path, changes, says):
    path = layouts.jsonl(tmp_path, [layouts.nemo_record(0, **changes)])
    with pytest.raises(ArtifactError) as caught:
        rows("nemo-rl", path)
    assert says in str(caught.value)
    assert "line 1" in str(caught.value) or "sample '0'" in str(caught.value) or "out of range" in says


def test_log_probabilities_that_were_skipped_are_no_drift(layouts, rows, tmp_path):
    """Under force_on_policy_ratio NeMo-RL logs zeros: failing means that a filler is compared."""
    n = 12
    record = layouts.nemo_record(0) | {
        "token_ids": [list(range(n))],
        "input_lengths": [n],
        "token_loss_mask": [[0.0] + [1.0] * (n - 1)],
        "generation_logprobs": [[0.0] + [-0.5] * (n - 1)],
        "prev_logprobs": [[0.0] * n],
    }
    with pytest.raises(
        ArtifactError, match="prev_logprobs is 0 on all 11 active tokens: it was not computed"
    ) as caught:
        rows("nemo-rl", layouts.jsonl(tmp_path, [record]))
    assert "force_on_policy_ratio" in caught.value.hint
    record["prev_logprobs"][0][5] = -1e-7
    assert rows("nemo-rl", layouts.jsonl(tmp_path, [record])).count == n


def test_a_missing_key_is_named(layouts, rows, tmp_path):
    record = layouts.nemo_record(0)
    del record["prev_logprobs"]
    with pytest.raises(ArtifactError, match="line 2 has no prev_logprobs; there are content, rewards"):
        rows("nemo-rl", layouts.jsonl(tmp_path, [layouts.nemo_record(1), record]))


def test_the_same_sample_twice_is_refused(layouts, rows, tmp_path):
    with pytest.raises(ArtifactError, match="duplicate rows, the first for sample '0'"):
        rows("nemo-rl", layouts.jsonl(tmp_path, [layouts.nemo_record(0)] * 2))


def test_prime_rl_reads_a_step_with_a_file_per_rank(layouts, rows, tmp_path, manager):
    from xcfg.flow.dumps import choose_reader

    (tmp_path / "STABLE").touch()
    layouts.jsonl(tmp_path, [layouts.prime_record(0, rank=0)], "rank_0.jsonl")
    layouts.jsonl(tmp_path, [layouts.prime_record(1, rank=1)], "rank_1.jsonl")
    found = rows("prime-rl", tmp_path)
    assert found.sample_ids == ("step4-rank0-0", "step4-rank1-1")
    assert found.columns["rank"].tolist() == [0] * 5 + [1] * 3
    assert choose_reader(tmp_path, manager, None)[0] == "prime-rl"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"schema_version": 2}, "schema_version 2"),
        ({"position_ids": [0, 1, 2, 0, 1]}, "position_ids do not count from 0 to 4"),
        ({"trainer_logprobs": [-1.0] * 4}, "columns of different lengths"),
        ({"inference_logprobs": [0.0, 0.0, None, -1.0, -1.0]}, "logp_rollout is nan on 1 active tokens"),
        ({"loss_mask": [None] * 5}, "not a mask"),
        ({"entropy": [0.1]}, "columns of different lengths"),
        ({"rank": -1}, "rank is -1"),
    ],
)
def test_a_prime_rl_record_that_is_not_whole_is_refused(layouts, rows, tmp_path, changes, says):
    with pytest.raises(ArtifactError) as caught:
        rows("prime-rl", layouts.jsonl(tmp_path, [layouts.prime_record(0, **changes)]))
    assert says in str(caught.value)


def test_the_first_token_is_never_active(layouts, rows, tmp_path):
    """trainer_logprobs were shifted right, so index 0 is a filler."""
    path = layouts.jsonl(tmp_path, [layouts.prime_record(0, loss_mask=[True] * 5)])
    assert rows("prime-rl", path).columns["active"].tolist() == [0, 1, 1, 1, 1]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"", "holds no sample"),
        (b"\n", "line 1 is not JSON"),
        (b"[1]\n", "no JSON object"),
        (b"{}\n", "line 1 has no"),
        (b'{"a": 1, "a": 2}\n', "'a' stands twice"),
        (b'{"a": ' + b"[" * 200_000 + b"}\n", "nested too deeply"),
        (b'{"a": ' + b'{"a": ' * 200_000 + b"\n", "nested too deeply"),
        (b"\xff\xfe\n", "not UTF-8"),
        (b'{"a": 1' + b"0" * 10_000 + b"}\n", "not JSON"),
        (b'{"a": "\x00"}\n', "not JSON"),
    ],
)
@pytest.mark.parametrize("reader", ["nemo-rl", "prime-rl"])
def test_hostile_lines_are_an_error_and_no_traceback(layouts, rows, tmp_path, reader, text, says):
    with pytest.raises(ArtifactError) as caught:
        rows(reader, layouts.jsonl(tmp_path, text))
    assert says in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_a_line_without_end_is_refused_before_it_is_parsed(layouts, rows, tmp_path, monkeypatch):
    monkeypatch.setattr(records, "LONGEST", 1000)
    with pytest.raises(ArtifactError, match="line 1 is longer than 1000 bytes"):
        rows("nemo-rl", layouts.jsonl(tmp_path, b"{" + b" " * 5000))


def test_a_file_cut_anywhere_is_an_error_or_says_which_samples_it_has(layouts, rows, tmp_path):
    """A cut at a line end cannot be told from a shorter file; any other is refused."""
    whole = layouts.jsonl(tmp_path, [layouts.nemo_record(0), layouts.nemo_record(1)]).read_bytes()
    ends = {index for index, byte in enumerate(whole) if byte == 10} | {
        index + 1 for index, b in enumerate(whole) if b == 10
    }
    for size in range(1, len(whole), 7):
        path = layouts.jsonl(tmp_path, whole[:size], "cut.jsonl")
        if size in ends:
            continue
        with pytest.raises(ArtifactError):
            rows("nemo-rl", path)


def test_batches_end_with_a_sample_and_equal_one_batch(layouts, rows, tmp_path, monkeypatch):
    from xcfg_dumps import samples
    from xcfg_dumps.nemo_rl import NemoRlReader

    path = layouts.jsonl(tmp_path, [layouts.nemo_record(0), layouts.nemo_record(1)])
    whole = rows("nemo-rl", path)
    monkeypatch.setattr(samples, "ROWS", 2)
    assert [len(batch["position"]) for batch in NemoRlReader().read(path)] == [5, 3]
    parts = rows("nemo-rl", path)
    assert parts.sample_ids == whole.sample_ids
    for name in whole.columns:
        np.testing.assert_array_equal(parts.columns[name], whole.columns[name])
