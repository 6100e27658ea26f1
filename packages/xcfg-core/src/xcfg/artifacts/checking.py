"""One sealed folder with everything around it: its names, its plan line, its rollout, the scores it copies.

The store uses these checks before it reuses anything, and `check_seals` to report. Neither can be laxer than
the other. A fault makes a folder invalid; a note (it begins with `note: `) does not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic

from xcfg.artifacts.layout import (
    ANALYSIS,
    CASES,
    COMPARISON,
    FAILURE,
    REQUESTED,
    ROLLOUTS,
    SCORE_FILE,
    SCORES,
    copy_of,
    split_score,
)
from xcfg.artifacts.reading import Digests, entries, listing, opened, read_bounded
from xcfg.artifacts.revisions import Scan, fingerprint, scan
from xcfg.artifacts.seals import Seal, check_folder
from xcfg.errors import ArtifactError, ConfigError
from xcfg.identity.rollout import MANIFEST_FILE, TENSORS_FILE
from xcfg.schema.attempt import CaseSeal, ScoreSeal
from xcfg.schema.codec import digest, parse_strict
from xcfg.schema.names import Status

NOTE = "note: "
_JUDGED = (Status.PASS.value, Status.MISMATCH.value)


@dataclass(frozen=True)
class Checked(Generic[Seal]):
    """A folder, its seal (None without a readable one), what is wrong with it, and notes."""

    path: Path
    seal: Seal | None
    faults: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the folder may be used."""
        return self.seal is not None and not self.faults


@dataclass
class Context:
    """One experiment folder while it is being checked. `digests` remembers files, the rest what was found.

    Scores are read once per Context; `refresh` forgets them.
    """

    folder: Path
    digests: Digests = field(default_factory=Digests)
    _scan: tuple[object, Scan] | None = None
    _scores: dict[str, tuple[Checked[ScoreSeal], ...]] = field(default_factory=dict)
    _rollouts: dict[str, Path | None] = field(default_factory=dict)
    _places: dict[str, list[str]] = field(default_factory=dict)

    def refresh(self) -> None:
        """Forget what was found; files that did not change are still not hashed again."""
        self._places.clear()
        self._scores.clear()
        self._rollouts.clear()

    @property
    def revisions(self) -> Scan:
        """The experiment's revisions; read again only when a file of them changed."""
        stamp = fingerprint(self.folder)
        if self._scan is None or self._scan[0] != stamp:
            self._scan = (stamp, scan(self.folder))
        return self._scan[1]

    def scores(self, key: str) -> tuple[Checked[ScoreSeal], ...]:
        """Every folder of score `key`, newest first, checked."""
        if key not in self._scores:
            found = []
            for name in self._names(SCORES):
                parts = split_score(name) if name.startswith(key) else None
                if parts is not None and parts[0] == key:
                    found.append((parts[1], self.check_score(name)))
            self._scores[key] = tuple(score for _, score in sorted(found, key=lambda item: -item[0]))
        return self._scores[key]

    def _names(self, place: str) -> list[str]:
        """The names in a place; none when it is no real folder, which check_seals reports by itself."""
        if place not in self._places:
            try:
                self._places[place] = listing(self.folder, place)
            except ArtifactError:
                self._places[place] = []
        return self._places[place]

    def check_score(self, name: str) -> Checked[ScoreSeal]:
        """Check the folder `name` in scores/."""
        path = self.folder / SCORES / name
        try:
            with opened(self.folder, SCORES, name) as descriptor:
                seal, faults = check_folder(descriptor, ScoreSeal, self.digests)
        except ArtifactError as error:
            return Checked(path, None, (error.message,))
        parts = split_score(name)
        if seal is not None and (parts is None or parts[0] != seal.key):
            faults.append(f"misplaced: its seal says key {seal.key!r}")
        return Checked(path, seal, tuple(faults))

    def check_attempt(self, case_id: str, attempt_id: str) -> Checked[CaseSeal]:
        """Check the folder `attempt_id` in cases/`case_id`/."""
        path = self.folder / CASES / case_id / attempt_id
        try:
            with opened(self.folder, CASES, case_id, attempt_id) as descriptor:
                seal, faults = check_folder(descriptor, CaseSeal, self.digests)
                if seal is None:
                    return Checked(path, None, tuple(faults))
                faults += content_faults(seal, _json_payloads(descriptor, seal))
        except ArtifactError as error:
            return Checked(path, None, (error.message,))
        if (seal.case_id, seal.attempt_id) != (case_id, attempt_id):
            faults.append(f"misplaced: its seal says {seal.case_id}/{seal.attempt_id}")
        return Checked(path, seal, tuple(faults + self.surroundings(seal)))

    def surroundings(self, seal: CaseSeal, linked: Mapping[str, ScoreSeal] | None = None) -> list[str]:
        """Return what the rest of the experiment folder says against `seal`.

        linked: seals of scores (by key) that the caller has checked, so that they are not read again.
        """
        faults = []
        whole = [entry for entry in self.revisions.whole if entry.experiment_digest == seal.experiment]
        if not whole:
            faults.append(f"its experiment {seal.experiment[:12]}… is no revision in this folder")
        elif not any(entry.lines.get(seal.case_id) == seal.plan_line for entry in whole):
            faults.append(f"its plan line {seal.plan_line[:12]}… is not in the plan of its experiment")
        if seal.rollout and self.rollout(seal.rollout) is None:
            faults.append(f"its frozen rollout {seal.rollout[:12]}… is missing or altered")
        for arm, key in sorted(seal.scores.items()):
            faults += self._copy_faults(seal, arm, key, linked or {})
        return faults

    def _copy_faults(self, seal: CaseSeal, arm: str, key: str, linked: Mapping[str, ScoreSeal]) -> list[str]:
        name = copy_of(arm, seal.files)
        stored = () if key in linked else self.scores(key)
        if name is None:
            there = key in linked or any(score.ok for score in stored)
            needed = seal.status in _JUDGED or not there
            return [f"it holds no copy of the score of arm {arm}, key {key}"] if needed else []
        # A score that rotted or was scored again still says, in its seal, which bytes were copied from it.
        known = [linked[key]] if key in linked else [score.seal for score in stored if score.seal is not None]
        unknown = len(known) < len(stored)
        faults = []
        if known and not unknown and seal.files[name] not in [score.files[SCORE_FILE] for score in known]:
            faults.append(f"{name} is no copy of the score of arm {arm}, key {key}")
        faults += [
            f"{name} stands for arm {arm}, its score says arm {score.arm} of rollout {score.rollout[:12]}…"
            for score in known
            if score.arm != arm or (seal.rollout and score.rollout != seal.rollout)
        ]
        return faults

    def rollout(self, sha256: str) -> Path | None:
        """Return the folder of a whole copy of the frozen rollout, or None."""
        if sha256 not in self._rollouts:
            names = [name for name in self._names(ROLLOUTS) if name.partition(".")[0] == sha256]
            good = [name for name in names if not self.rollout_faults(name)]
            self._rollouts[sha256] = self.folder / ROLLOUTS / good[-1] if good else None
        return self._rollouts[sha256]

    def rollout_faults(self, name: str) -> list[str]:
        """Return what is wrong with the folder `name` in rollouts/: its manifest and tensors by digest."""
        try:
            with opened(self.folder, ROLLOUTS, name) as descriptor:
                if entries(descriptor) != sorted((MANIFEST_FILE, TENSORS_FILE)):
                    return [f"it should hold {MANIFEST_FILE} and {TENSORS_FILE} and nothing else"]
                manifest = read_bounded(MANIFEST_FILE, parent=descriptor)
                if hashlib.sha256(manifest).hexdigest() != name.partition(".")[0]:
                    return [f"altered: {MANIFEST_FILE} is not the manifest that the folder is named after"]
                stated = parse_strict(manifest, source=MANIFEST_FILE)["tensors_sha256"]
                altered = self.digests.of(TENSORS_FILE, parent=descriptor) != stated
        except (ArtifactError, ConfigError) as error:
            return [error.message]
        except (KeyError, TypeError):
            return [f"malformed: {MANIFEST_FILE} names no tensors"]
        return [f"altered: {TENSORS_FILE} is not the file that the manifest names"] if altered else []

    def analysis_faults(self, name: str) -> list[str]:
        """Return what is wrong with the file `name` in analysis/: its content must hash to its name."""
        try:
            with opened(self.folder, ANALYSIS) as descriptor:
                document = parse_strict(read_bounded(name, parent=descriptor), source=name)
            same = digest(document) == name.partition(".")[0]
        except (ArtifactError, ConfigError) as error:
            return [error.message]
        except ValueError as error:
            return [f"malformed: {error}"]
        return [] if same else ["altered: its content does not hash to its name"]


def _json_payloads(descriptor: int, seal: CaseSeal) -> dict[str, bytes]:
    names = [name for name in (REQUESTED, COMPARISON, FAILURE) if name in seal.files]
    return {name: read_bounded(name, parent=descriptor) for name in names}


def content_faults(seal: CaseSeal, payloads: Mapping[str, bytes]) -> list[str]:
    """Return where requested.json, comparison.json or failure.json say another case, status or contract."""
    faults: list[str] = []
    for name, data in sorted(payloads.items()):
        try:
            document = parse_strict(data, source=name)
        except ConfigError as error:
            faults.append(f"malformed: {error.message}")
            continue
        if not isinstance(document, dict):
            faults.append(f"malformed: {name} is no object")
            continue
        faults += _contradictions(seal, name, document)
    return faults


def _contradictions(seal: CaseSeal, name: str, document: Mapping[str, Any]) -> list[str]:
    stated: dict[str, Any] = {"case_id": document.get("case_id", seal.case_id)}
    expected: dict[str, Any] = {"case_id": seal.case_id}
    if name == COMPARISON or (name == FAILURE and "status" in document):
        stated["status"], expected["status"] = document.get("status"), seal.status
    if name == COMPARISON:
        assessment = document.get("assessment")
        stated["assessment"] = assessment.get("assessment") if isinstance(assessment, dict) else assessment
        expected["assessment"] = seal.assessment
        contract = document.get("contract")
        if isinstance(contract, dict) and "digest" in contract:
            stated["contract"], expected["contract"] = contract["digest"], seal.contract
    return [
        f"{name} says {key} {stated[key]!r}, COMPLETE says {expected[key]!r}"
        for key in sorted(stated)
        if stated[key] != expected[key]
    ]
