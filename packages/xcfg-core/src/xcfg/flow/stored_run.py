"""A run as it was sealed, for programs that analyse it: planned cases, their newest valid attempts, their scores.

Everything is read through the seals: a file that is not what its seal names raises ArtifactError, and an attempt that
is not valid is left out and named.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from xcfg.artifacts.layout import attempt_number, copy_of
from xcfg.artifacts.revisions import Revision
from xcfg.artifacts.store import Store
from xcfg.artifacts.stored import StoredAttempt, StoredScore
from xcfg.comparison import Tables, assess_by, no_reference
from xcfg.contract import load_contract
from xcfg.errors import ArtifactError, NothingSelectedError, UnknownNameError, UsageError
from xcfg.flow.documents import Actual, Failure, IdentityDocument, Requested
from xcfg.flow.judge import tables_of
from xcfg.flow.recheck import decode
from xcfg.identity.rollout import Rollout, read_rollout
from xcfg.schema.codec import convert
from xcfg.schema.contract import Contract
from xcfg.schema.names import Role
from xcfg.schema.plan import ExperimentCase
from xcfg.schema.result import AssessmentResult, Comparison

T = TypeVar("T")
Columns = dict[str, NDArray[np.generic]]


def is_run(path: Path) -> bool:
    """Whether `path` is the folder of one experiment, `runs/<experiment>`."""
    return (path / "experiment.json").is_file() and (path / "plan.jsonl").is_file()


@dataclass(frozen=True)
class RunCase:
    """A planned case with its newest valid attempt of one runtime pair, if any. rejected: those that are not valid.

    newer: attempts that were sealed after the one that stands for the case and are altered or gone, with the reason.
    """

    planned: ExperimentCase
    attempt: StoredAttempt | None = None
    rejected: tuple[str, ...] = ()
    newer: tuple[str, ...] = ()

    @cached_property
    def requested(self) -> Requested | None:
        """requested.json."""
        return self._document("requested.json", Requested)

    @cached_property
    def actual(self) -> Actual | None:
        """actual.json; None where nothing was scored."""
        return self._document("actual.json", Actual)

    @cached_property
    def identity(self) -> IdentityDocument | None:
        """identity.json."""
        return self._document("identity.json", IdentityDocument)

    @cached_property
    def comparison(self) -> Comparison | None:
        """comparison.json."""
        return self._document("comparison.json", Comparison)

    @cached_property
    def failure(self) -> Failure | None:
        """failure.json."""
        return self._document("failure.json", Failure)

    def score(self, table: str) -> Columns | None:
        """Return the columns [T] of a side score (`training`, `plain_eager_float32`, ...); None where there is none."""
        if self.attempt is None or table not in self.attempt.seal.scores:
            return None
        name = copy_of(table, self.attempt.seal.files)
        return None if name is None else self.attempt.tensors(name)[0]

    def score_sha256(self, table: str) -> str:
        """Return the SHA-256 of the file of a side score; empty where there is none. A rescored key has several."""
        if self.attempt is None or table not in self.attempt.seal.scores:
            return ""
        name = copy_of(table, self.attempt.seal.files)
        return "" if name is None else self.attempt.seal.files[name]

    def tokens(self) -> Columns:
        """Return token_diffs.pt: `<edge>__first`, `__second`, `__mask`, `__difference`, each [T]; empty without."""
        if self.attempt is None or "token_diffs.pt" not in self.attempt.seal.files:
            return {}
        return self.attempt.tensors("token_diffs.pt")[0]

    def _document(self, name: str, kind: type[T]) -> T | None:
        if self.attempt is None or name not in self.attempt.seal.files:
            return None
        return decode(self.attempt, name, kind)


@dataclass(frozen=True)
class StoredRun:
    """One revision of an experiment, as one pair of runtimes ran it.

    cases: in the order of the plan, the baseline first. others: pairs of runtimes that ran it as well and are left out.
    """

    folder: Path
    store: Store = field(repr=False)
    revision: Revision = field(repr=False)
    runtimes: Mapping[str, str]
    cases: tuple[RunCase, ...] = field(repr=False)
    others: tuple[str, ...] = ()

    @property
    def experiment(self) -> dict[str, Any]:
        """The experiment as it was sealed."""
        return self.revision.record.experiment

    @cached_property
    def contract(self) -> Contract:
        """The numerical contract that the run was judged by; ArtifactError where this xcfg does not carry it."""
        ref = self.experiment["contract"]
        found = load_contract(str(ref["source"]), str(ref["version"]))
        if found.digest != ref["digest"]:
            raise ArtifactError(
                f"the run was judged by the contract {ref['version']} {str(ref['digest'])[:16]}…, this xcfg carries "
                f"{found.digest[:16]}…",
                hint="Analyse it with the version of xcfg that ran it.",
            )
        return found

    @cached_property
    def rollout(self) -> Rollout:
        """The frozen rollout of the run."""
        sealed = [case.attempt.seal.rollout for case in self.cases if case.attempt is not None]
        place = self.store.find_rollout(sealed[0]) if sealed else None
        if place is None:
            raise ArtifactError(f"the frozen rollout is not in {str(self.folder)!r}", hint="Run the experiment again.")
        return read_rollout(place, sha256=sealed[0])

    def side_score(self, key: str) -> StoredScore | None:
        """Return the newest valid side score of `key`."""
        return self.store.find_score(key)

    def assess_by(self, case: RunCase, ground: RunCase) -> AssessmentResult:
        """Return the assessment of `case` by the smaller of its own precision budget and that of `ground`.

        NO_REFERENCE with the reason where one of them has no budget, or it was scored on other tokens.
        """
        for item in (case, ground):
            if item.comparison is None or item.comparison.assessment.b_training is None:
                reason = "" if item.comparison is None else item.comparison.assessment.reason
                return no_reference(f"{item.planned.label} has no precision budget: {reason or 'it has no figures'}")
        first, second = (self._tables(item) for item in (case, ground))
        return assess_by(first, second, self.rollout, self.contract.assessment)

    def _tables(self, case: RunCase) -> Tables:
        actual, requested = case.actual, case.requested
        if actual is None or requested is None:
            raise ArtifactError(f"the attempt of {case.planned.label!r} has figures and does not say of what")
        scores = {name: columns for name in actual.compute_dtypes if (columns := case.score(name)) is not None}
        return (*tables_of(scores, actual), requested.verdict_arm)

    def put_analysis(self, document: Mapping[str, Any]) -> Path:
        """Store a result in analysis/ under the digest of its content; return its path."""
        return self.store.put_analysis(document)


def open_run(path: Path, *, runtimes: str = "", experiment: str = "", cases: Collection[str] = ()) -> StoredRun:
    """Return the run in `path` (`runs/<experiment>`): its newest revision, or the one whose digest is `experiment`.

    cases: ids; a revision that plans exactly these goes before newer ones, for slices of one experiment are revisions
    with the same content, and a slice that runs again makes no new one.
    runtimes: `ROLLOUT/TRAINING`; without it the pair that ran the baseline last. Pairs are never mixed.
    Raises UsageError when `path` holds no run, NothingSelectedError when no case ended, UnknownNameError for a pair
    that did not run, ArtifactError for a file that was altered.
    """
    folder = path.absolute()
    if not is_run(folder):
        raise UsageError(f"{str(path)!r} is no folder of a run", hint=_inside(folder))
    store = Store(folder.parent, folder.name)
    revisions = [item for item in store.revisions() if experiment in ("", item.experiment_digest)]
    if not revisions:
        raise ArtifactError(f"{str(path)!r} has no whole revision", hint="`xcfg verify` names what is wrong with it.")
    asked = [item for item in revisions if cases and set(item.lines) == set(cases)]
    revision = (asked or revisions)[-1]
    found = [_attempts(store, convert(line, ExperimentCase)) for line in revision.plan()]
    pairs = [_pair(item) for item in sorted((i for f in found for i in f if i.attempt), key=_age)]
    if not pairs:
        raise NothingSelectedError(
            f"no case of {str(path)!r} has a valid attempt", hint="`xcfg verify` names what is wrong with each."
        )
    known = list(dict.fromkeys(pairs))
    if runtimes and runtimes not in known:
        raise UnknownNameError(f"{runtimes!r} did not run this experiment", hint=f"Available: {', '.join(known)}.")
    chosen = runtimes or _pair_of_baseline(found) or pairs[-1]
    rollout, training = chosen.split("/")
    gone = _gone(store)
    return StoredRun(
        folder=folder,
        store=store,
        revision=revision,
        runtimes={"rollout": rollout, "training": training},
        cases=tuple(_of(items, chosen, gone) for items in found),
        others=tuple(name for name in known if name != chosen),
    )


def _inside(folder: Path) -> str:
    if not folder.is_dir():
        return "It does not exist." if not folder.exists() else "Give the folder of one experiment, runs/<experiment>."
    names = sorted(item.name for item in folder.iterdir() if is_run(item))
    return f"It holds these: {', '.join(names)}." if names else "Give the folder of one experiment, runs/<experiment>."


def _attempts(store: Store, planned: ExperimentCase) -> list[RunCase]:
    """Return the attempts of a planned case, newest first; one without an attempt where there is none."""
    lookup = store.attempts(planned.case_id)
    rejected = tuple(f"{item.path.name}: {'; '.join(item.reasons)}" for item in lookup.rejected)
    return [RunCase(planned, item, rejected) for item in lookup.valid] or [RunCase(planned, None, rejected)]


def _pair(case: RunCase) -> str:
    asked = case.requested
    return f"{asked.runtimes['rollout']}/{asked.runtimes['training']}" if asked is not None else ""


def _age(case: RunCase) -> str:
    return case.attempt.seal.created if case.attempt is not None else ""


def _pair_of_baseline(found: list[list[RunCase]]) -> str:
    baseline = [
        item for items in found for item in items if item.planned.role == Role.CASE.value and not item.planned.delta
    ]
    return _pair(max(baseline, key=_age)) if baseline else ""


def _of(items: list[RunCase], pair: str, gone: Mapping[str, tuple[str, ...]]) -> RunCase:
    """Return the newest attempt of `pair`, or the case without one."""
    empty = RunCase(items[0].planned, None, items[0].rejected)
    found = next((item for item in items if _pair(item) == pair), empty)
    number = 0 if found.attempt is None else _number(found.attempt.path.name)
    told = (*found.rejected, *gone.get(found.planned.case_id, ()))
    newer = tuple(sorted(text for text in told if _number(text) > number))
    return replace(found, newer=newer) if newer else found


def _gone(store: Store) -> dict[str, tuple[str, ...]]:
    """Return the attempts that were sealed and are gone, with the reason: by case."""
    found: dict[str, tuple[str, ...]] = {}
    for check in store.gone():
        place = Path(check.path)
        told = f"{place.name}: {'; '.join(check.reasons)}"
        found[place.parent.name] = (*found.get(place.parent.name, ()), told)
    return found


def _number(text: str) -> int:
    """Return the number of the attempt that `text` begins with; 0 for another name."""
    return attempt_number(text.partition(":")[0]) or 0
