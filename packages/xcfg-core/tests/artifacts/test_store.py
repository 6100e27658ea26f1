"""What the store keeps, reuses and refuses, one process at a time."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xcfg.artifacts import atomic, reading
from xcfg.artifacts.layout import STATUS_PAYLOADS, is_payload
from xcfg.artifacts.store import Store
from xcfg.artifacts.verify import check_seals
from xcfg.errors import ArtifactError, ConfigError, ExecutionError
from xcfg.identity.rollout import read_rollout, write_rollout
from xcfg.schema.names import Status


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# --- revisions -----------------------------------------------------------------------------------------


def test_equal_content_is_the_same_revision_and_a_change_appends_one(store, sample):
    first = sample.open_demo(store)
    before = tree(store.folder)
    assert sample.open_demo(store).number == 1
    assert tree(store.folder) == before
    second = sample.open_demo(store, "grown")
    assert (first.number, second.number) == (1, 2)
    assert sorted(path.name for path in store.folder.iterdir()) == [
        "experiment-2.json", "experiment.json", "plan-2.jsonl", "plan.jsonl",
    ]  # fmt: skip
    assert before.items() <= tree(store.folder).items()
    assert sample.open_demo(store).number == 1, "going back finds the first revision again"
    assert second.plan() == sample.plan("grown")
    assert second.record.experiment == sample.experiment("grown")


def test_a_plan_that_changes_alone_is_a_revision(store, sample):
    sample.open_demo(store)
    assert store.open_experiment(sample.experiment(), sample.plan("other"), sample.IDENTITY).number == 2


def test_a_changed_identity_is_refused_with_the_cure(store, sample):
    sample.open_demo(store)
    before = tree(store.folder)
    with pytest.raises(ConfigError, match="rollout") as caught:
        store.open_experiment(sample.experiment("x"), sample.plan(), sample.IDENTITY | {"rollout": "q" * 64})
    assert caught.value.exit_code == 2
    assert "experiment_id" in caught.value.hint and "--output-root" in caught.value.hint
    assert tree(store.folder) == before


@pytest.mark.parametrize("name", ["experiment.json", "plan.jsonl"])
def test_an_altered_revision_stops_the_run(store, sample, flip, name):
    sample.open_demo(store)
    flip(store.folder / name, -3)
    with pytest.raises(ArtifactError, match=name.replace(".", r"\.")):
        sample.open_demo(store)
    assert store.revisions() == ()


@pytest.mark.parametrize(
    "lines", [[{"case_id": "../x"}], [{"label": "x"}], [{"case_id": "a"}, {"case_id": "a"}], [{"case_id": 3}]]
)
def test_plan_lines_need_safe_ids_of_their_own(store, lines):
    with pytest.raises(ConfigError, match="case_id"):
        store.open_experiment({}, lines, {})


def test_values_that_are_no_json_are_refused(store):
    for experiment in ({"x": float("nan")}, {"x": 2**80}):
        with pytest.raises(ConfigError, match="JSON"):
            store.open_experiment(experiment, [{"case_id": "a"}], {})


# --- scores --------------------------------------------------------------------------------------------


def test_a_score_is_stored_once(store, sample):
    first, _ = sample.put_scores(store)
    again = store.put_score(sample.score_facts("train", "training"), sample.score_files("another"))
    assert again.seal == first.seal == store.find_score("train").seal
    assert again.read("score.pt") == sample.score_files("t")["score.pt"]
    assert store.score_keys() == ("decode", "train")


def test_an_invalid_score_stays_and_the_next_number_is_used(store, sample, flip):
    first, _ = sample.put_scores(store)
    flip(first.path / "score.pt", 3)
    assert store.find_score("train") is None
    second = store.put_score(sample.score_facts("train", "training"), sample.score_files("t"))
    assert second.path.name == "train.r2"
    (rejected,) = store.scores("train").rejected
    assert rejected.path == first.path and "altered: score.pt" in rejected.reasons[0]
    flip(second.path / "COMPLETE", 40)
    assert store.put_score(sample.score_facts("train", "training"), sample.score_files("t")).path.name == "train.r3"


def test_a_forced_rescore_is_kept_beside_the_first_and_preferred(store, sample):
    sample.put_scores(store)
    fresh = store.put_score(sample.score_facts("train", "training"), sample.score_files("n"), fresh=True)
    assert fresh.path.name == "train.r2"
    assert [score.path.name for score in store.scores("train").valid] == ["train.r2", "train"]


def test_a_file_is_copied_as_it_is(store, sample, tmp_path):
    (tmp_path / "s.pt").write_bytes(os.urandom(5000))
    score = store.put_score(
        sample.score_facts("k", "training"), sample.score_files("t") | {"score.pt": tmp_path / "s.pt"}
    )
    assert score.read("score.pt") == (tmp_path / "s.pt").read_bytes()
    (tmp_path / "link.pt").symlink_to(tmp_path / "s.pt")
    with pytest.raises(ArtifactError, match="symbolic link"):
        store.put_score(
            sample.score_facts("l", "training"), sample.score_files("t") | {"score.pt": tmp_path / "link.pt"}
        )
    assert store.score_keys() == ("k",)


@pytest.mark.parametrize("missing", ["score.pt", "ranks.json"])
def test_a_score_without_a_required_payload_is_not_published(store, sample, missing):
    files = sample.score_files("t")
    del files[missing]
    with pytest.raises(ArtifactError, match=missing):
        store.put_score(sample.score_facts("k", "training"), files)
    assert not store.folder.exists()


def test_environment_must_be_plain_json(store, sample):
    facts = sample.ScoreFacts(key="k", arm="training", side="training", rollout="", environment={"x": float("inf")})
    with pytest.raises(ArtifactError, match="plain JSON"):
        store.put_score(facts, sample.score_files("t"))
    assert list((store.folder / "scores").iterdir()) == []


# --- attempts ------------------------------------------------------------------------------------------


def test_an_attempt_holds_hard_links_of_its_scores(run, sample):
    (attempt,) = run.attempts(sample.CASE).valid
    training = run.find_score("train")
    assert (attempt.path / "score_training.pt").samefile(training.score)
    assert attempt.seal.files["score_training.pt"] == training.seal.files["score.pt"]
    assert attempt.json("comparison.json")["status"] == "MISMATCH"
    assert attempt.seal.attempt_id == "attempt-0001"


def test_where_links_are_impossible_the_copy_is_real(store, sample, monkeypatch):
    def refuse(*args, **kwargs):
        raise OSError(18, "Invalid cross-device link")

    sample.open_demo(store)
    store.put_rollout(sample.rollout())
    sample.put_scores(store)
    monkeypatch.setattr(atomic.os, "link", refuse)
    attempt = sample.put_case(store)
    assert not (attempt.path / "score_training.pt").samefile(store.find_score("train").score)
    assert all(check.ok or check.unfinished for check in check_seals(store.folder))


def test_attempts_are_numbered_newest_first_past_9999(run, sample):
    sample.put_case(run)
    (run.folder / "cases" / sample.CASE / "attempt-9999").mkdir()
    last = sample.put_case(run)
    assert last.seal.attempt_id == "attempt-10000"
    found = run.attempts(sample.CASE)
    assert [attempt.path.name for attempt in found.valid] == ["attempt-10000", "attempt-0002", "attempt-0001"]
    assert [path.name for path, _ in found.rejected] == ["attempt-9999"]


def test_an_older_valid_attempt_is_still_found(run, sample, flip):
    newest = sample.put_case(run)
    flip(newest.path / "token_diffs.pt", 0)
    found = run.attempts(sample.CASE)
    assert [attempt.path.name for attempt in found.valid] == ["attempt-0001"]
    assert found.rejected[0].path == newest.path
    assert "token_diffs.pt" in found.rejected[0].reasons[0]


def put_with(store, sample, *, files=None, links=None, **changes):
    training, decode = sample.put_scores(store)
    usual = {"score_training.pt": training, "score_rollout.pt": decode}
    facts = sample.case_facts(store, **changes)
    return store.put_attempt(
        sample.CASE, facts, sample.case_files() if files is None else files, usual if links is None else links
    )


def test_what_verify_would_reject_is_never_published(run, sample):
    files = sample.case_files()
    no_diffs = {name: data for name, data in files.items() if name != "token_diffs.pt"}
    _, decode = sample.put_scores(run)
    refused = {
        "token_diffs.pt": {"files": no_diffs},
        "no revision": {"experiment": "0" * 64},
        "not in the plan": {"plan_line": run.revisions()[0].plan_line(sample.OTHER)},
        "frozen rollout": {"rollout": "0" * 64},
        "no copy of the score of arm training": {"links": {"score_training.pt": decode, "score_rollout.pt": decode}},
        "which no arm names": {"scores": {"training": "train"}},
        "holds no copy": {"scores": {"training": "train", "rollout_decode": "decode", "reference": "train"}},
        "says status 'PASS'": {"files": files | {"comparison.json": sample.comparison("PASS")}},
        "says assessment": {"assessment": "BIASED"},
        "says contract": {"contract": "0" * 64},
        "says case_id": {"files": files | {"requested.json": b'{"case_id": "case-x"}'}},
        "not JSON": {"files": files | {"comparison.json": b"{"}},
        "may not hold failure.json": {"files": files | {"failure.json": b"{}"}},
        "stands for arm rollout_prefill": {"scores": {"training": "train", "rollout_prefill": "decode"}},
        "given twice": {"files": files | {"score_training.pt": b""}},
    }
    before = sorted(path for path in run.folder.rglob("*"))
    for text, changes in refused.items():
        with pytest.raises(ArtifactError, match=text):
            put_with(run, sample, **changes)
    assert sorted(path for path in run.folder.rglob("*")) == before


def test_a_score_altered_before_it_is_linked_is_not_sealed_into_a_case(run, sample, flip):
    training, decode = sample.put_scores(run)
    flip(training.score, 5)
    links = {"score_training.pt": training, "score_rollout.pt": decode}
    with pytest.raises(ArtifactError, match="altered after it was sealed"):
        run.put_attempt(sample.CASE, sample.case_facts(run), sample.case_files(), links)


@pytest.mark.parametrize("status", list(Status))
def test_every_status_has_a_rule_and_no_failure_can_pass_as_judged(status):
    rule = STATUS_PAYLOADS[status]
    judged = STATUS_PAYLOADS[Status.PASS].every
    assert len(judged) == 8
    assert rule.faults(status.value, ()) != []
    if status in (Status.PASS, Status.MISMATCH):
        for name in judged:
            assert rule.faults(status.value, set(judged) - {name}) == [f"status {status.value} requires {name}"]
    else:
        assert rule.faults(status.value, ("requested.json", "failure.json")) == []
        assert rule.faults(status.value, ("failure.json",)) == [f"status {status.value} requires requested.json"]


# --- rollouts and analyses -----------------------------------------------------------------------------


def test_a_rollout_is_copied_once_and_readable(store, sample, tmp_path, flip):
    rollout = sample.rollout()
    folder = store.put_rollout(rollout)
    assert folder.name == rollout.sha256
    assert read_rollout(folder, sha256=rollout.sha256).manifest == rollout.manifest
    assert store.put_rollout(read_rollout(write_rollout(rollout, tmp_path / "frozen"))) == folder
    flip(folder / "rollout.safetensors", -1)
    assert store.find_rollout(rollout.sha256) is None
    assert store.put_rollout(rollout).name == f"{rollout.sha256}.r2"
    assert store.find_rollout(rollout.sha256).name == f"{rollout.sha256}.r2"


def test_a_rollout_whose_files_are_not_its_own_is_refused(store, sample, tmp_path, flip):
    frozen = read_rollout(write_rollout(sample.rollout(), tmp_path / "frozen"))
    flip(tmp_path / "frozen" / "rollout.safetensors", -1)
    with pytest.raises(ArtifactError, match="digests"):
        store.put_rollout(frozen)
    assert store.find_rollout(frozen.sha256) is None


def test_an_analysis_is_named_by_its_content(store, flip):
    path = store.put_analysis({"b": 1, "a": [1.5]})
    assert store.put_analysis({"a": [1.5], "b": 1}) == path
    assert json.loads(path.read_bytes()) == {"a": [1.5], "b": 1}
    flip(path, 3)
    assert store.put_analysis({"b": 1, "a": [1.5]}).name == f"{path.stem}.r2.json"
    with pytest.raises(ArtifactError, match="plain JSON"):
        store.put_analysis({"x": float("nan")})


# --- names ---------------------------------------------------------------------------------------------

BAD = [
    "",
    ".",
    "..",
    "../x",
    "a/b",
    "/etc",
    "a\\b/..",
    "a\0b",
    "a\n",
    "-x",
    ".tmp-x",
    "é",
    "x" * 129,
    "a b",
    "a.r2",
]


@pytest.mark.parametrize("name", BAD)
def test_names_that_leave_their_folder_are_refused(run, sample, name):
    if name != "a.r2":
        with pytest.raises(ConfigError, match="path component"):
            Store(run.folder.parent, name)
    with pytest.raises(ArtifactError, match="component"):
        run.find_score(name)
    with pytest.raises(ArtifactError, match="component"):
        run.attempts(name)
    with pytest.raises(ArtifactError, match="component"):
        run.put_attempt(name, sample.case_facts(run), {})
    with pytest.raises(ArtifactError, match="component"):
        run.put_score(sample.score_facts(name, "training"), sample.score_files("t"))


@given(st.text(max_size=200))
def test_a_payload_name_is_one_component_of_its_folder(name):
    if is_payload(name):
        assert os.path.normpath(os.path.join("/a", name)) == f"/a/{name}"
        assert name not in ("COMPLETE", ".", "..") and not name.startswith(".tmp-")


@pytest.mark.parametrize("name", ["COMPLETE", "../score.pt", "a/b", ".hidden"])
def test_a_payload_may_not_pose_as_something_else(store, sample, name):
    with pytest.raises(ArtifactError, match="payload name"):
        store.put_score(sample.score_facts("k", "training"), sample.score_files("t") | {name: b""})
    assert not store.folder.exists()


@pytest.mark.parametrize("place", ["scores", "cases"])
def test_a_linked_place_is_not_written_through(store, sample, tmp_path, place):
    sample.open_demo(store)
    store.put_rollout(sample.rollout())
    (store.folder / place).symlink_to(tmp_path)
    with pytest.raises(ArtifactError, match=r"real folder|symbolic link"):
        sample.put_case(store)
    assert list(tmp_path.iterdir()) == []


# --- publishing without renameat2 ----------------------------------------------------------------------


def test_without_renameat2_nothing_is_overwritten_either(store, sample, monkeypatch, flip):
    monkeypatch.setattr(atomic, "_renameat2", lambda source, target: None)
    sample.whole_run(store)
    assert sample.is_whole(store)
    sample.open_demo(store, "third")
    flip(store.find_score("train").score, 2)
    second = store.put_score(sample.score_facts("train", "training"), sample.score_files("t"))
    assert second.path.name == "train.r2"
    assert not list(store.folder.rglob(".tmp-*"))


def test_both_ways_of_renaming_refuse_a_taken_name(tmp_path):
    for way in (atomic.rename_new, atomic._rename_portable):
        base = tmp_path / way.__name__
        for kind in ("file", "folder"):
            source, target = base / f"{kind}-new", base / f"{kind}-old"
            for path in (source, target):
                (path / "in" if kind == "folder" else path).parent.mkdir(parents=True, exist_ok=True)
                (path / "in" if kind == "folder" else path).write_text(path.name)
            assert way(source, target) is False
            assert (target / "in" if kind == "folder" else target).read_text() == f"{kind}-old"
            assert way(source, base / f"{kind}-free") is True
            assert not source.exists()


def test_a_root_that_cannot_be_written_says_so(tmp_path, sample):
    (tmp_path / "file").write_text("")
    with pytest.raises(ExecutionError, match="could not be written") as caught:
        sample.open_demo(Store(tmp_path / "file", "demo"))
    assert caught.value.exit_code == 4


# --- the digest memory ---------------------------------------------------------------------------------


def test_a_linked_payload_is_hashed_once_and_a_change_is_noticed(tmp_path, monkeypatch):
    (tmp_path / "a").write_bytes(b"x" * 100)
    os.link(tmp_path / "a", tmp_path / "b")
    monkeypatch.setattr(reading, "_SETTLED_NS", -1)
    digests = reading.Digests()
    first = digests.of(str(tmp_path / "a"))
    monkeypatch.setattr(reading.hashlib, "sha256", None)
    assert digests.of(str(tmp_path / "b")) == first, "the same inode was read twice"
    monkeypatch.undo()
    (tmp_path / "b").write_bytes(b"y" * 100)
    os.utime(tmp_path / "b", ns=(1, 1))
    assert digests.of(str(tmp_path / "a")) != first


def test_a_file_that_changed_just_now_is_not_remembered(tmp_path):
    (tmp_path / "a").write_bytes(b"x")
    digests = reading.Digests()
    digests.of(str(tmp_path / "a"))
    assert digests._known == {}
