"""The commands over dumps: two files, redacted output, and a dump in place of prompts."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner
from xcfg.cli.main import cli
from xcfg.dumps import collect_rows
from xcfg.errors import ArtifactError, IdentityError
from xcfg.flow.compare import compare_dump
from xcfg.flow.dumps import Part, open_dump
from xcfg.flow.freeze_dump import FreezeDumpOptions, freeze_dump
from xcfg.identity.checkpoint import checkpoint_digest
from xcfg.identity.rollout import make_rollout, read_rollout, write_rollout
from xcfg.schema.identity import CheckpointRef, TokenizerRef

ROLLOUT = [
    {"sample_id": "secret-a", "position": 0, "token_id": 11, "active": False, "logp_rollout": None},
    {"sample_id": "secret-a", "position": 1, "token_id": 12, "active": True, "logp_rollout": -1.0},
    {"sample_id": "secret-a", "position": 2, "token_id": 12, "active": True, "logp_rollout": -2.0},
]
TRAIN = [{**{k: v for k, v in row.items() if k != "logp_rollout"}, "logp_train": None} for row in ROLLOUT]
TRAIN[1]["logp_train"], TRAIN[2]["logp_train"] = -1.5, -2.0


@pytest.fixture
def files(tmp_path):
    def write(rollout=ROLLOUT, train=TRAIN):
        for name, rows in (("secret-rollout", rollout), ("secret-train", train)):
            (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return tmp_path / "secret-rollout.jsonl", tmp_path / "secret-train.jsonl"

    return write


@pytest.fixture
def xcfg():
    def run(*words):
        return CliRunner().invoke(cli, [str(word) for word in words], catch_exceptions=False)

    return run


@pytest.mark.parametrize("swapped", [False, True])
def test_two_files_are_compared_in_either_order(files, manager, swapped):
    first, second = files()[::-1] if swapped else files()
    summary, comparison = compare_dump(first, manager, other=second)
    edge = comparison.edges["training_vs_rollout"]
    assert (edge.active_tokens, edge.max_abs, edge.bias) == (2, 0.5, -0.25)
    assert (comparison.status, summary.exit_code) == ("UNOBSERVABLE", 3)
    label = summary.cases[0].label
    assert "secret-rollout.jsonl" in label and "secret-train.jsonl" in label and "samples 1, tokens 3" in label


def test_nothing_in_common_is_empty_join_with_exit_3(files, manager):
    first, second = files(train=[{**row, "sample_id": "other"} for row in TRAIN])
    summary, comparison = compare_dump(first, manager, other=second)
    assert (comparison.status, summary.exit_code, comparison.edges) == ("EMPTY_JOIN", 3, {})
    assert "'secret-a', position 0" in comparison.reason and "'other', position 0" in comparison.reason


def test_a_sample_that_one_file_lacks_is_said(files, manager):
    more = [*ROLLOUT, {**ROLLOUT[1], "sample_id": "b"}]
    label = compare_dump(files(more)[0], manager, other=files(more)[1])[0].cases[0].label
    assert "1 only in secret-rollout.jsonl ('b')" in label


def test_one_side_alone_names_the_other(files, manager):
    with pytest.raises(ArtifactError, match="the training side is missing") as caught:
        compare_dump(files()[0], manager)
    assert "xcfg compare ROLLOUT TRAIN" in caught.value.hint


def test_a_file_twice_is_refused(files, manager):
    with pytest.raises(ArtifactError, match="both hold the rollout side"):
        compare_dump(files()[0], manager, other=files()[0])


def test_the_command_prints_the_join(files, xcfg):
    done = xcfg("compare", *files())
    assert done.exit_code == 3
    assert "samples 1, tokens 3" in done.output and "max 0.5" in done.output
    document = json.loads(xcfg("compare", *files(), "--json").output)
    assert document["cases"][0]["edges"]["training_vs_rollout"]["max_abs"] == 0.5


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_redacted_output_names_no_sample_no_token_and_no_file(files, xcfg, form):
    """Failing means that a report which was meant to be shared shows what the prompt was."""
    plain, hidden = (xcfg("compare", *files(), *form, *more) for more in ((), ("--redact",)))
    assert "secret" in plain.output
    assert "secret" not in hidden.output
    assert "token 12:" not in hidden.output
    assert plain.exit_code == hidden.exit_code == 3
    assert hidden.output.count("0.5") == plain.output.count("0.5")


def test_a_redacted_empty_join_shows_no_key(files, xcfg):
    first, second = files(train=[{**row, "sample_id": "other"} for row in TRAIN])
    done = xcfg("compare", first, second, "--redact")
    assert done.exit_code == 3 and "EMPTY_JOIN" in done.output
    assert "secret" not in done.output and "other" not in done.output


def test_a_redacted_dump_keeps_mask_and_values(files, manager):
    plain, hidden = (open_dump(files()[0], manager, other=files()[1], redacted=flag).table for flag in (False, True))
    np.testing.assert_array_equal(plain.active, hidden.active)
    np.testing.assert_array_equal(plain.training, hidden.training)
    assert hidden.token_ids[1] == hidden.token_ids[2] != 12
    assert hidden.sources == ("the rollout file", "the training file")


@pytest.fixture
def checkpoint(tmp_path):
    from safetensors.numpy import save_file

    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"vocab_size": 50}))
    save_file({"w": np.zeros((2, 2), dtype=np.float32)}, folder / "model.safetensors")
    return folder


def test_a_dump_is_frozen_with_the_digest_of_its_checkpoint(files, manager, checkpoint, tmp_path):
    rollout, train = files()
    written = freeze_dump(manager, FreezeDumpOptions(str(checkpoint), rollout, tmp_path / "f", train=train))
    back = read_rollout(tmp_path / "f", sha256=written.sha256)
    assert back.token_ids.tolist() == [11, 12, 12]
    np.testing.assert_array_equal(back.tensors["recorded_logprob"], np.float32([np.nan, -1.0, -2.0]))
    np.testing.assert_array_equal(back.tensors["recorded_training_logprob"], np.float32([np.nan, -1.5, -2.0]))
    assert back.manifest.checkpoint.digest and "unattested" in back.manifest.sampling.extra


def frozen_from(tmp_path, **named):
    """A frozen rollout as a dump; it says that it was made from `named`."""
    rows = make_rollout(
        {
            "token_ids": np.array([11, 12, 12]),
            "offsets": np.array([0, 3]),
            "active_mask": np.array([False, True, True]),
            "attention_mask": np.ones(3, dtype=np.bool_),
            "position_ids": np.arange(3),
            "selected_token_ids": np.array([11, 12, 12]),
            "segment": np.array([0, 1, 1]),
            "weight_version": np.zeros(3),
            "recorded_logprob": np.float32([np.nan, -1.0, -2.0]),
        },
        **named,
    )
    return write_rollout(rows, tmp_path / "earlier")


def as_dump(path, monkeypatch):
    """Read the folder as xcfg-dumps does, which core does not know: its rows are those of ROLLOUT."""
    rows = collect_rows(
        [{name: np.array([row[name] for row in ROLLOUT], dtype=kind) for name, kind in COLUMNS.items()}]
    )
    monkeypatch.setattr("xcfg.flow.freeze_dump.open_part", lambda *_, **__: Part(path, "frozen", "named", rows))


COLUMNS = {"sample_id": str, "position": int, "token_id": int, "active": bool, "logp_rollout": float}


@pytest.mark.parametrize("what", ["weights", "tokenizer"])
def test_a_frozen_rollout_is_not_relabelled_to_another_checkpoint(what, manager, checkpoint, tmp_path, monkeypatch):
    """Failing means that tokens of one model are scored as if another had sampled them, and nobody is told."""
    (checkpoint / "tokenizer.json").write_text("{}")
    other = "0" * 64
    named = {
        "checkpoint": CheckpointRef(uri="models/other", digest=other if what == "weights" else ""),
        "tokenizer": TokenizerRef(digest=other if what == "tokenizer" else ""),
    }
    folder = frozen_from(tmp_path, **named)
    as_dump(folder, monkeypatch)
    with pytest.raises(IdentityError) as error:
        freeze_dump(manager, FreezeDumpOptions(str(checkpoint), folder, tmp_path / "f"))
    assert f"'models/other', whose {what} have digest 0000000000000000…" in error.value.message
    assert not (tmp_path / "f").exists()


def test_a_frozen_rollout_of_the_same_checkpoint_is_frozen_again(manager, checkpoint, tmp_path, monkeypatch):
    named = CheckpointRef(uri="elsewhere", digest=checkpoint_digest(checkpoint))
    folder = frozen_from(tmp_path, checkpoint=named)
    as_dump(folder, monkeypatch)
    written = freeze_dump(manager, FreezeDumpOptions(str(checkpoint), folder, tmp_path / "f"))
    assert written.manifest.checkpoint.digest == named.digest
    assert not any("digest" in remark for remark in written.manifest.generator["remarks"])


def test_a_checkpoint_named_without_a_digest_is_said(manager, checkpoint, tmp_path, monkeypatch):
    folder = frozen_from(tmp_path, checkpoint=CheckpointRef(uri="models/actor"))
    as_dump(folder, monkeypatch)
    written = freeze_dump(manager, FreezeDumpOptions(str(checkpoint), folder, tmp_path / "f"))
    (said,) = [remark for remark in written.manifest.generator["remarks"] if "without a digest" in remark]
    assert "'models/actor'" in said


def test_one_side_is_enough_to_freeze(files, xcfg, checkpoint, tmp_path):
    done = xcfg("freeze", "--dump", files()[0], "--checkpoint", checkpoint, "--output", tmp_path / "f", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.output)["active_tokens"] == 2
    tensors = read_rollout(tmp_path / "f").tensors
    assert "recorded_logprob" in tensors and "recorded_training_logprob" not in tensors


LEFT = [{**ROLLOUT[index], "sample_id": name} for name in ("b", "c") for index in (0, 1)]


def test_what_two_files_do_not_share_is_counted_in_print_document_and_manifest(files, xcfg, checkpoint, tmp_path):
    """Failing means that half of a rollout can be missing from what is frozen, and nobody is told."""
    train = [*TRAIN, {**TRAIN[1], "sample_id": "d"}]
    train[2] = {**train[2], "active": False}
    rollout, training = files([*ROLLOUT, *LEFT], train)
    words = ("freeze", "--dump", rollout, "--train", training, "--checkpoint", checkpoint, "--output")
    done = xcfg(*words, tmp_path / "f")
    assert done.exit_code == 0, done.output
    assert "not joined: 2 samples, 4 tokens only in the rollout file" in done.output
    assert "not joined: 1 samples, 1 tokens only in the training file" in done.output
    assert "1 tokens are not active, since only one of the two files calls them so" in done.output
    expected = {
        "samples": 1,
        "tokens": 3,
        "only_rollout": {"samples": 2, "tokens": 4},
        "only_training": {"samples": 1, "tokens": 1},
        "active_in_one": 1,
    }
    assert read_rollout(tmp_path / "f").manifest.generator["joined"] == expected
    assert json.loads(xcfg(*words, tmp_path / "g", "--json").output)["joined"] == expected
    label = xcfg("compare", rollout, training).output
    assert "2 only in secret-rollout.jsonl ('b', 'c'), tokens 4" in label
    assert "not compared, since only one file calls them active: tokens 1" in label


def test_files_that_share_everything_say_nothing(files, xcfg, checkpoint, tmp_path):
    rollout, training = files()
    done = xcfg(
        "freeze", "--dump", rollout, "--train", training, "--checkpoint", checkpoint, "--output", tmp_path / "f"
    )
    assert done.exit_code == 0 and "not joined" not in done.output


def test_redacted_request_ids_are_hashes_and_the_mask_stands(files, xcfg, checkpoint, tmp_path):
    words = ("freeze", "--dump", files()[0], "--checkpoint", checkpoint, "--output", tmp_path / "f", "--redact")
    assert xcfg(*words).exit_code == 0
    assert "secret" not in (tmp_path / "f" / "manifest.json").read_text()
    assert read_rollout(tmp_path / "f").active.tolist() == [False, True, True]


def test_tokens_outside_the_vocabulary_are_refused(files, manager, checkpoint, tmp_path):
    rows = [{**row, "token_id": row["token_id"] + 40} for row in ROLLOUT]
    with pytest.raises(Exception, match=r"token id 52, and .* has a vocabulary of 50"):
        freeze_dump(manager, FreezeDumpOptions(str(checkpoint), files(rows)[0], tmp_path / "f"))
    assert not (tmp_path / "f").exists()


def test_a_config_of_another_model_is_refused(files, xcfg, checkpoint, tmp_path):
    """Failing means that a journey starts with a config.json that is not that of the weights."""
    from safetensors.numpy import save_file

    (checkpoint / "config.json").write_text(json.dumps({"vocab_size": 50, "num_hidden_layers": 1}))
    layers = {f"model.layers.{number}.w": np.zeros(1, dtype=np.float32) for number in range(2)}
    save_file(layers, checkpoint / "model.safetensors")
    words = ("freeze", "--dump", files()[0], "--checkpoint", checkpoint, "--output", tmp_path / "f")
    with pytest.raises(IdentityError, match="num_hidden_layers is 1, and the weights have 2 layers"):
        xcfg(*words)
    assert not (tmp_path / "f").exists()


def test_a_checkpoint_that_is_not_there_is_refused(files, manager, tmp_path):
    with pytest.raises(IdentityError, match="is no folder here"):
        freeze_dump(manager, FreezeDumpOptions("nowhere", files()[0], tmp_path / "f"))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "there is nothing to freeze"),
        (("--dump", "x", "--temperature", "0.5"), "--temperature means nothing beside --dump"),
        (("--dump", "x", "--prompts", "y"), "--prompts means nothing beside --dump"),
        (("--prompts", "y", "--redact"), "--redact means nothing beside --prompts"),
        (("--prompts", "y", "--weight-version", "1"), "--weight-version means nothing beside --prompts"),
    ],
)
def test_options_of_the_other_kind_are_refused(xcfg, tmp_path, words, says):
    from xcfg.errors import UsageError

    with pytest.raises(UsageError, match=says):
        xcfg("freeze", "--checkpoint", "m", "--output", tmp_path / "f", *words)
