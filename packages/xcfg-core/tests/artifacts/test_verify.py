"""check_seals: nothing altered, missing, foreign or misplaced gets by; nothing hangs; no torch is needed."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from xcfg.artifacts import reading, seals
from xcfg.artifacts.seals import closed, decode_seal
from xcfg.artifacts.store import Store
from xcfg.artifacts.verify import check_seals
from xcfg.errors import ArtifactError, NothingSelectedError, UsageError
from xcfg.schema.attempt import CaseSeal, ExperimentRecord, ScoreSeal
from xcfg.schema.codec import decode_json, digest, evolve, pretty_json

GOLDEN = Path(__file__).parent / "golden"


def bad(path: Path) -> dict[str, tuple[str, ...]]:
    """The faults under `path`: path relative to it -> reasons."""
    return {os.path.relpath(check.path, path): check.reasons for check in check_seals(path) if not check.ok}


def attempt_of(run: Store, sample) -> Path:
    return run.folder / "cases" / sample.CASE / "attempt-0001"


# --- a good store --------------------------------------------------------------------------------------


def test_every_kind_of_entry_is_listed_and_ok(run, sample):
    checks = check_seals(run.folder)
    assert all(check.ok and check.reasons == () for check in checks)
    (analysis,) = (run.folder / "analysis").iterdir()
    (ended,) = (run.folder / "ended").iterdir()
    assert [os.path.relpath(check.path, run.folder) for check in checks] == [
        "experiment.json",
        "experiment-2.json",
        f"rollouts/{sample.rollout().sha256}",
        "scores/decode",
        "scores/train",
        f"cases/{sample.CASE}/attempt-0001",
        f"cases/{sample.OTHER}/attempt-0001",
        f"analysis/{analysis.name}",
        f"ended/{ended.name}",
    ]


def test_a_root_an_experiment_a_case_an_attempt_a_score_a_rollout(run, sample):
    other = Store(run.folder.parent, "second")
    sample.whole_run(other)
    whole = len(check_seals(run.folder))
    assert len(check_seals(run.folder.parent)) == 2 * whole
    attempt = attempt_of(run, sample)
    for path in (attempt.parent, attempt, run.folder / "scores" / "train"):
        (check,) = check_seals(path)
        assert check.ok and check.reasons == ()
    with pytest.raises(NothingSelectedError):
        check_seals(run.folder / "rollouts" / sample.rollout().sha256)


def test_a_relative_path_is_looked_at_in_its_surroundings(run, sample, monkeypatch, flip):
    attempt = attempt_of(run, sample)
    monkeypatch.chdir(attempt)
    assert check_seals(Path())[0].reasons == ()
    monkeypatch.chdir(run.folder)
    assert all(check.ok for check in check_seals(Path()))
    flip(run.folder / "plan.jsonl", 3)
    monkeypatch.chdir(attempt)
    assert not check_seals(Path())[0].ok


def test_an_attempt_that_stands_alone_says_what_was_not_checked(run, sample, tmp_path, flip):
    for path in (attempt_of(run, sample), run.folder / "scores" / "train"):
        alone = tmp_path / path.name
        shutil.copytree(path, alone)
        (check,) = check_seals(alone)
        assert check.ok and "stands alone" in check.reasons[0]
        flip(next(alone.glob("*.pt")), 1)
        assert not check_seals(alone)[0].ok


def test_nothing_to_check_is_no_success(tmp_path, store, sample):
    with pytest.raises(UsageError):
        check_seals(tmp_path / "absent")
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError):
        check_seals(tmp_path / "file")
    with pytest.raises(NothingSelectedError):
        check_seals(tmp_path)
    sample.open_demo(store)
    with pytest.raises(NothingSelectedError):
        check_seals(store.folder)


def test_no_torch_is_imported(run):
    code = (
        "import sys; from pathlib import Path; from xcfg.artifacts.verify import check_seals;"
        "from xcfg.artifacts.store import Store; import xcfg.artifacts.tensors;"
        "assert all(check.ok for check in check_seals(Path(sys.argv[1]))); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, run.folder], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


# --- altered bytes -------------------------------------------------------------------------------------


def test_a_flipped_byte_in_any_file_is_found(run, sample, flip):
    # Hard links: a flip in a score also shows in the case that holds it, and the other way round.
    files = sorted(path for path in run.folder.rglob("*") if path.is_file())
    assert len(files) > 30
    for path in files:
        size = path.stat().st_size
        for index in sorted({0, size // 2, size - 1}):
            flip(path, index)
            found = bad(run.folder)
            flip(path, index)
            inside = os.path.relpath(path, run.folder)
            expected = inside.replace("plan", "experiment").removesuffix("l") if "plan" in inside else inside
            assert any(expected.startswith(entry) or entry == inside for entry in found), (
                inside,
                index,
                found,
            )
    assert bad(run.folder) == {}


def test_a_flipped_bit_anywhere_in_complete_is_found(run, sample):
    for path, kind in ((attempt_of(run, sample), CaseSeal), (run.folder / "scores" / "train", ScoreSeal)):
        data = (path / "COMPLETE").read_bytes()
        decode_seal(data, kind)
        for index in range(len(data)):
            for bit in (1, 0x20, 0x80):
                changed = bytearray(data)
                changed[index] ^= bit
                with pytest.raises(ArtifactError):
                    decode_seal(bytes(changed), kind)


@pytest.mark.parametrize("change", ["truncate", "extend", "empty", "remove"])
def test_a_payload_of_another_length_is_found(run, sample, change):
    attempt = attempt_of(run, sample)
    for path in sorted(attempt.iterdir()):
        data = path.read_bytes()
        path.unlink()
        if change != "remove":
            path.write_bytes({"truncate": data[:-1], "extend": data + b"\0", "empty": b""}[change])
        found = bad(run.folder)
        path.unlink(missing_ok=True)
        path.write_bytes(data)
        assert list(found) == [os.path.relpath(attempt, run.folder)]
        (text, *_) = found[os.path.relpath(attempt, run.folder)]
        assert path.name in text
    assert bad(run.folder) == {}


def reseal(folder: Path, **changes) -> None:
    """Write a COMPLETE with other facts and a correct seal of its own, as a forger would."""
    seal = decode_seal((folder / "COMPLETE").read_bytes(), CaseSeal)
    (folder / "COMPLETE").unlink()
    (folder / "COMPLETE").write_bytes(pretty_json(closed(evolve(seal, **changes))))


def test_a_resealed_attempt_must_still_fit_its_surroundings(run, sample):
    attempt = attempt_of(run, sample)
    original = (attempt / "COMPLETE").read_bytes()
    seal = decode_seal(original, CaseSeal)
    forgeries = {
        "says status 'MISMATCH', COMPLETE says 'PASS'": {"status": "PASS"},
        "unknown status": {"status": "FINE"},
        "COMPLETE says 'EXPLAINED_BY_PRECISION'": {"assessment": "EXPLAINED_BY_PRECISION"},
        "is no revision in this folder": {"experiment": "0" * 64},
        "is not in the plan": {"plan_line": "0" * 64},
        "is missing or altered": {"rollout": "0" * 64},
        "says contract": {"contract": "0" * 64},
        "misplaced": {"attempt_id": "attempt-0002"},
        "is no copy of the score": {"scores": {"training": "decode", "rollout_decode": "train"}},
        "requires token_diffs.pt": {"files": {k: v for k, v in seal.files.items() if k != "token_diffs.pt"}},
        "is no payload name": {"files": seal.files | {"../../../experiment.json": "0" * 64}},
        "is no SHA-256": {"files": seal.files | {"actual.json": "0" * 63}},
        "schema_version": {"schema_version": "xcfg.case_seal.v2"},
    }
    for text, changes in forgeries.items():
        reseal(attempt, **changes)
        reasons = bad(run.folder)[os.path.relpath(attempt, run.folder)]
        (attempt / "COMPLETE").write_bytes(original)
        assert any(text in reason for reason in reasons), (text, reasons)
        assert run.attempts(sample.CASE).rejected == ()
    reseal(attempt)
    assert (attempt / "COMPLETE").read_bytes() == original, "an honest reseal is the same file"


def test_an_attempt_under_another_name_is_misplaced(run, sample):
    attempt = attempt_of(run, sample)
    shutil.copytree(attempt, attempt.parent / "attempt-0002")
    shutil.copytree(attempt, run.folder / "cases" / sample.OTHER / "attempt-0007")
    shutil.copytree(run.folder / "scores" / "train", run.folder / "scores" / "stolen")
    found = bad(run.folder)
    assert sorted(found) == [
        f"cases/{sample.CASE}/attempt-0002", f"cases/{sample.OTHER}/attempt-0007", "scores/stolen",
    ]  # fmt: skip
    assert all("misplaced" in " ".join(reasons) for reasons in found.values())
    assert [entry.path.name for entry in run.attempts(sample.CASE).valid] == ["attempt-0001"]


def test_a_lost_score_does_not_spoil_the_case_that_holds_its_copy(run, sample):
    shutil.rmtree(run.folder / "scores" / "train")
    assert bad(run.folder) == {}
    assert len(run.attempts(sample.CASE).valid) == 1


def test_a_score_that_rotted_and_was_scored_again_leaves_the_older_copy_valid(run, sample):
    (attempt,) = run.attempts(sample.CASE).valid
    old = run.find_score("train")
    data = old.read("score.pt")
    old.score.unlink()
    old.score.write_bytes(data[:-1])  # a new inode: the copy in the case keeps its bytes
    again = run.put_score(sample.score_facts("train", "training"), sample.score_files("changed"))
    assert again.path.name == "train.r2"
    assert list(bad(run.folder)) == ["scores/train"]
    assert run.attempts(sample.CASE).valid == (attempt,)


def test_lost_plan_rollout_or_experiment_spoil_every_attempt(run, sample):
    both = {f"cases/{case}/attempt-0001" for case in (sample.CASE, sample.OTHER)}
    for name in ("plan.jsonl", "experiment.json", f"rollouts/{sample.rollout().sha256}"):
        (run.folder / name).rename(run.folder / "away")
        assert both <= set(bad(run.folder)), name
        assert run.attempts(sample.CASE).valid == ()
        (run.folder / "away").rename(run.folder / name)
    assert bad(run.folder) == {}


# --- what is no regular file ---------------------------------------------------------------------------


def replace(path: Path, how: str, elsewhere: Path) -> None:
    data = path.read_bytes()
    path.unlink()
    if how == "symlink":
        elsewhere.write_bytes(data)
        path.symlink_to(elsewhere)
    elif how == "dangling":
        path.symlink_to(elsewhere / "nowhere")
    elif how == "fifo":
        os.mkfifo(path)
    elif how == "folder":
        path.mkdir()
    elif how == "socket":
        here = os.getcwd()
        os.chdir(path.parent)  # a socket's path is short
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path.name)
        os.chdir(here)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("how", ["symlink", "dangling", "fifo", "folder", "socket"])
@pytest.mark.parametrize("name", ["token_diffs.pt", "comparison.json", "COMPLETE"])
def test_only_regular_files_are_read_and_nothing_hangs(run, sample, tmp_path, how, name):
    attempt = attempt_of(run, sample)
    replace(attempt / name, how, tmp_path / "elsewhere")
    (reasons,) = bad(run.folder).values()
    assert name in " ".join(reasons)
    (rejected,) = run.attempts(sample.CASE).rejected
    assert rejected.path == attempt
    if name == "comparison.json" and how != "folder":
        with pytest.raises(ArtifactError):
            sample.StoredAttempt(attempt, decode_seal((attempt / "COMPLETE").read_bytes(), CaseSeal)).read(name)


@pytest.mark.timeout(20)
def test_a_fifo_does_not_pass_for_an_empty_file(run, sample):
    files = sample.score_files("t") | {"worker-0.log": b""}
    score = run.put_score(sample.score_facts("quiet", "training"), files)
    (score.path / "worker-0.log").unlink()
    os.mkfifo(score.path / "worker-0.log")
    assert "not a regular file" in " ".join(bad(run.folder)["scores/quiet"])
    assert run.find_score("quiet") is None


@pytest.mark.timeout(20)
@pytest.mark.parametrize("kind", ["file", "symlink", "fifo", "folder", "hidden"])
def test_a_file_that_nobody_sealed_is_named(run, sample, kind):
    extra = attempt_of(run, sample) / (".hidden" if kind == "hidden" else "notes.txt")
    if kind == "symlink":
        extra.symlink_to("/etc/passwd")
    elif kind == "fifo":
        os.mkfifo(extra)
    elif kind == "folder":
        extra.mkdir()
    else:
        extra.write_text("mine")
    (reasons,) = bad(run.folder).values()
    assert reasons[0].startswith(f"foreign: {extra.name!r}")


def test_linked_folders_are_refused_at_every_level(run, sample, tmp_path):
    attempt = attempt_of(run, sample)
    for path in (
        attempt,
        attempt.parent,
        run.folder / "scores" / "train",
        run.folder / "scores",
        run.folder / "cases",
    ):
        moved = tmp_path / "moved"
        shutil.move(path, moved)
        path.symlink_to(moved)
        found = bad(run.folder)
        assert any("symbolic link" in " ".join(reasons) for reasons in found.values()), (path, found)
        path.unlink()
        shutil.move(moved, path)
    assert bad(run.folder) == {}


def test_the_root_itself_may_be_a_link(run, tmp_path):
    (tmp_path / "runs").symlink_to(run.folder.parent)
    assert all(check.ok for check in check_seals(tmp_path / "runs"))


# --- malformed seals -----------------------------------------------------------------------------------

DEEP = b'{"a":' * 100_000 + b"1" + b"}" * 100_000


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "data",
    [
        b"", b"null", b"[]", b"{", b"\xff\xfe", b"\0" * 100, DEEP, b"[" * 1_000_000, b'{"a":NaN}',
        b'{"a":1,"a":1}',
        b'{"schema_version":"xcfg.case_seal.v1"}', b'{"schema_version":"xcfg.case_seal.v1","seal":"\\ud800"}',
        b'{"schema_version":"xcfg.case_seal.v1","x":1e999}',
        b'{"schema_version":"xcfg.case_seal.v1","x":%s}' % (b"9" * 5000),
        b'{"schema_version":"xcfg.case_seal.v1","x":99999999999999999999}', b'{"schema_version":7}',
    ],
    ids=lambda data: data[:30].decode("latin1"),
)  # fmt: skip
def test_a_malformed_complete_is_a_reason_and_no_crash(run, sample, data):
    attempt = attempt_of(run, sample)
    (attempt / "COMPLETE").unlink()
    (attempt / "COMPLETE").write_bytes(data)
    (reasons,) = bad(run.folder).values()
    assert reasons[0].startswith("malformed: ")
    assert len(run.attempts(sample.CASE).rejected) == 1


@pytest.mark.timeout(20)
def test_a_huge_complete_is_not_read(run, sample):
    attempt = attempt_of(run, sample)
    os.truncate(attempt / "COMPLETE", 1 << 40)  # sparse: reading it would take the memory of the machine
    (reasons,) = bad(run.folder).values()
    assert f"more than {seals.MAX_SEAL}" in reasons[0]


@pytest.mark.timeout(20)
def test_a_folder_with_too_many_entries_is_refused(run, sample, monkeypatch):
    attempt = attempt_of(run, sample)
    monkeypatch.setattr(reading, "MAX_ENTRIES", 100)
    assert not bad(run.folder)
    for index in range(100):
        (attempt / f"x{index}").touch()
    (reasons,) = bad(run.folder).values()
    assert "more than 100" in reasons[0]


def test_a_sealed_comparison_that_is_no_json_or_too_deep_is_a_reason(run, sample):
    attempt = attempt_of(run, sample)
    seal = decode_seal((attempt / "COMPLETE").read_bytes(), CaseSeal)
    for data in (DEEP, b"[]", b"\xff", b'{"status":"MISMATCH"}'):
        import hashlib

        (attempt / "comparison.json").unlink()
        (attempt / "comparison.json").write_bytes(data)
        reseal(attempt, files=seal.files | {"comparison.json": hashlib.sha256(data).hexdigest()})
        (reasons,) = bad(run.folder).values()
        assert "comparison.json" in " ".join(reasons)


# --- what a killed run leaves --------------------------------------------------------------------------


def test_leftovers_and_strangers_are_notes_and_a_published_folder_without_complete_is_not(run, sample):
    case = run.folder / "cases" / sample.CASE
    for folder in (run.folder, run.folder / "scores", run.folder / "rollouts", case):
        (folder / ".tmp-attempt-1-ab").mkdir()
    (case / ".tmp-attempt-1-ab" / "score_rollout.pt").write_bytes(b"half")
    (case / "notes.txt").write_text("mine")
    (run.folder / "scores" / ".DS_Store").write_text("")
    (run.folder / "cases" / "README").write_text("")
    noted = [check for check in check_seals(run.folder) if check.ok and check.reasons]
    assert len(noted) == 7
    assert all(reason.startswith("note: ") for check in noted for reason in check.reasons)
    assert bad(run.folder) == {}
    (case / "attempt-0002").mkdir()
    (run.folder / "scores" / "half").mkdir()
    (run.folder / "scores" / "half" / "score.pt").write_bytes(b"half")
    shutil.copytree(case / "attempt-0001", case / "copy-of-attempt-0001")
    assert bad(run.folder) == {
        "scores/half": ("partial: it has no COMPLETE",),
        f"cases/{sample.CASE}/attempt-0002": ("partial: it has no COMPLETE",),
        f"cases/{sample.CASE}/copy-of-attempt-0001": ("foreign: its name is none that the store gives",),
    }
    assert [entry.path.name for entry in run.attempts(sample.CASE).valid] == ["attempt-0001"]


def test_a_plan_that_was_never_published_is_a_note_and_is_completed(store, sample):
    def stop(name: str) -> None:
        if name == "rename experiment.json":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sample.open_demo(Store(store.folder.parent, "demo", on_boundary=stop))
    sample.put_scores(store)
    first = check_seals(store.folder)[0]
    assert first.ok and "never published" in first.reasons[0]
    assert store.revisions() == ()
    before = (store.folder / "experiment.json").read_bytes()
    assert sample.open_demo(store).number == 1
    assert (store.folder / "experiment.json").read_bytes() == before


# --- golden files --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "kind"), [("score.COMPLETE", ScoreSeal), ("case.COMPLETE", CaseSeal)])
def test_golden_seals_still_decode(name, kind):
    data = (GOLDEN / name).read_bytes()
    seal = decode_seal(data, kind)
    document = json.loads(data)
    assert {key: document[key] for key in document} == json.loads(pretty_json(seal)), "a field was renamed or lost"
    assert pretty_json(closed(evolve(seal, seal=""))) == data, "the bytes of COMPLETE changed"


def test_a_seal_with_a_field_of_tomorrow_still_decodes():
    document = json.loads((GOLDEN / "case.COMPLETE").read_bytes())
    del document["seal"]
    document["tomorrow"] = {"x": 1}
    data = pretty_json(document | {"seal": digest(document)})
    assert decode_seal(data, CaseSeal).status == "MISMATCH"


def test_golden_experiment_record_still_decodes():
    data = (GOLDEN / "experiment.json").read_bytes()
    record = decode_json(data, ExperimentRecord)
    assert record.experiment_digest == digest(record.experiment)
    assert pretty_json(record) == data
