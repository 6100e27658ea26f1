"""Files without anything to compare say so and what to export; nothing is guessed between two readers."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from xcfg.errors import ArtifactError
from xcfg.flow.compare import compare_dump
from xcfg.flow.dumps import choose_reader

VERL = {"input": "2 + 2?", "output": "four", "gts": "4", "score": 1.0, "step": 3}
DISTILLED = {"content": ["text"], "input_lengths": [5], "idx": 0}
TRL = {"prompt": "2 + 2?", "completion": "four", "reward": 1.0}


@pytest.mark.parametrize("record", [VERL, DISTILLED, TRL])
def test_text_only_is_refused_with_the_way_out(tmp_path, manager, record, layouts):
    path = layouts.jsonl(tmp_path, [record])
    with pytest.raises(ArtifactError, match=r"holds text only .*tokenising text again gives other ids") as caught:
        compare_dump(path, manager)
    assert "xcfg_dumps.capture" in caught.value.hint


class DataProto:
    """Pickles under the name of verl's class."""

    def __reduce__(self):
        return eval, ("1 / 0",)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_pickle_is_not_opened(tmp_path, manager, protocol):
    path = tmp_path / "gen_batch.dp"
    path.write_bytes(pickle.dumps({"a": DataProto(), "b": "verl.protocol"}, protocol=protocol))
    with pytest.raises(ArtifactError, match="bare pickle of a verl DataProto, and opening a pickle runs") as caught:
        compare_dump(path, manager)
    assert "rollout_log_probs" in caught.value.hint


def test_a_safetensors_header_of_640_bytes_is_no_pickle(tmp_path, manager, layouts):
    """0x280 little-endian begins like a pickle of protocol 2."""
    columns = {name: values for name, values in layouts.canonical().items() if name != "sample_id"}
    columns["sample_id"] = np.array([1] * 5 + [2] * 3)
    path = tmp_path / "dump.safetensors"
    for pad in range(800):
        save_file(columns, path, metadata={"x": "y" * pad})
        if path.read_bytes()[:2] == b"\x80\x02":
            break
    assert path.read_bytes()[:2] == b"\x80\x02"
    assert choose_reader(path, manager, None)[0] == "safetensors"


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ({"model": torch.zeros(2)}, "no dump that is known: it holds model"),
        ([1, 2], "no dump that is known: it holds Numbers"),
        ({"x": np.random.default_rng(0)}, "names the global 'numpy.random._pickle"),
    ],
)
def test_other_torch_archives_say_what_they_hold(tmp_path, manager, document, says):
    torch.save(document, tmp_path / "x.pt")
    with pytest.raises(ArtifactError) as caught:
        compare_dump(tmp_path / "x.pt", manager)
    assert says in str(caught.value)


def test_an_old_torch_file_is_a_bare_pickle(tmp_path, manager):
    torch.save({"samples": [1]}, tmp_path / "x.pt", _use_new_zipfile_serialization=False)
    with pytest.raises(ArtifactError, match="not opened"):
        compare_dump(tmp_path / "x.pt", manager)


def test_a_cut_archive_is_called_truncated(tmp_path, manager, layouts):
    path = layouts.slime_rollout(tmp_path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ArtifactError, match=r"looks like a zip archive \(\.pt, \.npz\) that was cut off: \d+ bytes"):
        compare_dump(path, manager)


@pytest.mark.parametrize("data", [b"notes", b"{}", b"[]", b"[{}]", b"null", b"\x80"])
def test_an_unknown_file_lists_what_was_tried(tmp_path, manager, data):
    path = tmp_path / "unknown"
    path.write_bytes(data)
    with pytest.raises(ArtifactError, match="no reader recognises") as caught:
        compare_dump(path, manager)
    for name in ("jsonl", "nemo-rl", "openai", "slime-train", "vllm"):
        assert name in caught.value.hint


def test_an_empty_folder_is_no_dump(tmp_path, manager):
    with pytest.raises(ArtifactError, match="is an empty folder"):
        compare_dump(tmp_path, manager)


def test_a_folder_of_safetensors_shards_is_no_dump(tmp_path, manager, layouts):
    """Failing means that one shard stands for all."""
    columns = {name: values for name, values in layouts.canonical().items() if name != "sample_id"}
    for shard in (1, 2):
        name = f"dump-0000{shard}-of-00002.safetensors"
        save_file(columns | {"sample_id": np.full(8, shard)}, tmp_path / name)
    with pytest.raises(ArtifactError, match="is a folder that no reader knows as a dump; it holds 2 entries"):
        compare_dump(tmp_path, manager)


def test_the_index_of_a_straw_archive_names_its_pool_and_the_export(tmp_path, manager):
    """Keys as vime's RolloutArchive.save writes them."""
    index = {
        "format": "vime.straw-debug",
        "version": 1,
        "rollout_id": 7,
        "evaluation": False,
        "root": "/shared/pool",
        "manifest": {"digest": "0"},
        "storage_owner": "debug:x",
        "sample_metadata": {"version": 1, "samples": []},
    }
    path = tmp_path / "rollout_7.straw.json"
    path.write_text(json.dumps(index, indent=2))
    with pytest.raises(
        ArtifactError, match=r"holds no samples: it is an index \('vime.straw-debug'.*'/shared/pool'"
    ) as caught:
        compare_dump(path, manager)
    assert "export_pt" in caught.value.hint


@pytest.mark.parametrize("folder", [False, True])
def test_logprob_entries_leave_engine_and_position_open(tmp_path, manager, folder):
    """Keys as miles' run_megatron writes them, one file per rank."""
    entry = {"global_position": 0, "token_id": 5, "logprob": -1.0, "is_valid": True}
    payload = {"rank": 0, "tp_size": 1, "cp_size": 1, "pp_size": 1, "logprob_entries": [[entry]]}
    (tmp_path / "rank_0.json").write_text(json.dumps(payload, indent=2))
    with pytest.raises(ArtifactError, match=r"^[\w.]+ does not say which engine scored it"):
        compare_dump(tmp_path if folder else tmp_path / "rank_0.json", manager)


def test_a_policy_loss_dump_is_no_rollout_dump(tmp_path, manager):
    """Layout as miles writes it; failing means that it is taken for a rollout dump."""
    sample = {"index": 0, "total_length": 5, "response_length": 3, "train_log_probs": torch.zeros(3)}
    sample |= {"old_log_probs": torch.zeros(3), "rollout_log_probs": torch.zeros(3)}
    document = {"rank": 0, "call": 0, "samples": [sample], "ppo_kl": torch.zeros(1), "pg_loss": torch.zeros(1)}
    torch.save(document, tmp_path / "rank_0_call_0.pt")
    with pytest.raises(
        ArtifactError, match=r"policy_loss_debug dump of miles: .* no name but their place in a micro-batch"
    ) as caught:
        compare_dump(tmp_path / "rank_0_call_0.pt", manager)
    assert "--save-debug-train-data" in caught.value.hint


def test_a_file_that_two_readers_know_is_ambiguous(tmp_path, manager, layouts):
    """Failing means that the alphabet decides what a file is."""
    record = layouts.nemo_record(0) | layouts.prime_record(0)
    path = tmp_path / "both.jsonl"
    path.write_text(json.dumps(record) + "\n")
    with pytest.raises(ArtifactError, match=r"several readers recognise .*nemo-rl: .*; prime-rl: ") as caught:
        choose_reader(path, manager, None)
    assert "--format NAME" in caught.value.hint
    assert choose_reader(path, manager, "prime-rl")[0] == "prime-rl"
