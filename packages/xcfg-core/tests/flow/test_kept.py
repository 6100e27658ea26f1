"""What --redact leaves can be verified by somebody else: a kept comparison and a frozen rollout, by the commands."""

from __future__ import annotations

import hashlib
import json

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import load_file, save_file
from xcfg.cli.main import cli
from xcfg.errors import ArtifactError, UsageError
from xcfg.identity.rollout import read_rollout
from xcfg.schema.codec import convert, digest, pretty_json, read_strict
from xcfg.schema.kept import KeptComparison

SAMPLES = ("secret-a", "secret-b")
COUNT = 40


@pytest.fixture
def dump(tmp_path):
    """Two samples of 40 tokens, five of them prompt, whose two sides differ by up to 0.05; token ids from 7000."""
    random = np.random.default_rng(0)
    path = tmp_path / "secret-project.jsonl"
    with path.open("w") as stream:
        for sample in SAMPLES:
            for position in range(COUNT):
                value = -float(random.exponential())
                row = {"sample_id": sample, "position": position, "token_id": 7000 + position % 11}
                row |= {"active": position >= 5, "logp_rollout": value, "logp_train": value + random.uniform(-0.05, 0)}
                row |= {"rank": position % 2, "weight_version": 3, "entropy": 1.5}
                stream.write(json.dumps(row) + "\n")
    return path


@pytest.fixture
def xcfg():
    def run(*words):
        return CliRunner().invoke(cli, [str(word) for word in words], catch_exceptions=False)

    return run


@pytest.fixture
def kept(dump, xcfg, tmp_path):
    def make(*more):
        folder = tmp_path / f"kept{''.join(more)}"
        assert xcfg("compare", dump, "--output", folder, *more).exit_code == 3
        return folder

    return make


def seal_again(folder, **changes):
    """Alter kept.json as somebody would who knows how it is sealed."""
    document = read_strict(folder / "kept.json") | changes
    document["files"] = {
        name: hashlib.sha256((folder / name).read_bytes()).hexdigest()
        for name in ("dump.safetensors", "comparison.json")
    }
    document.pop("seal")
    document["seal"] = digest(document)
    (folder / "kept.json").write_bytes(pretty_json(convert(document, KeptComparison)))


def test_a_redacted_comparison_is_kept_and_verified_offline(kept, dump, xcfg):
    """The whole sentence: ids are salted hashes, no text, and verify computes mask and edges again."""
    folder = kept("--redact")
    content = b"".join(file.read_bytes() for file in sorted(folder.iterdir()))
    for name in (*SAMPLES, dump.name, "secret"):
        assert name.encode() not in content
    tensors = load_file(folder / "dump.safetensors")
    assert not {7000 + index for index in range(11)} & set(tensors["token_id"].tolist())
    assert len(set(tensors["token_id"].tolist())) == 11
    dump.unlink()
    done = xcfg("verify", folder)
    assert done.exit_code == 0 and "1 ok, 0 failed" in done.output


def test_redaction_keeps_every_figure_of_the_kept_comparison(kept):
    plain, hidden = (read_strict(kept(*more) / "comparison.json") for more in ((), ("--redact",)))
    for document in (plain, hidden):
        for worst in document["edges"]["training_vs_rollout"]["worst"]:
            worst.pop("token_id")
    assert plain == hidden


@pytest.mark.parametrize("more", [(), ("--redact",)])
@pytest.mark.parametrize("name", ["dump.safetensors", "comparison.json", "kept.json"])
def test_a_flipped_byte_is_named(kept, xcfg, more, name):
    folder = kept(*more)
    data = bytearray((folder / name).read_bytes())
    data[len(data) // 2] ^= 1
    (folder / name).write_bytes(data)
    for options in ((), ("--seals-only",)):
        done = xcfg("verify", folder, *options)
        assert done.exit_code == ArtifactError.exit_code and "0 ok, 1 failed" in done.output


def altered(folder, change, **record):
    tensors = load_file(folder / "dump.safetensors")
    change(tensors)
    save_file(tensors, folder / "dump.safetensors")
    seal_again(folder, **record)


def first_position(tensors):
    tensors["active"][0] = True


def without_value(tensors):
    tensors["logp_train"][10] = np.nan


def one_less(tensors):
    tensors["active"][10] = False


def nearer(tensors):
    tensors["logp_train"][:] = tensors["logp_rollout"]


def another_order(tensors):
    tensors["position"][6] = 2


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (first_position, "the mask marks a first position"),
        (without_value, "the mask marks a token without two finite log probabilities"),
        (one_less, "the mask has other active tokens per sequence than kept.json says, first in sequence [0]"),
        (another_order, "positions do not rise within a sequence"),
        (nearer, "edges.training_vs_rollout"),
        (lambda tensors: tensors.pop("active"), "the column 'active' is missing"),
        (lambda tensors: tensors.update(text=np.zeros(2 * COUNT)), "the column 'text' is none that is kept"),
        (lambda tensors: tensors.update(rank=np.zeros(3, dtype=np.int16)), "the column 'rank' has shape (3,)"),
        (lambda tensors: tensors.update(offsets=np.array([0, 80])), "offsets do not divide the tokens"),
    ],
)
def test_what_is_altered_and_sealed_again_is_found_by_computing_again(kept, xcfg, change, says):
    """Failing means that the seal is all there is, and whoever can seal can make numbers up."""
    folder = kept("--redact")
    altered(folder, change)
    assert xcfg("verify", folder, "--seals-only").exit_code == 0
    done = xcfg("verify", folder)
    assert done.exit_code == ArtifactError.exit_code and says in done.output


def test_a_mask_that_fits_its_count_still_changes_the_figures(kept, xcfg):
    folder = kept("--redact")
    altered(folder, one_less, active_tokens=[34, 35])
    assert "edges.training_vs_rollout.active_tokens: 70, 69" in xcfg("verify", folder).output


def test_a_name_in_a_redacted_record_is_found(kept, xcfg):
    folder = kept("--redact")
    seal_again(folder, sample_ids=["secret-a", "0" * 16])
    assert "says that it is redacted, and a sample id is no hash" in xcfg("verify", folder).output


def test_a_foreign_file_and_another_contract_are_named(kept, xcfg):
    folder = kept()
    (folder / "more.txt").write_text("x")
    assert "foreign: 'more.txt'" in xcfg("verify", folder).output
    (folder / "more.txt").unlink()
    seal_again(folder, contract="0" * 64)
    assert "which this xcfg does not carry" in xcfg("verify", folder).output


def test_evidence_is_never_overwritten(kept, dump, xcfg):
    folder = kept()
    with pytest.raises(UsageError, match="is never overwritten"):
        xcfg("compare", dump, "--output", folder)


def test_nothing_joined_is_nothing_to_keep(dump, xcfg, tmp_path):
    sides = []
    for side, name in (("logp_train", "a"), ("logp_rollout", "b")):
        rows = [json.loads(line) for line in dump.read_text().splitlines()]
        sides.append(tmp_path / f"{name}.jsonl")
        sides[-1].write_text(
            "".join(
                json.dumps({k: v for k, v in row.items() if k != side} | {"sample_id": name}) + "\n"
                for row in rows[:COUNT]
            )
        )
    with pytest.raises(ArtifactError, match="no token was joined"):
        xcfg("compare", *sides, "--output", tmp_path / "kept")
    assert not (tmp_path / "kept").exists()


@pytest.fixture
def frozen(dump, xcfg, tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps({"vocab_size": 9000}))
    save_file({"w": np.zeros((2, 2), dtype=np.float32)}, model / "model.safetensors")
    folder = tmp_path / "frozen"
    done = xcfg("freeze", "--dump", dump, "--checkpoint", model, "--output", folder, "--redact")
    assert done.exit_code == 0, done.output
    return folder


def test_a_redacted_frozen_rollout_is_verified(frozen, xcfg):
    assert b"secret" not in (frozen / "manifest.json").read_bytes()
    done = xcfg("verify", frozen)
    assert done.exit_code == 0 and "1 ok, 0 failed" in done.output


def freeze_again(folder, change):
    """Alter tensors and make the manifest agree, as a hand that knows the format would."""
    tensors = load_file(folder / "rollout.safetensors")
    manifest = read_strict(folder / "manifest.json")
    change(tensors, manifest)
    save_file(tensors, folder / "rollout.safetensors")
    manifest["tensors_sha256"] = hashlib.sha256((folder / "rollout.safetensors").read_bytes()).hexdigest()
    counts = np.add.reduceat(tensors["active_mask"].astype(int), tensors["offsets"][:-1]).tolist()
    for item, count in zip(manifest["sequences"], counts, strict=True):
        item["active_tokens"] = count
    manifest["active_count"] = sum(counts)
    (folder / "manifest.json").write_text(json.dumps(manifest))


def shorter(tensors, _):
    tensors["active_mask"][20] = False


def older(tensors, _):
    tensors["weight_version"][20] = 2


def miscounted(_, manifest):
    manifest["inactive_other_version"] = 4


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (shorter, "active_mask is not what segment and weight_version give at 1 tokens, first 20"),
        (older, "active_mask marks 1 tokens of another weight version"),
        (miscounted, "0 generated tokens are of another weight version, inactive_other_version says 4"),
    ],
)
def test_the_mask_of_a_frozen_rollout_is_computed_again(frozen, xcfg, change, says):
    freeze_again(frozen, change)
    read_rollout(frozen)
    assert xcfg("verify", frozen, "--seals-only").exit_code == 0
    done = xcfg("verify", frozen)
    assert done.exit_code == ArtifactError.exit_code and says in done.output


def test_an_altered_frozen_rollout_fails(frozen, xcfg):
    data = bytearray((frozen / "rollout.safetensors").read_bytes())
    data[-1] ^= 1
    (frozen / "rollout.safetensors").write_bytes(data)
    done = xcfg("verify", frozen)
    assert done.exit_code == ArtifactError.exit_code and "is not the file that its manifest names" in done.output
