"""The front door for programs, on a store that was written without an engine."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import xcfg
from xcfg.artifacts.store import Store
from xcfg.artifacts.stored import CaseFacts, ScoreFacts
from xcfg.artifacts.tensors import save_pt
from xcfg.errors import ConfigError, NothingSelectedError, UsageError
from xcfg.flow.api import StoredCase, iter_cases
from xcfg.flow.documents import FAILURE, Failure
from xcfg.flow.record import score_file, stored_column
from xcfg.flow.ties import to_plan
from xcfg.runtime.keys import score_key
from xcfg.schema.codec import digest, plain, pretty_json, read_strict
from xcfg.schema.names import Status


@pytest.fixture
def home(case, judged, golden, tmp_path) -> Path:
    """One experiment: two attempts with numbers of one case, and a failed attempt of another."""
    store = Store(tmp_path / "runs", "demo")
    store.put_rollout(case.rollout)
    lines = [read_strict(golden("case")) | {"case_id": name} for name in (case.requested.case_id, "case-failed")]
    revision = store.open_experiment({"experiment_id": "demo", "strict_fallback": True}, lines, {})
    scores = {arm: put_score(store, case, arm) for arm in case.scores}
    found = judged()
    for status, name in ((Status.PASS, case.requested.case_id),) * 2 + ((Status.TIMEOUT, "case-failed"),):
        facts = {
            "status": status,
            "experiment": revision.experiment_digest,
            "plan_line": revision.plan_line(name),
            "contract": case.contract.digest,
            "rollout": case.rollout.sha256,
        }
        if status is Status.TIMEOUT:
            failure = Failure(schema_version=FAILURE, status="TIMEOUT", reason="too slow")
            requested = plain(case.requested) | {"case_id": name}
            files = {"requested.json": pretty_json(requested), "failure.json": pretty_json(failure)}
            store.put_attempt(name, CaseFacts(**facts), files)
            continue
        diffs = {stored_column(key): array for key, array in found.token_diffs.items()}
        files = {
            "requested.json": pretty_json(case.requested),
            "materialized.json": golden("materialized").read_bytes(),
            "actual.json": pretty_json(case.actual),
            "identity.json": pretty_json(case.identity),
            "comparison.json": pretty_json(found.comparison),
            "token_diffs.pt": save_pt(diffs, {}),
        }
        keys = {arm: score.seal.key for arm, score in scores.items()}
        facts |= {"assessment": found.comparison.assessment.assessment, "scores": keys}
        links = {score_file(arm, case.requested.verdict_arm): score for arm, score in scores.items()}
        store.put_attempt(name, CaseFacts(**facts), files, links)
    return store.folder


def put_score(store, case, arm):
    facts = {"arm": arm, "rollout": case.rollout.sha256}
    files = {
        "score.pt": save_pt(case.scores[arm], {}),
        "applications.json": pretty_json({"applications": case.actual.applications[arm]}),
        "ranks.json": pretty_json({"builds": case.identity.builds[arm], "reports": case.identity.reports[arm]}),
        "operators.json": b"{}\n",
        "timeline.json": b"{}\n",
    }
    side = "training" if arm == "training" else "rollout"
    key = score_key(facts)
    return store.put_score(
        ScoreFacts(key=key, arm=arm, side=side, rollout=case.rollout.sha256, environment=facts), files
    )


def test_every_attempt_with_numbers_is_yielded_and_no_other(home, case):
    found = list(iter_cases(home))
    assert [item.path.name for item in found] == ["attempt-0001", "attempt-0002"]
    assert {item.requested.case_id for item in found} == {case.requested.case_id}
    for item in found:
        assert isinstance(item, StoredCase)
        assert (item.label, item.comparison.status) == ("batch.size=1", "PASS")
        assert item.path.is_dir() and item.attempt.seal.attempt_id == item.path.name


def test_the_tokens_of_a_case_are_those_that_were_compared(home, case):
    (item, _) = iter_cases(str(home))
    tokens = item.tokens()
    assert tokens["training_vs_rollout__mask"].tolist() == case.rollout.active.tolist()
    first = tokens["training_vs_rollout__first"][case.rollout.active]
    assert np.array_equal(first, case.scores["training"]["selected_logprob"][case.rollout.active])


def test_an_altered_attempt_is_left_out_and_verify_says_why(home):
    file = next(home.glob("cases/*/attempt-0002/comparison.json"))
    file.write_bytes(file.read_bytes().replace(b"PASS", b"pass"))
    assert [item.path.name for item in iter_cases(home)] == ["attempt-0001"]
    (bad,) = [check for check in xcfg.verify(home).attempts if not check.ok]
    assert bad.path.endswith("attempt-0002")
    assert "altered: comparison.json" in bad.reasons[0]


def test_what_is_not_sealed_is_left_out(home, case):
    (home / "cases" / case.requested.case_id / "attempt-0001" / "COMPLETE").unlink()
    assert [item.path.name for item in iter_cases(home)] == ["attempt-0002"]


def test_verify_recomputes_what_iter_cases_yields(home):
    checks = xcfg.verify(home).attempts
    assert all(check.ok for check in checks), checks
    assert sum("/cases/" in check.path for check in checks) == 3


def forge(folder: Path, name: str, change) -> None:
    """Change one JSON document of an attempt and seal it again, as somebody with an editor could."""
    document = read_strict(folder / name)
    change(document)
    data = pretty_json(document)
    (folder / name).write_bytes(data)
    seal = read_strict(folder / "COMPLETE")
    seal["files"][name] = hashlib.sha256(data).hexdigest()
    seal.pop("seal")
    (folder / "COMPLETE").write_bytes(pretty_json(seal | {"seal": digest(seal)}))


def test_verify_finds_a_comparison_that_was_changed_and_sealed_again(home, case, judged):
    folder = next(home.glob("cases/*/attempt-0002"))
    forge(folder, "comparison.json", lambda it: it["edges"]["training_vs_rollout"].update(active_tokens=600))
    assert all(check.ok for check in xcfg.verify(home, seals_only=True).attempts)
    (bad,) = [check for check in xcfg.verify(home).attempts if not check.ok]
    assert bad.path == str(folder)
    assert bad.reasons == ("edges.training_vs_rollout.active_tokens: 600, 6",)


FORGERIES = {
    "a change that was not planned": (
        "requested.json",
        lambda it: it["delta"].update({"rollout.dtype": "float16"}),
        "delta of requested.json is not that of the plan",
    ),
    "leniency": ("requested.json", lambda it: it.update(strict=False), "strict of requested.json is not that of the"),
    "another label": ("requested.json", lambda it: it.update(label="x"), "label of requested.json is not that of the"),
    "a coarser dtype": (
        "actual.json",
        lambda it: it["compute_dtypes"].update(training="bfloat16"),
        "the compute dtype of training is not what its ranks reported",
    ),
    "another build": (
        "identity.json",
        lambda it: it["builds"]["training"][0].update(world_size=2),
        "the builds of training are not those of its side score",
    ),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_verify_finds_documents_that_do_not_say_what_lies_beside_them(name, home):
    file, change, said = FORGERIES[name]
    folder = next(home.glob("cases/*/attempt-0002"))
    forge(folder, file, change)
    assert all(check.ok for check in xcfg.verify(home, seals_only=True).attempts)
    (bad,) = [check for check in xcfg.verify(home).attempts if not check.ok]
    assert bad.path == str(folder)
    assert any(reason.startswith(said) for reason in bad.reasons), bad.reasons


def test_an_attempt_whose_sides_were_scored_again_later_is_not_accused(home, case):
    """Failing means that `run --no-resume` makes an honest run look forged: equal bytes, another process."""
    store = Store(home.parent, home.name)
    (arm, key) = next(iter(store.attempts(case.requested.case_id).valid[0].seal.scores.items()))
    first = store.find_score(key)
    files = {name: first.path / name for name in first.seal.files}
    ranks = first.json("ranks.json") | {"builds": [{"pid": 2}]}
    facts = ScoreFacts(
        key=key, arm=arm, side=first.seal.side, rollout=first.seal.rollout, environment=first.seal.environment
    )
    again = store.put_score(facts, files | {"ranks.json": pretty_json(ranks)}, fresh=True)
    assert again.path != first.path and again.seal.files["score.pt"] == first.seal.files["score.pt"]
    assert [check for check in xcfg.verify(home).attempts if not check.ok] == []
    forge(next(home.glob("cases/*/attempt-0002")), "identity.json", lambda it: it["builds"].update({arm: []}))
    (bad,) = [check for check in xcfg.verify(home).attempts if not check.ok]
    assert f"the builds of {arm} are not those of its side score" in bad.reasons


def test_a_case_that_only_a_later_slice_plans_is_held_against_that_slice(home, case, golden):
    """Failing means that two slices of one experiment in one folder are called altered evidence, or not looked at."""
    store = Store(home.parent, home.name)
    line = read_strict(golden("case"))
    envelope = {"experiment_id": "demo", "strict_fallback": True}
    slice_of = store.open_experiment(envelope, [line | {"case_id": "case-late"}], {})
    facts = {"status": Status.TIMEOUT, "experiment": slice_of.experiment_digest, "contract": case.contract.digest}
    requested = plain(case.requested) | {"case_id": "case-late"}
    failure = Failure(schema_version=FAILURE, status="TIMEOUT", reason="too slow")
    files = {"requested.json": pretty_json(requested), "failure.json": pretty_json(failure)}
    files |= dict.fromkeys(("actual.json", "identity.json"), b"{}\n")
    late = CaseFacts(**facts, plan_line=slice_of.plan_line("case-late"), rollout=case.rollout.sha256)
    sealed = store.put_attempt("case-late", late, files)
    assert to_plan(sealed, store) == []
    forged = pretty_json(requested | {"label": "x"})
    altered = store.put_attempt("case-late", late, files | {"requested.json": forged})
    assert to_plan(altered, store) == ["label of requested.json is not that of the plan"]


def test_a_slice_that_ran_again_is_found_by_its_cases(home, case, golden):
    """Failing means that a gate judges another slice than the one that has just run."""
    store = Store(home.parent, home.name)
    line = read_strict(golden("case")) | {"case_id": case.requested.case_id}
    store.open_experiment({"experiment_id": "demo", "strict_fallback": True}, [line], {})
    both = {case.requested.case_id, "case-failed"}
    planned = [
        {item.planned.case_id for item in xcfg.open_run(home, cases=cases).cases}
        for cases in ((), both, {case.requested.case_id}, {"case-of-nobody"})
    ]
    assert planned == [{case.requested.case_id}, both, {case.requested.case_id}, {case.requested.case_id}]


def test_a_folder_without_evidence_is_an_error_and_no_empty_answer(tmp_path):
    (tmp_path / "empty").mkdir()
    for name, error in (("nowhere", UsageError), ("empty", NothingSelectedError)):
        with pytest.raises(error):
            list(iter_cases(tmp_path / name))
        with pytest.raises(error):
            xcfg.verify(tmp_path / name)


def test_a_moved_experiment_is_the_same_evidence(home, tmp_path):
    moved = shutil.move(home, tmp_path / "demo")
    assert len(list(iter_cases(moved))) == 2


def test_the_front_door_takes_text_and_paths(golden, manager, rollout, tmp_path):
    document = read_strict(golden("experiment_v1")) | {"operators": {}}
    document["baseline"]["logp"]["backend"] = "native"  # its smoke backend comes with another package
    file = tmp_path / "s0.json"
    file.write_text(json.dumps(document))
    for place in (file, str(file)):
        assert xcfg.load(place, plugins=manager).rollout.sha256 == rollout.sha256
    assert [case.label for case in xcfg.plan(file, plugins=manager).cases] == ["baseline", "batch.size=1"]
    with pytest.raises(ConfigError):
        xcfg.load(tmp_path / "nowhere.json", plugins=manager)


def test_the_front_door_lists_what_it_has():
    for name in xcfg.__all__:
        assert getattr(xcfg, name) is not None
    assert dir(xcfg) == sorted(xcfg.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = xcfg.nothing
