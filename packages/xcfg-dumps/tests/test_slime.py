"""slime and miles: what the framework writes is read, and nothing else is taken for it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from xcfg.dumps import join, order_sides, table_of
from xcfg.errors import ArtifactError


def test_rollout_and_training_dump_join_by_index(layouts, rows, tmp_path):
    pair = order_sides(
        rows("slime-train", layouts.slime_train(tmp_path)), rows("slime-rollout", layouts.slime_rollout(tmp_path))
    )
    table = table_of(*join(*pair))
    np.testing.assert_array_equal(table.rollout, layouts.expected("rollout")["logp_rollout"])
    np.testing.assert_array_equal(table.training, layouts.expected("training")["logp_train"])
    assert table.sample_ids == ("0", "1")
    assert table.rank.tolist() == [1] * 5 + [0] * 3
    assert table.weight_version.tolist() == [7] * 8
    assert table.training.dtype == table.rollout.dtype == np.float32


def test_the_samples_of_a_rollout_may_come_in_any_order(layouts, rows, tmp_path):
    path = layouts.slime_rollout(tmp_path, [layouts.slime_sample(1), layouts.slime_sample(0)], metadata={"a": 1})
    assert rows("slime-rollout", path).sample_ids == ("1", "0")


@pytest.mark.parametrize(
    ("changes", "active"),
    [
        ({"loss_mask": None}, [0, 0, 1, 1, 1]),
        ({"loss_mask": [1, 0, 1]}, [0, 0, 1, 0, 1]),
        ({"loss_mask": [0, 0, 0]}, [0, 0, 0, 0, 0]),
        ({"remove_sample": True}, [0, 0, 0, 0, 0]),
    ],
)
def test_the_loss_mask_decides_what_is_active(layouts, rows, tmp_path, changes, active):
    path = layouts.slime_rollout(tmp_path, [layouts.slime_sample(0, **changes)])
    assert rows("slime-rollout", path).columns["active"].tolist() == active


def test_weight_versions_stand_only_where_each_sample_has_one(layouts, rows, tmp_path):
    for versions in ([], ["7", "8"], ["main"], None):
        samples = [layouts.slime_sample(0), layouts.slime_sample(1, weight_versions=versions)]
        assert "weight_version" not in rows("slime-rollout", layouts.slime_rollout(tmp_path, samples)).columns


def test_without_indices_samples_are_numbered_as_the_file_has_them(layouts, rows, tmp_path):
    rollout = layouts.slime_rollout(tmp_path, [layouts.slime_sample(n, index=None) for n in (0, 1)])
    train = layouts.slime_train(tmp_path, [layouts.slime_train_sample(n, sample_index=None) for n in (0, 1)])
    assert rows("slime-rollout", rollout).sample_ids == rows("slime-train", train).sample_ids == ("0", "1")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"rollout_log_probs": None}, "sample 0 has no rollout_log_probs"),
        ({"rollout_log_probs": [-1.0, -2.0]}, "rollout_log_probs has 2 values for a response of 3"),
        ({"rollout_log_probs": [-1.0, float("nan"), -2.0]}, "logp_rollout is nan on 1 active tokens"),
        ({"rollout_log_probs": [-1.0, None, -2.0]}, "logp_rollout is nan on 1 active tokens"),
        ({"rollout_log_probs": ["-1", "-1", "-1"]}, "not a list of numbers"),
        ({"rollout_log_probs": [[-1.0], [-1.0], [-1.0]]}, "not a list of numbers"),
        ({"response_length": 5}, "3 values for a response of 5"),
        ({"response_length": 5, "rollout_log_probs": [-1.0] * 5, "loss_mask": None}, "no prompt is left"),
        ({"response_length": -1}, "response_length is -1"),
        ({"response_length": 2.0}, "response_length is 2.0"),
        ({"loss_mask": [1, 1]}, "loss_mask has 2 values"),
        ({"loss_mask": [1, 2, 1]}, "something else than 0 and 1"),
        ({"tokens": [1, 2, 3, -4, 5]}, "out of range"),
        ({"tokens": [1.0, 2.0, 3.0, 4.0, 5.0]}, "not one integer per token"),
        ({"tokens": []}, "no prompt is left"),
        ({"tokens": None}, "has no tokens"),
        ({"tokens": "text"}, "not a list of integers"),
    ],
)
def test_a_sample_that_is_not_whole_is_refused_by_name(layouts, rows, tmp_path, changes, says):
    path = layouts.slime_rollout(tmp_path, [layouts.slime_sample(0, **changes)])
    with pytest.raises(ArtifactError) as caught:
        rows("slime-rollout", path)
    assert says in str(caught.value)


def test_a_sample_that_stands_twice_in_a_rollout_is_refused(layouts, rows, tmp_path):
    path = layouts.slime_rollout(tmp_path, [layouts.slime_sample(0), layouts.slime_sample(0)])
    with pytest.raises(ArtifactError, match="duplicate rows, the first for sample '0'"):
        rows("slime-rollout", path)


def test_an_empty_rollout_holds_no_sample(layouts, rows, tmp_path):
    with pytest.raises(ArtifactError, match="holds no sample"):
        rows("slime-rollout", layouts.slime_rollout(tmp_path, []))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"log_probs": torch.tensor([-0.5, -1.5])}, "a slice of a context parallel group"),
        ({"log_probs": None}, "has no log_probs; there are"),
        ({"log_probs": torch.zeros(3, 2)}, "not one number per token"),
        ({"log_probs": torch.tensor([-0.5, float("inf"), -1.0])}, "logp_train is inf on 1 active tokens"),
        ({"tokens": torch.zeros(5)}, "not one integer per token"),
        ({"data_parallel_rank": None}, "rank is None"),
    ],
)
def test_a_training_sample_that_is_not_whole_is_refused(layouts, rows, tmp_path, changes, says):
    path = layouts.slime_train(tmp_path, [layouts.slime_train_sample(0, **changes)])
    with pytest.raises(ArtifactError) as caught:
        rows("slime-train", path)
    assert says.lower() in str(caught.value).lower()


def test_an_unknown_version_is_refused(layouts, rows, tmp_path):
    with pytest.raises(ArtifactError, match="format_version 3"):
        rows("slime-train", layouts.slime_train(tmp_path, format_version=3))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_every_floating_dtype_keeps_its_values(layouts, rows, tmp_path, dtype):
    """The oracle is torch's own widening."""
    stored = torch.tensor([-0.1, -1.7, -3.3]).to(dtype)
    path = layouts.slime_train(tmp_path, [layouts.slime_train_sample(0, log_probs=stored)])
    found = rows("slime-train", path).columns["logp_train"][2:]
    assert found.astype(np.float64).tolist() == stored.double().tolist()


def test_tensors_that_share_a_storage_are_read_at_their_place(layouts, rows, tmp_path):
    """A strided view of a larger tensor is what a slice of a batch looks like."""
    batch = torch.arange(40, dtype=torch.float32).reshape(4, 10).neg()
    path = layouts.slime_train(tmp_path, [layouts.slime_train_sample(0, log_probs=batch[1:4, 3])])
    assert rows("slime-train", path).columns["logp_train"][2:].tolist() == [-13.0, -23.0, -33.0]


def test_a_folder_with_a_file_per_rank_is_one_dump(layouts, rows, tmp_path, manager):
    from xcfg.flow.dumps import choose_reader

    layouts.miles_train(tmp_path, 0, (1,))
    layouts.miles_train(tmp_path, 2, (0,))
    layouts.miles_train(tmp_path, 3, (0,))  # the other rank of a tensor-parallel group writes the same sample
    found = rows("slime-train", tmp_path)
    assert found.sample_ids == ("1", "0")
    assert found.sides == ("rollout", "training")
    assert found.columns["rank"].tolist() == [0] * 3 + [2] * 5
    assert choose_reader(tmp_path, manager, None)[0] == "slime-train"


def test_copies_that_differ_in_one_bit_are_an_error_that_names_the_ranks(layouts, rows, tmp_path):
    layouts.miles_train(tmp_path, 0, (0,))
    other = torch.tensor(np.nextafter(np.float32([-0.5, -1.5, -2.875]), np.float32(0)))
    layouts.miles_train(tmp_path, 1, (0,), data={"log_probs": [other]})
    with pytest.raises(ArtifactError, match="sample '0' was written twice with different values, by ranks 0 and 1"):
        rows("slime-train", tmp_path)


def test_files_of_two_rollouts_are_not_one_dump(layouts, rows, tmp_path):
    layouts.miles_train(tmp_path, 0)
    layouts.miles_train(tmp_path, 1, rollout_id=4)
    with pytest.raises(ArtifactError, match=r"mixes rollouts: 3 in 3_0\.pt, 4 in 3_1\.pt"):
        rows("slime-train", tmp_path)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"cp_size": 2}, "slices of context parallel rank 0 of 2"),
        ({"rollout_data": None}, "neither samples nor rollout_data"),
        ({"data": {"tokens": []}}, "tokens has another length"),
        ({"data": {"sample_indices": [0]}}, "sample_indices has another length"),
        ({"data": {"log_probs": [torch.zeros(2), torch.zeros(1)]}}, "log_probs has 2 values for a response of 3"),
    ],
)
def test_a_file_of_one_rank_that_is_not_whole_is_refused(layouts, rows, tmp_path, changes, says):
    path = layouts.miles_train(tmp_path, **changes)
    with pytest.raises(ArtifactError) as caught:
        rows("slime-train", path)
    assert says in str(caught.value)
