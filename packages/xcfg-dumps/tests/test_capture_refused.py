"""What a capture refuses, in every framework's batch: each message names the field and says what to do."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from xcfg.errors import ArtifactError, UsageError
from xcfg_dumps.capture import Capture

SIDES = {
    "verl": ("rollout_log_probs", "old_log_probs"),
    "trl": ("sampling_per_token_logps", "old_per_token_logps"),
    "nemo_rl": ("generation_logprobs", "prev_logprobs"),
    "slime": ("rollout_log_probs", "log_probs"),
}
LONG = 40
EVERY = pytest.mark.parametrize("name", SIDES)


def tensors(name, batch):
    """The part of a batch that holds its tensors."""
    return batch.batch if name == "verl" else batch


def capture(tmp_path, **options):
    return Capture(tmp_path / "c", checkpoint="m", **options)


def long_batch(name, rollout=-1.0, training=-1.5):
    """One sample of a prompt of 2 and LONG response tokens, every score the same."""

    def full(value):
        return torch.full((1, LONG), value)

    def behind(value):
        return torch.cat([torch.zeros(1, 2), full(value)], dim=1)

    ids, ones = torch.arange(LONG + 2)[None], torch.ones(1, LONG + 2, dtype=torch.int64)
    first, second = SIDES[name]
    if name == "nemo_rl":
        return {
            "input_ids": ids,
            "input_lengths": torch.tensor([LONG + 2]),
            "token_mask": behind(1.0),
            "sample_mask": torch.ones(1),
            first: behind(rollout),
            second: behind(training),
        }
    if name == "slime":
        return {
            "tokens": [ids[0]],
            "response_lengths": [LONG],
            "loss_masks": [ones[0, 2:]],
            first: [full(rollout)[0]],
            second: [full(training)[0]],
        }
    names = {
        "verl": ("prompts", "responses", "attention_mask", "response_mask"),
        "trl": ("prompt_ids", "completion_ids", "prompt_mask", "completion_mask"),
    }[name]
    values = (ids[:, :2], ids[:, 2:], ones if name == "verl" else ones[:, :2], ones[:, 2:])
    return {**dict(zip(names, values, strict=True)), first: full(rollout), second: full(training)}


@EVERY
def test_the_same_tensor_on_both_sides_is_refused(tmp_path, loops, name):
    """Failing means that a value is compared with itself and the drift is exactly 0."""
    first, second = SIDES[name]
    rows = tensors(name, loops[name]())[first]
    view = [row.view(-1) for row in rows] if name == "slime" else rows.view(rows.shape)
    for same in (rows, view, list(rows)) if name == "slime" else (rows, view):
        batch = loops[name]()
        tensors(name, batch).update({first: rows, second: same})
        with pytest.raises(UsageError, match=f"{second}.* is the very tensor {first}"):
            getattr(capture(tmp_path), name)(batch)
    batch = loops[name]()
    copy = [row.clone() for row in rows] if name == "slime" else rows.clone()
    tensors(name, batch).update({first: rows, second: copy})
    getattr(capture(tmp_path), name)(batch).write()  # equal is not the same


def test_the_same_values_on_both_sides_of_one_sample_are_refused(tmp_path):
    listed, array = [0.0, -1.0], np.array([0.0, -1.0])
    for rollout, training in ((listed, listed), (array, array[:]), (torch.tensor(array), array)):
        shared = torch.from_numpy(array) if isinstance(rollout, torch.Tensor) else rollout
        with pytest.raises(UsageError, match="a: training is the very tensor a: rollout"):
            capture(tmp_path).add("a", [1, 2], [0, 1], shared, training)
    none = torch.zeros(0)  # nothing lies nowhere, and that is no address in common
    capture(tmp_path).add("a", [1, 2], [], none, torch.zeros(0), response=0)


@EVERY
@pytest.mark.parametrize("side", [0, 1])
def test_a_side_of_zeros_is_refused(tmp_path, name, side):
    """Failing means that a placeholder is drawn as drift, or as none."""
    values = [0.0 if side == index else -1.0 for index in (0, 1)]
    told = "force_on_policy_ratio" if (name, side) == ("nemo_rl", 1) else "log probabilities" if not side else "trainer"
    message = f"{SIDES[name][side]} is 0 on all {LONG} active tokens: a placeholder"
    with pytest.raises(UsageError, match=message) as caught:
        getattr(capture(tmp_path), name)(long_batch(name, *values))
    assert told in caught.value.hint
    getattr(capture(tmp_path), name)(long_batch(name)).write()


def test_zeros_are_counted_where_they_count(tmp_path):
    """31 tokens prove nothing, 32 do, in one sample or in several; what is not active proves nothing."""
    ids, ones, scored = list(range(32)), [1] * 31, [-1.0] * 31
    few = capture(tmp_path).add("a", ids, ones, scored, [0.0] * 31, response=31)
    few.add("b", ids, [0] * 31, scored, [-0.0] * 31, response=31).add(
        "c", ids, [0] * 31, scored, scored.copy(), response=31
    )
    few.write()
    with pytest.raises(UsageError, match="the training side is 0 on all 32 active tokens"):
        few.add("d", [1, 2], [1], [-1.0], [0.0], response=1).write()
    with pytest.raises(UsageError, match="e: rollout is 0 on all 32 active tokens"):
        few.add("e", ids, [1] * 32, [0.0] * 32, [-1.0] * 32)


def test_a_refused_batch_leaves_nothing_behind(tmp_path, loops):
    """Failing means that half of a batch is written by a loop that goes on after the error."""
    batch = loops["nemo_rl"]()
    batch["input_lengths"] = torch.tensor([5, 6])
    kept = capture(tmp_path)
    with pytest.raises(UsageError, match="input_lengths of row 1 is 6, and input_ids has 5 columns"):
        kept.nemo_rl(batch)
    with pytest.raises(UsageError, match="nothing was captured"):
        kept.write()


@pytest.mark.parametrize(
    "field", ["response_lengths", "loss_masks", "rollout_log_probs", "log_probs", "sample_indices"]
)
def test_lists_of_other_lengths_are_named(tmp_path, loops, field):
    batch = loops["slime"]() | {"sample_indices": [3, 8]}
    batch[field] = batch[field][:1]
    with pytest.raises(UsageError, match=f"{field} has 1 samples and tokens has 2"):
        capture(tmp_path).slime(batch)
    with pytest.raises(UsageError, match="response_lengths is 3, not a list"):
        capture(tmp_path).slime(batch | {"response_lengths": 3})


@pytest.mark.parametrize("fields", [("rollout_log_probs", "log_probs"), ("log_probs",)])
def test_slices_of_context_parallel_are_refused(tmp_path, loops, fields):
    """slime leaves each context-parallel rank two chunks of the response; tokens and masks stay whole."""
    batch = loops["slime"]()
    for name in fields:
        batch[name] = [batch[name][0][:2], batch[name][1]]
    with pytest.raises(UsageError, match=r"sample 0 has a response of 3 tokens, but .* log_probs 2 values") as caught:
        capture(tmp_path).slime(batch)
    assert "under context parallel" in caught.value.message
    assert "context parallel size 1" in caught.value.hint
    assert "--save-debug-train-data" in caught.value.hint


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("tokens", torch.tensor([11.0, 12, 13, 14, 15]), "tokens of sample 0 is float32, not integers"),
        ("tokens", [11, 12, None, 14, 15], "tokens of sample 0 is object, not integers"),
        ("tokens", torch.ones(5, 1, dtype=torch.int64), r"tokens of sample 0 has shape \(5, 1\)"),
        ("loss_masks", [1, 0, -100], "loss_masks of sample 0 holds something else than 0 and 1"),
        ("loss_masks", [1, 0, float("nan")], "loss_masks of sample 0 holds something else than 0 and 1"),
        ("loss_masks", ["a", "b", "c"], "loss_masks of sample 0 is <U1, not a mask"),
        ("log_probs", [-0.5, None, -0.5], "log_probs of sample 0 is object, not floating"),
        ("log_probs", [[-0.5], [-0.5, -0.5]], "log_probs of sample 0 is no array of numbers"),
        ("log_probs", torch.tensor([True, True, True]), "log_probs of sample 0 is bool, not floating"),
        ("log_probs", torch.zeros(3).to_sparse(), "log_probs of sample 0 is no array of numbers"),
        ("rollout_log_probs", torch.zeros(3, dtype=torch.complex64), "rollout_log_probs of sample 0 is complex64"),
        ("rollout_log_probs", torch.tensor(-0.5), r"rollout_log_probs of sample 0 has shape \(\), not one value"),
        ("response_lengths", "three", "response_lengths of sample 0 is 'three', not an integer from 0"),
        ("response_lengths", 2.5, "response_lengths of sample 0 is 2.5, not an integer from 0"),
        ("response_lengths", True, "response_lengths of sample 0 is True, not an integer from 0"),
        ("response_lengths", -1, "response_lengths of sample 0 is -1, not an integer from 0"),
    ],
)
def test_a_field_that_is_no_column_is_named(tmp_path, loops, field, value, says):
    """Failing means that a wrong field is cast: a float id cut off, -100 in a mask taken for active."""
    batch = loops["slime"]()
    batch[field] = [value, batch[field][1]]
    with pytest.raises(UsageError, match=says):
        capture(tmp_path).slime(batch)


@pytest.mark.parametrize(
    ("name", "field", "change", "says"),
    [
        ("verl", "responses", lambda value: value.float(), "responses is float32, not integers"),
        ("verl", "attention_mask", lambda value: value[:, :-1], r"the mask of both \(2, 6\), not \(2, 7\)"),
        ("verl", "prompts", lambda value: value[:1], r"prompts \(1, 3\), not \(2, 3\)"),
        ("verl", "old_log_probs", lambda value: value[0], r"old_log_probs has shape \(4,\), not rows"),
        ("trl", "completion_mask", lambda value: value * 2, "completion_mask holds something else"),
        ("trl", "tool_mask", lambda value: value[:, :3], r"tool_mask have shapes \(2, 4\) and \(2, 3\)"),
        ("trl", "prompt_mask", lambda value: value[:1], "prompt_mask has 1 rows and completion_mask has 2"),
        ("trl", "old_per_token_logps", lambda value: value.long() > 0, "old_per_token_logps is bool, not floating"),
        ("nemo_rl", "input_lengths", lambda value: value[:1], "input_lengths has 1 samples and input_ids has 2"),
        ("nemo_rl", "sample_mask", lambda value: value[:, None], r"sample_mask has shape \(2, 1\)"),
        ("nemo_rl", "prev_logprobs", lambda value: value[:, 1:], r"prev_logprobs \(2, 4\), not \(2, 5\)"),
        ("nemo_rl", "input_ids", lambda value: value.tolist()[0], r"input_ids has shape \(5,\), not rows"),
    ],
)
def test_a_batch_whose_fields_do_not_fit_names_them(tmp_path, loops, name, field, change, says):
    batch = loops[name]()
    held = tensors(name, batch)
    held[field] = change(held[field].detach())
    with pytest.raises(UsageError, match=says):
        getattr(capture(tmp_path), name)(batch)


def test_what_add_is_given_is_named(tmp_path):
    for arguments, says in (
        ((["a", "b"], [0, 1], [0.0, -1.0], [0.0, -2.0]), "s: token_ids is <U1, not integers"),
        (([1, 2], [[0, 1]], [0.0, -1.0], [0.0, -2.0]), r"s: active has shape \(1, 2\)"),
        (([1, 2], [0, 1], object(), [0.0, -2.0]), "s: rollout is object, not floating"),
        (([], [], [], []), "s: token_ids is float64, not integers"),
        ((torch.zeros(0, dtype=torch.int64), [], [], []), "sample 's' has 0 tokens"),
    ):
        with pytest.raises(UsageError, match=says):
            capture(tmp_path).add("s", *arguments)
    with pytest.raises(UsageError, match="sample 's' has 2 tokens, of which 3 are scored"):
        capture(tmp_path).add("s", [1, 2], [0, 1, 1], [0.0, -1.0, -1.0], [0.0, -1.0, -1.0], response=3)


def test_sampling_is_checked(tmp_path):
    with pytest.raises(UsageError, match="sampling has no 'temprature'") as caught:
        capture(tmp_path, sampling={"temprature": 0.7})
    for known in ("temperature", "top_k", "top_p", "logprobs_mode", "transform_chain", "extra"):
        assert known in caught.value.hint
    with pytest.raises(UsageError, match="temperature"):
        capture(tmp_path, sampling={"temperature": "hot"})
    given = {"temperature": 0.7, "transform_chain": ("temperature:0.7",)}
    written = capture(tmp_path, sampling=given).add("a", [1, 2], [0, 1], [0.0, -1.0], [0.0, -1.5]).write()
    assert (written.manifest.sampling.temperature, written.manifest.sampling.extra) == (0.7, {})


@pytest.mark.parametrize("version", [-1, 1.5, "17", True, 2**31])
def test_a_weight_version_is_an_integer(tmp_path, version):
    with pytest.raises(UsageError, match=r"weight_version is .*, not an integer from 0"):
        capture(tmp_path, weight_version=version)


def versioned(batch, lowest, highest=None):
    """As verl's agent loop writes them: object arrays, one entry per row, None where the engine says nothing."""
    columns = {"min_global_steps": lowest, "max_global_steps": lowest if highest is None else highest}
    batch.non_tensor_batch = {name: np.array(values, dtype=object) for name, values in columns.items()}
    return batch


def test_the_weight_version_of_a_verl_batch_is_kept(tmp_path, loops):
    for folder, given, rows in (
        ("a", None, [16, 16]),
        ("b", 16, [16, 16]),
        ("c", None, [16, None]),
        ("d", 16, [None, None]),
    ):
        kept = Capture(tmp_path / folder, checkpoint="m", weight_version=given)
        written = kept.verl(versioned(loops["verl"](), rows)).write()
        assert written.manifest.checkpoint.weight_version == 16
        assert set(written.tensors["weight_version"].tolist()) == {16}
    kept = Capture(tmp_path / "e", checkpoint="m").verl(versioned(loops["verl"](), [None, None])).write()
    assert kept.manifest.checkpoint.weight_version == 0


def test_another_weight_version_in_a_verl_batch_is_refused(tmp_path, loops):
    """Failing means that stale weights are shown as a difference between two engines."""
    for given, rows, highest, says in (
        (17, [16, 16], None, "weight version 16 sampled; the capture is of version 17"),
        (None, [15, 16], None, "weight version 15, 16 sampled"),
        (16, [16, 16], [16, 17], "weight version 16, 17 sampled; the capture is of version 16"),
    ):
        with pytest.raises(UsageError, match=says) as caught:
            capture(tmp_path, weight_version=given).verl(versioned(loops["verl"](), rows, highest))
        assert "rows of one version" in caught.value.hint
    kept = capture(tmp_path).verl(versioned(loops["verl"](), [15, 15]))
    with pytest.raises(UsageError, match="weight version 16 sampled; the capture is of version 15"):
        kept.verl(versioned(loops["verl"](), [16, 16]))
    with pytest.raises(UsageError, match="min_global_steps is 'new', not an integer"):
        capture(tmp_path).verl(versioned(loops["verl"](), ["new", "new"]))


@pytest.mark.parametrize("first", [[None, None], [16, 16]], ids=["then a version", "then none"])
def test_batches_with_and_without_a_version_are_not_one_capture(tmp_path, loops, first):
    """Failing means that tokens of an unknown version are written down as those of a known one."""
    second = [16, 16] if first == [None, None] else [None, None]
    kept = capture(tmp_path).verl(versioned(loops["verl"](), first))
    with pytest.raises(UsageError, match="names the weight version that sampled it and another does not"):
        kept.verl(versioned(loops["verl"](), second))
    capture(tmp_path, weight_version=16).verl(versioned(loops["verl"](), first)).verl(
        versioned(loops["verl"](), second)
    )


def test_a_completion_without_tokens_is_kept_without_a_score(tmp_path, loops):
    """TRL's mask_truncated_completions and verl's aborted requests; failing means that one row spoils the batch."""
    batch = loops["trl"]()
    batch["completion_mask"] = torch.tensor([[1, 1, 1, 0], [0, 0, 0, 0]])
    written = capture(tmp_path).trl(batch).write()
    assert written.offsets.tolist() == [0, 5, 7]
    assert [item.active_tokens for item in written.manifest.sequences] == [2, 0]


def test_slime_numbers_samples_that_have_no_index(tmp_path, loops):
    written = capture(tmp_path).slime(loops["slime"]() | {"sample_indices": [None, None]}).write()
    assert [item.request_id for item in written.manifest.sequences] == ["sample-0", "sample-1"]


def test_a_sample_that_comes_twice_is_refused(tmp_path, loops):
    batch = loops["slime"]() | {"sample_indices": [3, 8]}
    with pytest.raises(ArtifactError, match="duplicate rows, the first for sample '3'"):
        capture(tmp_path).slime(batch).slime(batch).write()


@pytest.mark.parametrize(
    ("name", "field", "hint"),
    [
        ("trl", "old_per_token_logps", "steps_per_generation"),
        ("trl", "sampling_per_token_logps", "rollout_func"),
        ("slime", "log_probs", "--save-debug-train-data"),
    ],
)
def test_a_side_that_a_loop_skips_comes_with_what_to_set(tmp_path, loops, name, field, hint):
    for value in ({}, {field: None}):
        batch = {key: item for key, item in loops[name]().items() if key != field} | value
        with pytest.raises(UsageError, match=f"the batch has no '{field}'") as caught:
            getattr(capture(tmp_path), name)(batch)
        assert hint in caught.value.hint
