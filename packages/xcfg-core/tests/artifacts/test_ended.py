"""What was planned is counted: an attempt that was deleted, and a case that never ended, are told apart.

Failing means that evidence can be taken away, or a run can stop half-way, and `xcfg verify` says ok.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from xcfg.artifacts.verify import check_seals
from xcfg.errors import NothingSelectedError
from xcfg.schema.codec import pretty_json


def found(path: Path, *, unfinished: bool) -> dict[str, str]:
    """What is not ok under `path` and is (or is not) merely unfinished: path relative to it -> reasons."""
    checks = [check for check in check_seals(path) if not check.ok and check.unfinished is unfinished]
    return {os.path.relpath(check.path, path): "; ".join(check.reasons) for check in checks}


@pytest.fixture
def half(store, sample):
    """A run that was killed after its first case: no record of an ended run."""
    sample.open_demo(store)
    store.put_rollout(sample.rollout())
    sample.put_case(store)
    return store


def test_every_case_deleted_after_the_run_ended(run, sample):
    shutil.rmtree(run.folder / "cases")
    (run.folder / "cases").mkdir()
    missing = found(run.folder, unfinished=False)
    assert set(missing) == {f"cases/{case}/attempt-0001" for case in (sample.CASE, sample.OTHER)}
    assert all("sealed and is gone" in reasons and "ended/" in reasons for reasons in missing.values())
    assert found(run.folder, unfinished=True) == {}


def test_one_attempt_deleted_also_where_only_the_case_is_looked_at(run, sample):
    shutil.rmtree(run.folder / "cases" / sample.CASE / "attempt-0001")
    assert set(found(run.folder, unfinished=False)) == {f"cases/{sample.CASE}/attempt-0001"}
    assert set(found(run.folder / "cases" / sample.CASE, unfinished=False)) == {"attempt-0001"}
    assert found(run.folder / "cases" / sample.OTHER, unfinished=False) == {}


def test_a_case_that_never_ended_is_unfinished_and_named(half, sample):
    assert found(half.folder, unfinished=False) == {}
    ((path, reason),) = found(half.folder, unfinished=True).items()
    assert path == f"cases/{sample.OTHER}"
    assert "'b' is planned in plan.jsonl" in reason and "nothing of it is sealed" in reason


def test_a_case_that_was_being_written_is_unfinished(half, sample):
    (half.folder / "cases" / sample.OTHER / ".tmp-attempt-1-ab").mkdir(parents=True)
    assert "being written" in found(half.folder, unfinished=True)[f"cases/{sample.OTHER}"]


def test_a_case_of_a_plan_that_was_replaced_still_counts(half, sample):
    line = {"case_id": "case-ffff", "label": "c"}
    half.open_experiment(sample.experiment("grown"), [*sample.plan(), line], sample.IDENTITY)
    named = found(half.folder, unfinished=True)
    assert set(named) == {f"cases/{sample.OTHER}", "cases/case-ffff"}
    assert "plan-2.jsonl" in named["cases/case-ffff"]


def test_a_failed_attempt_is_a_result(half, sample):
    sample.put_failure(half)
    assert all(check.ok for check in check_seals(half.folder))


def test_numbers_without_gaps_give_a_deleted_attempt_away(half, sample):
    for _ in range(3):
        sample.put_failure(half)
    shutil.rmtree(half.folder / "cases" / sample.OTHER / "attempt-0002")
    ((path, reason),) = found(half.folder, unfinished=False).items()
    assert path == f"cases/{sample.OTHER}/attempt-0002" and "without gaps" in reason
    assert found(half.folder, unfinished=True) == {}


def test_a_planted_number_is_no_gap(half, sample):
    """Failing means that one empty folder makes verify accuse somebody, or count to a billion."""
    sample.put_failure(half)
    (half.folder / "cases" / sample.OTHER / "attempt-999999999").mkdir()
    assert set(found(half.folder, unfinished=False)) == {f"cases/{sample.OTHER}/attempt-999999999"}


def test_an_altered_attempt_is_named_once_and_is_not_unfinished(half, sample, flip):
    sample.put_failure(half)
    flip(half.folder / "cases" / sample.OTHER / "attempt-0001" / "failure.json", 3)
    assert len(found(half.folder, unfinished=False)) == 1
    assert found(half.folder, unfinished=True) == {}


def test_a_plan_of_which_nothing_ended_is_counted(store, sample):
    sample.open_demo(store)
    with pytest.raises(NothingSelectedError, match="2 planned cases never ended"):
        check_seals(store.folder)
    sample.put_scores(store)
    assert len(found(store.folder, unfinished=True)) == 2


@pytest.mark.parametrize(
    "change",
    [
        lambda data: b"{",
        lambda data: data.replace(b"attempt-0001", b"attempt-0002"),
        lambda data: pretty_json(json.loads(data) | {"cases": {}}),
    ],
    ids=["malformed", "altered", "emptied"],
)
def test_an_altered_record_is_a_fault_and_a_new_one_is_published_beside_it(run, sample, change):
    (record,) = (run.folder / "ended").iterdir()
    data = record.read_bytes()
    record.unlink()
    record.write_bytes(change(data))
    assert set(found(run.folder, unfinished=False)) == {f"ended/{record.name}"}
    again = sample.put_ended(run)
    assert again != record and again.read_bytes() == data


def test_the_same_end_is_recorded_once(run, sample):
    sample.put_ended(run)
    assert len(list((run.folder / "ended").iterdir())) == 1
