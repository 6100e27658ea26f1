"""A store that somebody altered: verification names it, a run does not build on it, nothing in it is executed."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
import xcfg
from xcfg.artifacts.checking import Context
from xcfg.artifacts.ended import is_record
from xcfg.artifacts.store import Store
from xcfg.errors import XcfgError


def flip(file: Path) -> None:
    """Flip one bit in the middle of a file, in place, as a disk would; an empty file gets a byte. Twice: as before."""
    os.chmod(file, 0o644)
    if file.stat().st_size < 2:
        file.write_bytes(b"" if file.read_bytes() else b"x")
        return
    with file.open("r+b") as stream:
        middle = file.stat().st_size // 2
        stream.seek(middle)
        byte = stream.read(1)[0]
        stream.seek(middle)
        stream.write(bytes([byte ^ 1]))


def failing(root: Path, *, seals_only: bool = True) -> dict[str, str]:
    """What verify does not accept: path -> reasons."""
    checks = xcfg.verify(root, seals_only=seals_only).attempts
    return {check.path: "; ".join(check.reasons) for check in checks if not check.ok}


def test_a_lie_that_is_sealed_consistently(copied, lab, reseal, replace):
    """Failing means that a comparison can be altered by whoever can compute a hash."""
    file = copied.attempt / "comparison.json"
    document = json.loads(file.read_text())
    document["edges"]["training_vs_rollout"]["max_abs"] = 1e-9
    document["edges"]["training_vs_rollout"]["mean_abs"] = 1e-10
    replace(file, (json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode())
    reseal(copied.attempt)
    assert lab.xcfg("verify", copied.root, "--seals-only").code == 0, "the seal itself is not consistent: test the test"
    done = lab.xcfg("verify", copied.root, "--json")
    bad = [line for line in done.document["attempts"] if not line["ok"]]
    assert done.code == 3
    assert [line["path"] for line in bad] == [str(copied.attempt)]
    assert "max_abs" in " ".join(bad[0]["reasons"]) and "mean_abs" in " ".join(bad[0]["reasons"])


def test_a_verdict_that_is_turned_and_sealed(copied, lab, reseal, replace):
    """Failing means that MISMATCH can be made of PASS, or the other way round, without a trace."""
    file = copied.attempt / "comparison.json"
    document = json.loads(file.read_text())
    document["status"], document["reason"] = "MISMATCH", "1 of 120 active tokens differ"
    replace(file, json.dumps(document).encode())
    reseal(copied.attempt, status="MISMATCH")
    bad = failing(copied.root, seals_only=False)
    assert list(bad) == [str(copied.attempt)] and "status" in bad[str(copied.attempt)]
    assert failing(copied.root) == {}


def test_a_flipped_bit_in_every_file(copied, record_property):
    """Failing means that a file of a real run can rot, or be altered, and still be believed."""
    store = Store(copied.root, "clean")
    files = sorted(path for path in copied.root.rglob("*") if path.is_file())
    assert len(files) > 60
    cases = {case: len(store.attempts(case).valid) for case in store.case_ids()}
    assert set(cases.values()) == {1}
    for file in files:
        flip(file)
        bad = failing(copied.root)
        inode = file.stat().st_ino
        holders = {str(other.parent) for other in files if other.stat().st_ino == inode}
        own = {str(file)} | holders
        named = {path for path, reasons in bad.items() if path in own or file.name in reasons}
        assert named, f"{file.relative_to(copied.root)}: verify says {bad}"
        assert not_reused(store, file), f"{file.relative_to(copied.root)} is reused"
        flip(file)
    assert failing(copied.root, seals_only=False) == {}
    record_property("files", len(files))
    print(f"{len(files)} files, one bit flipped in each")


def not_reused(store: Store, file: Path) -> bool:
    """Whether a run that starts now would not build on `file`: it asks the store with these very calls."""
    place = file.parent.parent.name
    fresh = Store(store.folder.parent, store.folder.name)
    if file.parent.name == "ended":  # no run builds on it; it only says what there was
        return not is_record(store.folder, file.name)
    if file.parent.name == "analysis":  # as above; the same analysis is stored anew beside the altered one
        return bool(Context(store.folder).analysis_faults(file.name))
    if place == "scores":
        return fresh.find_score(file.parent.name) is None
    if place == "rollouts":
        return fresh.find_rollout(file.parent.name) is None
    if file.parent.parent.parent.name == "cases":
        return fresh.attempts(place).valid == ()
    return all(fresh.attempts(case).valid == () for case in fresh.case_ids())


def test_a_run_goes_around_what_was_altered(copied, lab, reseal, replace, tmp_path):
    """Failing means that a resumed run trusts a rotten score, or executes what lies in a tensor file."""
    import torch

    canary = tmp_path / "executed"

    class Bomb:
        def __reduce__(self):
            return os.system, (f"touch {canary}",)

    bomb = tmp_path / "bomb.pt"
    torch.save({"schema_version": "xcfg.tensors.v1", "columns": {"selected_logprob": Bomb()}, "meta": {}}, bomb)
    labels = {case["label"]: case for case in copied.done.document["cases"]}
    attempts = {label: lab.attempt(copied.root, case) for label, case in labels.items()}
    seal = json.loads((attempts["training.attention_backend=eager"] / "COMPLETE").read_text())
    score = copied.root / "clean" / "scores" / seal["scores"]["training"]
    for file in (score / "score.pt", attempts["training.attention_backend=eager"] / "score_training.pt"):
        replace(file, bomb.read_bytes())
        reseal(file.parent)
    flip(attempts["baseline"] / "score_training.pt")
    assert failing(copied.root, seals_only=True).keys() >= {str(attempts["baseline"])}
    checked = lab.xcfg("verify", copied.root)
    assert checked.code == 3 and "nothing of it was executed" in checked.stdout
    done = lab.run(copied.experiment, copied.root)
    assert (done.code, set(done.statuses.values())) == (0, {"PASS"})
    resumed = {case["label"]: case["resumed"] for case in done.document["cases"]}
    assert resumed == {"baseline": False, "training.attention_backend=eager": False, "training.sharding=fsdp": True}
    for label, case in ((case["label"], case) for case in done.document["cases"]):
        assert case["edges"] == labels[label]["edges"], "the scores of before come out again"
    assert not canary.exists()
    bad = failing(copied.root, seals_only=False)
    assert str(attempts["training.attention_backend=eager"]) in bad, "what was altered stays named"
    good = {str(lab.attempt(copied.root, case)) for case in done.document["cases"]}
    assert not good & set(bad)


def test_what_a_killed_run_left_is_a_note(copied, lab):
    """Failing means that a store cannot be verified any more once a run was killed while it wrote an attempt."""
    left = copied.attempt.with_name(".tmp-attempt-1234-0123456789ab")
    shutil.copytree(copied.attempt, left)
    (left / "COMPLETE").unlink()
    done = lab.xcfg("verify", copied.root, "--json")
    line = next(item for item in done.document["attempts"] if item["path"] == str(left))
    assert done.code == 0 and line["ok"] and "left over" in line["reasons"][0]


def test_a_pickle_is_never_loaded(lab, tmp_path):
    """Failing means that reading a dump can run somebody else's program."""
    import torch

    canary, dump = tmp_path / "executed", tmp_path / "dump.pt"

    class Bomb:
        def __reduce__(self):
            return os.system, (f"touch {canary}",)

    torch.save({"rollout_logprobs": Bomb()}, dump)
    done = lab.xcfg("compare", dump)
    assert done.code in (2, 3) and done.stderr.startswith("xcfg: ")
    assert not canary.exists()


@pytest.mark.parametrize("name", ["../evil", "..", "a/b", "/tmp/evil", ".hidden", "evil\n", "", "x" * 200])
def test_an_experiment_id_is_one_path_component(lab, tmp_path, name):
    """Failing means that an experiment file from somebody else chooses where to write."""
    file = lab.smoke(tmp_path / "inside" / "exp.json", experiment_id=name)
    before = set(tmp_path.rglob("*"))
    with pytest.raises(XcfgError) as caught:
        xcfg.run(
            file, rollout="cpu-smoke", training="cpu-smoke", allow_smoke=True, output_root=tmp_path / "inside/runs"
        )
    assert caught.value.exit_code == 2 and "experiment_id" in str(caught.value)
    assert set(tmp_path.rglob("*")) == before


def test_a_path_in_the_identity_reads_only_what_its_digest_names(lab, frozen, tmp_path):
    """Failing means that an identity can be pointed at other tokens than those it names."""
    file = lab.experiment(tmp_path / "deep" / "exp.json", frozen)
    document = json.loads(file.read_text())
    other = shutil.copytree(frozen, tmp_path / "other")
    manifest = json.loads((other / "manifest.json").read_text())
    (other / "manifest.json").write_text(json.dumps({**manifest, "pre_update_state": "another"}))
    (tmp_path / "link").symlink_to(other)
    for path, said in (("../other", "has digest"), ("../link", "has digest"), ("../../../../../etc", "cannot be read")):
        document["identity"]["rollout"]["path"] = path
        file.write_text(json.dumps(document))
        done = lab.xcfg("run", file, "--output-root", tmp_path / "runs")
        assert done.code == 3 and said in done.stderr, done.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("place", ["rollouts/{rollout}", "cases/{case}", "cases", "scores"])
def test_a_symbolic_link_in_the_store_is_not_followed(lab, tmp_path, place):
    """Failing means that a store from somebody else makes a run write, or read, elsewhere."""
    smoke = ("--runtime", "cpu-smoke", "--allow-smoke-operators")
    experiment, root = lab.smoke(tmp_path / "s0.json"), tmp_path / "runs"
    first = lab.run(experiment, root, *smoke)
    rollout = next((root / "s0" / "rollouts").iterdir()).name
    linked = root / "s0" / place.format(case=first.case()["case_id"], rollout=rollout)
    elsewhere = tmp_path / "elsewhere"
    linked.rename(elsewhere)
    linked.symlink_to(elsewhere)
    before = lab.files(elsewhere)
    checked = lab.xcfg("verify", root)
    assert checked.code == 3 and str(linked) in checked.stdout, checked.stdout
    assert "symbolic link" in checked.stdout
    done = lab.run(experiment, root, *smoke)
    assert lab.files(elsewhere) == before, "something was written behind the link"
    assert done.code in (0, 3)
    if done.code == 3:
        assert "symbolic link" in done.stdout + done.stderr, done.stderr
    if place == "cases/{case}":
        assert [case["status"] for case in done.document["cases"]] == ["INVALID_ARTIFACT", "PASS"]


def test_cases_that_were_deleted(copied, lab):
    """Failing means that the evidence of a run can be taken away and `xcfg verify` calls the rest ok."""
    cases = [path for path in (copied.root / "clean" / "cases").iterdir() if path.is_dir()]
    for case in cases:
        shutil.rmtree(case)
    done = lab.xcfg("verify", copied.root)
    assert done.code == 3 and done.stdout.count("sealed and is gone") == len(cases) >= 2
    shutil.rmtree(copied.root / "clean" / "ended")
    done = lab.xcfg("verify", copied.root)
    assert done.code == 130 and f"{len(cases)} planned cases never ended" in done.stdout
