"""Three lines in a loop: each framework's batch becomes a frozen rollout that holds what both sides computed."""

from __future__ import annotations

import numpy as np
import pytest
from xcfg.errors import ArtifactError, UsageError, XcfgError
from xcfg.identity.rollout import read_rollout
from xcfg_dumps.capture import Capture

NAN = float("nan")
IDS = [11, 12, 13, 14, 15, 21, 22, 23]
ACTIVE = [0, 0, 1, 0, 1, 0, 0, 1]
ROLLOUT = [NAN, NAN, -0.5, NAN, -1.5, NAN, NAN, -2.5]
TRAIN = [NAN, NAN, -0.75, NAN, -1.25, NAN, NAN, -2.0]


NAMES = ("verl", "trl", "nemo_rl", "slime")


@pytest.mark.parametrize("name", NAMES)
def test_a_batch_becomes_a_frozen_rollout(tmp_path, name, loops):
    capture = Capture(tmp_path / "captured", checkpoint="models/actor", weight_version=17)
    written = getattr(capture, name)(loops[name]()).write()
    rollout = read_rollout(tmp_path / "captured", sha256=written.sha256)
    assert rollout.token_ids.tolist() == IDS
    assert rollout.offsets.tolist() == [0, 5, 8]
    assert rollout.active.tolist() == [bool(item) for item in ACTIVE]
    np.testing.assert_array_equal(rollout.tensors["recorded_logprob"], np.float32(ROLLOUT))
    np.testing.assert_array_equal(rollout.tensors["recorded_training_logprob"], np.float32(TRAIN))
    assert rollout.tensors["segment"].tolist() == [0, 0, 1, 2, 1, 0, 0, 1]
    assert (rollout.manifest.checkpoint.uri, rollout.manifest.checkpoint.weight_version) == ("models/actor", 17)
    assert "unattested" in rollout.manifest.sampling.extra


@pytest.mark.parametrize("name", NAMES)
def test_what_was_captured_can_be_compared(tmp_path, name, manager, loops):
    from xcfg.flow.compare import compare_dump

    getattr(Capture(tmp_path / "captured", checkpoint="m"), name)(loops[name]()).write()
    edge = compare_dump(tmp_path / "captured", manager)[1].edges["training_vs_rollout"]
    assert (edge.active_tokens, edge.max_abs, edge.bias) == (3, 0.5, pytest.approx((-0.25 + 0.25 + 0.5) / 3))


def test_several_batches_are_one_rollout(tmp_path, loops):
    rollout = Capture(tmp_path / "c", checkpoint="m").verl(loops["verl"]()).verl(loops["verl"]()).write()
    assert rollout.sequence_count == 4
    assert [item.request_id for item in rollout.manifest.sequences] == [f"sample-{index}" for index in range(4)]


def test_slime_keeps_its_sample_indices(tmp_path, loops):
    rollout = Capture(tmp_path / "c", checkpoint="m").slime(loops["slime"]() | {"sample_indices": [8, 3]}).write()
    assert [item.request_id for item in rollout.manifest.sequences] == ["8", "3"]


def test_bfloat16_scores_keep_their_values(tmp_path, loops):
    batch = loops["trl"]()
    batch["old_per_token_logps"] = batch["old_per_token_logps"].bfloat16()
    written = Capture(tmp_path / "c", checkpoint="m").trl(batch).write()
    assert written.tensors["recorded_training_logprob"][2] == -0.75


def test_the_bypass_mode_of_verl_is_refused(tmp_path, loops):
    """Failing means that a value is compared with itself and the drift is exactly 0."""
    batch = loops["verl"]()
    for same in (batch.batch["rollout_log_probs"], batch.batch["rollout_log_probs"].view(2, 4)):
        batch.batch["old_log_probs"] = same
        with pytest.raises(UsageError, match="the very tensor rollout_log_probs"):
            Capture(tmp_path / "c", checkpoint="m").verl(batch)


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("verl", "rollout_log_probs"),
        ("trl", "sampling_per_token_logps"),
        ("nemo_rl", "prev_logprobs"),
        ("slime", "log_probs"),
    ],
)
def test_a_side_that_is_not_there_is_named(tmp_path, name, field, loops):
    batch = loops[name]()
    del (batch.batch if name == "verl" else batch)[field]
    with pytest.raises(UsageError, match=f"the batch has no '{field}'; there are"):
        getattr(Capture(tmp_path / "c", checkpoint="m"), name)(batch)


def test_shapes_that_do_not_fit_are_refused(tmp_path, loops):
    batch = loops["trl"]()
    batch["old_per_token_logps"] = batch["old_per_token_logps"][:, :3]
    with pytest.raises(UsageError, match="the batch has shapes"):
        Capture(tmp_path / "c", checkpoint="m").trl(batch)
    with pytest.raises(UsageError, match=r"training \(1,\)"):
        Capture(tmp_path / "c", checkpoint="m").add("a", [1, 2], [0, 1], [0.0, -1.0], [-1.0])


def test_a_missing_score_where_it_counts_is_refused(tmp_path):
    capture = Capture(tmp_path / "c", checkpoint="m").add("a", [1, 2], [False, True], [0.0, NAN], [0.0, -1.0])
    with pytest.raises(
        ArtifactError, match="logp_rollout is nan on 1 active tokens, the first at sample 'a', position 1"
    ):
        capture.write()
    assert not (tmp_path / "c").exists()


def test_nothing_and_nothing_active_are_refused(tmp_path):
    with pytest.raises(UsageError, match="nothing was captured"):
        Capture(tmp_path / "c", checkpoint="m").write()
    with pytest.raises(ArtifactError, match="no active token"):
        Capture(tmp_path / "c", checkpoint="m").add("a", [1, 2], [0, 0], [0.0, 0.0], [0.0, 0.0]).write()


def test_a_folder_is_never_overwritten(tmp_path, loops):
    Capture(tmp_path / "c", checkpoint="m").slime(loops["slime"]()).write()
    before = (tmp_path / "c" / "manifest.json").read_bytes()
    with pytest.raises(XcfgError, match="exists"):
        Capture(tmp_path / "c", checkpoint="m").slime(loops["slime"]()).write()
    assert (tmp_path / "c" / "manifest.json").read_bytes() == before


def test_an_altered_capture_is_not_compared(tmp_path, manager, loops):
    from xcfg.flow.compare import compare_dump

    Capture(tmp_path / "c", checkpoint="m").slime(loops["slime"]()).write()
    file = tmp_path / "c" / "rollout.safetensors"
    data = file.read_bytes()
    file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(ArtifactError, match="not the file that its manifest names"):
        compare_dump(tmp_path / "c", manager)
