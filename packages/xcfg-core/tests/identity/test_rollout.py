"""A frozen rollout that is not exactly what was frozen must never be scored."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xcfg.errors import IdentityError, XcfgError
from xcfg.identity.rollout import REQUIRED, make_rollout, read_rollout, staging_folder, write_rollout
from xcfg.schema.identity import CheckpointRef, SamplingRecord, TokenizerRef

GOLDEN = Path(__file__).parent / "golden"
NONE = CheckpointRef(uri="builtin:none", weight_version=7)


def at(array, index, value):
    changed = array.copy()
    changed[index] = value
    return changed


def test_round_trip_keeps_every_bit(rollout, frozen, tensors):
    back = read_rollout(frozen, sha256=rollout.sha256)
    assert back.manifest == rollout.manifest
    assert back.path == frozen
    assert set(back.tensors) == set(tensors)
    for name, values in tensors.items():
        assert back.tensors[name].dtype == values.dtype
        assert back.tensors[name].tobytes() == values.tobytes()  # also -0.0 and the payload of a NaN


def test_the_name_of_a_rollout_is_the_digest_of_its_manifest_file(rollout, frozen):
    manifest = (frozen / "manifest.json").read_bytes()
    assert rollout.sha256 == hashlib.sha256(manifest).hexdigest()
    data = (frozen / "rollout.safetensors").read_bytes()
    assert json.loads(manifest)["tensors_sha256"] == hashlib.sha256(data).hexdigest()
    assert sorted(path.name for path in frozen.iterdir()) == ["manifest.json", "rollout.safetensors"]


def test_the_ragged_layout_by_hand(rollout):
    assert rollout.sequence_count == 3
    assert [rollout.span(index) for index in range(3)] == [slice(0, 4), slice(4, 5), slice(5, 8)]
    assert rollout.sequence_index().tolist() == [0, 0, 0, 0, 1, 2, 2, 2]
    assert rollout.token_ids[rollout.span(2)].tolist() == [1, 2, 3]
    assert rollout.active.tolist() == [False, False, True, True, False, False, True, True]
    records = [(item.request_id, item.length, item.active_tokens) for item in rollout.manifest.sequences]
    assert records == [("a", 4, 2), ("b", 1, 0), ("c", 3, 2)]
    assert (rollout.manifest.token_count, rollout.manifest.active_count) == (8, 4)


def test_tokens_of_another_weight_version_are_inactive_and_counted(tensors):
    version = np.where(np.arange(8) >= 5, 4, 3)  # the third sequence was sampled after an update
    checkpoint = CheckpointRef(uri="a", weight_version=3)
    mixed = make_rollout({**tensors, "weight_version": version}, checkpoint=checkpoint)
    assert mixed.active.tolist() == [False, False, True, True, False, False, False, False]
    assert (mixed.manifest.active_count, mixed.manifest.inactive_other_version) == (2, 2)
    assert [item.active_tokens for item in mixed.manifest.sequences] == [2, 0, 0]
    whole = make_rollout({**tensors, "weight_version": np.full(8, 3)}, checkpoint=checkpoint)
    assert (whole.manifest.active_count, whole.manifest.inactive_other_version) == (4, 0)


@given(
    lengths=st.lists(st.integers(1, 5), min_size=1, max_size=6),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=40)
def test_any_ragged_rollout_survives(lengths, seed, tmp_path_factory):
    random = np.random.default_rng(seed)
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    total = int(offsets[-1])
    active = random.random(total) < 0.5
    active[offsets[:-1]] = False
    ids = random.integers(0, 2**62, total)
    version = np.where(random.random(total) < 0.9, 7, random.integers(0, 2**31, total))
    rollout = make_rollout(
        {
            "token_ids": ids,
            "offsets": offsets,
            "active_mask": active,
            "attention_mask": active | (random.random(total) < 0.5),
            "position_ids": random.integers(0, 2**40, total),
            "selected_token_ids": np.where(active, ids, -1),
            "segment": random.integers(0, 3, total),
            "weight_version": version,
        },
        checkpoint=NONE,
        sampling=SamplingRecord(temperature=0.7, transform_chain=("temperature:0.7",)),
        tokenizer=TokenizerRef(tokenizer_id="é\u2028"),
    )
    folder = write_rollout(rollout, tmp_path_factory.mktemp("any") / "frozen")
    back = read_rollout(folder, sha256=rollout.sha256)
    assert back.manifest == rollout.manifest
    assert all(np.array_equal(back.tensors[name], values) for name, values in rollout.tensors.items())
    assert (
        sum(int(rollout.active[rollout.span(index)].sum()) for index in range(len(lengths)))
        == (active & (version == 7)).sum()
    )


LOGICAL = {
    "empty": ("offsets", lambda t: np.array([0]), "offsets"),
    "offsets do not start at 0": ("offsets", lambda t: at(t, 0, 1), "offsets"),
    "an empty sequence": ("offsets", lambda t: np.array([0, 4, 4, 8]), "offsets"),
    "offsets fall": ("offsets", lambda t: np.array([0, 5, 4, 8]), "offsets"),
    "offsets end early": ("offsets", lambda t: np.array([0, 4, 5, 7]), "shape"),
    "offsets end late": ("offsets", lambda t: np.array([0, 4, 5, 9]), "shape"),
    "offsets are a matrix": ("offsets", lambda t: t.reshape(2, 2), "offsets"),
    "first position active": ("active_mask", lambda t: at(t, 5, True), "first position"),
    "position 0 active": ("active_mask", lambda t: at(t, 0, True), "first position"),
    "selected id shifted": ("selected_token_ids", lambda t: np.roll(t, 1), "selected_token_ids"),
    "one selected id": ("selected_token_ids", lambda t: at(t, 7, 4), "selected_token_ids"),
    "negative id": ("token_ids", lambda t: at(t, 1, -100), "negative"),
    "hidden active token": ("attention_mask", lambda t: at(t, 3, False), "attention_mask"),
    "short column": ("position_ids", lambda t: t[:-1], "position_ids has shape"),
    "column of rank 2": ("segment", lambda t: t[:, None], "segment has shape"),
    "short recorded": ("recorded_logprob", lambda t: t[:-1], "recorded_logprob has shape"),
}


@pytest.mark.parametrize("case", LOGICAL)
def test_a_logical_fault_is_refused_when_it_is_made_and_when_it_is_read(case, tensors, forge):
    name, change, says = LOGICAL[case]
    tensors[name] = change(tensors[name])
    with pytest.raises(IdentityError, match=says):
        make_rollout(tensors, checkpoint=NONE)
    with pytest.raises(IdentityError, match=says):
        read_rollout(forge(tensors))


def test_an_unselected_id_that_does_not_follow_is_allowed_where_nothing_is_compared(tensors):
    tensors["selected_token_ids"] = at(tensors["selected_token_ids"], [0, 1, 4, 5], -1)
    assert make_rollout(tensors, checkpoint=NONE).manifest.active_count == 4


@pytest.mark.parametrize("name", REQUIRED)
def test_a_missing_tensor_is_refused_and_named(name, tensors, forge):
    del tensors[name]
    with pytest.raises(IdentityError, match=f"{name} is missing"):
        make_rollout(tensors, checkpoint=NONE)
    with pytest.raises(IdentityError, match=f"{name} is missing"):
        read_rollout(forge(tensors))


@pytest.mark.parametrize("name", [*REQUIRED, "recorded_logprob"])
def test_a_wrong_dtype_in_the_file_is_refused_and_named(name, tensors, forge):
    tensors[name] = tensors[name].astype(np.float64)
    with pytest.raises(IdentityError, match=f"{name} is float64"):
        read_rollout(forge(tensors))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("token_ids", 6.5),
        ("token_ids", np.nan),
        ("position_ids", 0.25),
        ("weight_version", 2.0**31),
        ("segment", 300.0),
        ("active_mask", 2.0),
        ("attention_mask", 0.5),
    ],
)
def test_a_cast_that_would_change_a_value_is_refused(name, value, tensors):
    tensors[name] = at(tensors[name].astype(np.float64), 2, value)
    with pytest.raises(IdentityError, match=name):
        make_rollout(tensors, checkpoint=NONE)


def test_a_cast_that_changes_nothing_is_made(tensors, rollout):
    wide = {name: values.astype(np.float64) for name, values in tensors.items()}
    assert make_rollout(wide, checkpoint=NONE, request_ids=["a", "b", "c"]).sha256 == rollout.sha256


@pytest.mark.parametrize("count", [1, 2, 4])
def test_request_ids_name_every_sequence_once(count, tensors):
    with pytest.raises(IdentityError, match=f"{count} request ids for 3 sequences"):
        make_rollout(tensors, checkpoint=NONE, request_ids=["x"] * count)


def test_every_altered_byte_of_the_tensors_is_noticed_without_the_name(frozen):
    file = frozen / "rollout.safetensors"
    data = file.read_bytes()
    for index in range(0, len(data), 7):
        file.write_bytes(data[:index] + bytes([data[index] ^ 1]) + data[index + 1 :])
        with pytest.raises(IdentityError, match="not the file that its manifest names"):
            read_rollout(frozen)


def test_every_altered_byte_of_the_manifest_is_noticed_with_the_name(rollout, frozen):
    file = frozen / "manifest.json"
    data = file.read_bytes()
    for index in range(len(data)):
        file.write_bytes(data[:index] + bytes([data[index] ^ 1]) + data[index + 1 :])
        with pytest.raises(IdentityError, match="has digest"):
            read_rollout(frozen, sha256=rollout.sha256)


def test_another_name_is_refused_and_both_are_shown(rollout, frozen):
    other = "0" * 64
    with pytest.raises(IdentityError, match=f"{rollout.sha256}.*{other}"):
        read_rollout(frozen, sha256=other)


@pytest.mark.parametrize(
    "change",
    [
        {"token_count": 9},
        {"active_count": 3},
        {"sequences": []},
        {"sequences": [{"request_id": "a", "length": 8, "active_tokens": 4}]},
        {
            "sequences": [
                {"request_id": "a", "length": 4, "active_tokens": 1},
                {"request_id": "b", "length": 1, "active_tokens": 1},
                {"request_id": "c", "length": 3, "active_tokens": 2},
            ]
        },
    ],
)
def test_a_manifest_that_counts_otherwise_than_its_tensors_is_refused(change, tensors, forge):
    with pytest.raises(IdentityError, match="counts other sequences"):
        read_rollout(forge(tensors, **change))


def test_a_manifest_of_another_schema_is_refused(tensors, forge):
    with pytest.raises(IdentityError, match=r"frozen_rollout\.v2"):
        read_rollout(forge(tensors, schema_version="xcfg.frozen_rollout.v2"))


def test_a_manifest_with_a_field_of_a_later_version_is_read(tensors, forge, rollout):
    back = read_rollout(forge(tensors, invented_later={"x": 1}))
    assert back.manifest.sequences == rollout.manifest.sequences


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"token_count": 1, "token_count": 2}'])
def test_a_malformed_manifest_is_an_identity_error(text, frozen):
    (frozen / "manifest.json").write_bytes(text)
    with pytest.raises(IdentityError):
        read_rollout(frozen)


@pytest.mark.parametrize("keep", [0, 4, 8, 100, -1])
def test_truncated_tensors_are_refused_even_under_a_matching_digest(keep, frozen, forge):
    with pytest.raises(IdentityError, match="malformed"):
        read_rollout(forge((frozen / "rollout.safetensors").read_bytes()[:keep]))


@pytest.mark.parametrize("dtype", ["BF16", "F8_E4M3", "X9"])
def test_a_dtype_that_numpy_lacks_is_an_identity_error(dtype, forge, safetensors):
    size = 2 if dtype == "BF16" else 1
    header = {"recorded_logprob": {"dtype": dtype, "shape": [4], "data_offsets": [0, 4 * size]}}
    with pytest.raises(IdentityError, match="malformed"):
        read_rollout(forge(safetensors(header, bytes(4 * size))))


@pytest.mark.parametrize("name", ["manifest.json", "rollout.safetensors"])
def test_a_missing_file_is_named(name, frozen):
    (frozen / name).unlink()
    with pytest.raises(IdentityError, match=name):
        read_rollout(frozen)


def test_a_folder_that_is_none_is_refused(frozen, tmp_path):
    for place in (tmp_path / "nowhere", frozen / "manifest.json"):
        with pytest.raises(IdentityError, match="cannot be read"):
            read_rollout(place)


def test_a_link_is_followed_and_what_it_leads_to_is_checked(rollout, frozen, tmp_path, tensors, forge):
    link = tmp_path / "link"
    link.symlink_to(frozen, target_is_directory=True)
    assert read_rollout(link, sha256=rollout.sha256).manifest == rollout.manifest
    other = forge({**tensors, "position_ids": np.arange(8)})
    for name in ("manifest.json", "rollout.safetensors"):
        (frozen / name).unlink()
        (frozen / name).symlink_to(other / name)
    with pytest.raises(IdentityError, match="has digest"):
        read_rollout(link, sha256=rollout.sha256)


def test_a_frozen_rollout_is_never_overwritten_and_nothing_is_left_beside_it(rollout, frozen, tensors):
    other = make_rollout({**tensors, "position_ids": np.arange(8)}, checkpoint=NONE)
    with pytest.raises(OSError):
        write_rollout(other, frozen)
    assert read_rollout(frozen).sha256 == rollout.sha256
    assert [path.name for path in frozen.parent.iterdir()] == ["frozen"]


def test_a_rollout_is_written_through_a_folder_that_was_made_before(rollout, tmp_path):
    with staging_folder(tmp_path / "deep" / "frozen") as staging:
        assert list((tmp_path / "deep").iterdir()) == [staging] and list(staging.iterdir()) == []
        with staging_folder(tmp_path / "deep" / "frozen") as other:
            assert other != staging
        folder = write_rollout(rollout, tmp_path / "deep" / "frozen", staging=staging)
    assert read_rollout(folder, sha256=rollout.sha256).manifest == rollout.manifest
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["frozen"]


def test_a_write_that_fails_leaves_nothing(rollout, tmp_path, monkeypatch):
    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("xcfg.identity.rollout.os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_rollout(rollout, tmp_path / "frozen")
    assert list(tmp_path.iterdir()) == []


def test_the_golden_rollout_still_decodes():
    rollout = read_rollout(GOLDEN, sha256="87fb86ac2797e1d26bd9e8ae23696348d3174a3e51d3874651db654c311b1204")
    assert rollout.token_ids.tolist() == [11, 12, 13, 21, 22, 23, 31, 32, 33, 41, 42, 43]
    assert np.flatnonzero(rollout.active).tolist() == [3, 4, 5, 9, 10, 11]
    assert rollout.manifest.checkpoint.uri == "cpu-smoke:synthetic"


@given(st.binary(max_size=200))
@settings(max_examples=60)
def test_no_content_gets_past_the_tree_of_errors(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("noise")
    manifest = json.loads((GOLDEN / "manifest.json").read_bytes())
    manifest["tensors_sha256"] = hashlib.sha256(data).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(manifest))
    (folder / "rollout.safetensors").write_bytes(data)
    with pytest.raises(XcfgError):
        read_rollout(folder)


@pytest.mark.parametrize("name", ["manifest.json", "rollout.safetensors"])
def test_a_pipe_in_a_rollout_is_refused_and_not_waited_for(rollout, tmp_path, name):
    folder = tmp_path / "rollout"
    write_rollout(rollout, folder)
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(IdentityError, match="not a regular file"):
        read_rollout(folder)
