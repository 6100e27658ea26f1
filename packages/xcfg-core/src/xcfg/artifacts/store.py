"""The store of one experiment: publish scores, attempts, rollouts and analyses; find what can be reused.

Any number of processes may work on one root. There is no lock: a name is taken by the rename that publishes
it, and whoever comes second uses what is there or takes the next number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xcfg.artifacts import revisions
from xcfg.artifacts.atomic import Writer
from xcfg.artifacts.checking import Context, content_faults
from xcfg.artifacts.ended import check_planned, is_record
from xcfg.artifacts.layout import (
    ANALYSIS,
    CASES,
    COMPARISON,
    COMPLETE,
    ENDED,
    FAILURE,
    REQUESTED,
    ROLLOUTS,
    SCORE_FILE,
    SCORES,
    TEMPORARY,
    attempt_folder,
    attempt_number,
    component,
    experiment_component,
    is_component,
    is_digest,
    is_payload,
    score_folder,
    split_score,
)
from xcfg.artifacts.reading import listing, read_bounded
from xcfg.artifacts.seals import Seal, closed, with_files
from xcfg.artifacts.stored import CaseFacts, Lookup, Rejected, ScoreFacts, StoredAttempt, StoredScore
from xcfg.errors import ArtifactError
from xcfg.identity.rollout import MANIFEST_FILE, TENSORS_FILE
from xcfg.schema.attempt import CASE_SEAL, RUN_RECORD, SCORE_SEAL, AttemptCheck, CaseSeal, RunRecord, ScoreSeal
from xcfg.schema.codec import digest, evolve, plain, pretty_json

if TYPE_CHECKING:
    from xcfg.identity.rollout import Rollout

Content = bytes | Path


class Store:
    """The artifacts of one experiment under `root`; nothing is created before the first write.

    on_boundary: called with a name after every step that reaches the disk (for fault tests).
    """

    def __init__(self, root: Path, experiment_id: str, *, on_boundary: Callable[[str], None] | None = None) -> None:
        """Raise ConfigError when `experiment_id` is not one safe path component."""
        self.folder = Path(root) / experiment_component(experiment_id)
        self._writer = Writer(on_boundary)
        self._context = Context(self.folder)

    # --- the experiment -----------------------------------------------------------------------------------

    def open_experiment(
        self,
        experiment: Mapping[str, Any],
        plan_lines: Sequence[Mapping[str, Any]],
        identity: Mapping[str, Any],
    ) -> revisions.Revision:
        """Return the revision with this content; publish experiment-N.json and plan-N.jsonl if there is none.

        experiment: plain JSON without machine paths. plan_lines: one object per case, each with its
        `case_id`. identity: the digests of the logical problem. Raises ConfigError (exit 2) when an earlier
        revision has another identity, ArtifactError when one was altered, ExecutionError when the disk
        refuses.
        """
        self._writer.ensure_folder(self.folder)
        revision = revisions.publish(self._writer, self.folder, experiment, plan_lines, identity)
        self._context.refresh()
        return revision

    def revisions(self) -> tuple[revisions.Revision, ...]:
        """Return every whole revision, oldest first; altered ones are left out (`check_seals` names them)."""
        return revisions.scan(self.folder).whole

    # --- side scores --------------------------------------------------------------------------------------

    def scores(self, key: str) -> Lookup[StoredScore]:
        """Return the stored scores of `key`, newest first, and what was rejected and why."""
        self._context.refresh()
        found = self._context.scores(component(key, "score key"))
        valid = tuple(StoredScore(score.path, score.seal) for score in found if score.ok and score.seal)
        return Lookup(valid, tuple(Rejected(score.path, score.faults) for score in found if not score.ok))

    def find_score(self, key: str) -> StoredScore | None:
        """Return the newest valid score of `key`, or None."""
        return next(iter(self.scores(key).valid), None)

    def score_keys(self) -> tuple[str, ...]:
        """Return the keys that have a folder, valid or not."""
        parts = (split_score(name) for name in listing(self.folder, SCORES))
        return tuple(sorted({part[0] for part in parts if part is not None}))

    def put_score(self, facts: ScoreFacts, files: Mapping[str, Content], *, fresh: bool = False) -> StoredScore:
        """Seal one side score. Returns the stored one when a valid score of the key is there already.

        files: payload name -> bytes, or a file to copy; layout.SCORE_PAYLOADS are required. An invalid folder
        of the key stays and the score goes to `<key>.r2`, `.r3` ...; so it does with `fresh`, for a forced
        rescore.
        """
        key = component(facts.key, "score key")
        if not fresh and (there := self.find_score(key)) is not None:
            return there
        seal = ScoreSeal(
            schema_version=SCORE_SEAL,
            key=key,
            arm=facts.arm,
            side=facts.side,
            rollout=facts.rollout,
            files={},
            environment=dict(facts.environment),
            created=_now(),
        )
        with_files(seal, dict.fromkeys(_payloads(files), "0" * 64))
        parent = self._writer.ensure_folder(self.folder, SCORES)
        with self._writer.temporary(parent, key) as temporary:
            seal = self._complete(temporary, with_files(seal, self._write_all(temporary, files)))
            revision = 1
            while not self._writer.publish(temporary, parent / score_folder(key, revision)):
                if not fresh and (there := self.find_score(key)) is not None:
                    return there
                revision += 1
            return StoredScore(parent / score_folder(key, revision), seal)

    # --- cases --------------------------------------------------------------------------------------------

    def case_ids(self) -> tuple[str, ...]:
        """Return the cases that have a folder."""
        return tuple(name for name in listing(self.folder, CASES) if is_component(name))

    def attempts(self, case_id: str) -> Lookup[StoredAttempt]:
        """Return the valid attempts of a case, newest first, and what was rejected and why."""
        self._context.refresh()
        valid, rejected = [], []
        names = listing(self.folder, CASES, component(case_id, "case id"))
        numbered = ((attempt_number(name), name) for name in names if not name.startswith(TEMPORARY))
        for number, name in sorted(numbered, key=lambda item: -(item[0] or 0)):
            found = self._context.check_attempt(case_id, name)
            if found.ok and found.seal is not None and number is not None:
                valid.append(StoredAttempt(found.path, found.seal))
            else:
                rejected.append(Rejected(found.path, found.faults or ("its name is no attempt number",)))
        return Lookup(tuple(valid), tuple(rejected))

    def gone(self) -> tuple[AttemptCheck, ...]:
        """Return one check for every attempt that was sealed and is not there any more."""
        self._context.refresh()
        return tuple(check for check in check_planned(self._context) if not check.unfinished)

    def put_attempt(
        self,
        case_id: str,
        facts: CaseFacts,
        files: Mapping[str, Content],
        links: Mapping[str, StoredScore] | None = None,
    ) -> StoredAttempt:
        """Seal the next attempt of a case.

        files: payload name -> bytes, or a file to copy. links: payload name -> side score whose score.pt is
        hard-linked (copied where that is impossible) and hashed again. Raises ArtifactError, and publishes
        nothing, when what it would publish is not valid: payloads that the status requires, digests of a
        revision and rollout of this store, a comparison.json that says another status.
        """
        component(case_id, "case id")
        links = links or {}
        seal = _draft(case_id, facts)
        self._check_draft(seal, files, links)
        parent = self._writer.ensure_folder(self.folder, CASES, case_id)
        with self._writer.temporary(parent, "attempt") as temporary:
            seal = with_files(seal, self._write_all(temporary, files) | self._link_all(temporary, links))
            number = 0
            while True:
                number = max(number + 1, self._next_number(case_id))
                (temporary / COMPLETE).unlink(missing_ok=True)  # a race for the last number was lost
                seal = self._complete(temporary, evolve(seal, attempt_id=attempt_folder(number)))
                if self._writer.publish(temporary, parent / seal.attempt_id):
                    return StoredAttempt(parent / seal.attempt_id, seal)

    def _check_draft(self, seal: CaseSeal, files: Mapping[str, Content], links: Mapping[str, StoredScore]) -> None:
        digests = dict.fromkeys(_payloads([*files, *links]), "0" * 64)
        digests |= {name: score.seal.files[SCORE_FILE] for name, score in links.items()}
        known = [name for name in (REQUESTED, COMPARISON, FAILURE) if name in files]
        faults = content_faults(seal, {name: _bytes(files[name]) for name in known})
        linked = {score.seal.key: score.seal for score in links.values()}
        faults += [f"it links score {key}, which no arm names" for key in linked if key not in seal.scores.values()]
        self._context.refresh()
        faults += self._context.surroundings(with_files(seal, digests), linked)
        if faults:
            raise ArtifactError(f"case {seal.case_id!r} cannot be sealed: " + "; ".join(faults))

    def _link_all(self, temporary: Path, links: Mapping[str, StoredScore]) -> dict[str, str]:
        digests = {}
        for name, score in links.items():
            self._writer.link(score.score, temporary / name)
            digests[name] = self._context.digests.of(str(temporary / name))
            if digests[name] != score.seal.files[SCORE_FILE]:
                raise ArtifactError(
                    f"{str(score.score)!r} was altered after it was sealed", hint="Score this side again."
                )
        return digests

    def _next_number(self, case_id: str) -> int:
        numbers = (attempt_number(name) for name in listing(self.folder, CASES, case_id))
        return max((number for number in numbers if number is not None), default=0) + 1

    # --- rollouts and analyses ----------------------------------------------------------------------------

    def put_rollout(self, rollout: Rollout) -> Path:
        """Store a copy of a frozen rollout; return its folder, also when it was there already."""
        sha256 = rollout.sha256
        if not is_digest(sha256):
            raise ArtifactError(f"{sha256!r} is no SHA-256 of a rollout manifest")
        if (there := self.find_rollout(sha256)) is not None:
            return there
        parent = self._writer.ensure_folder(self.folder, ROLLOUTS)
        with self._writer.temporary(parent, sha256) as temporary:
            digests = self._write_all(temporary, _rollout_files(rollout))
            if digests != {MANIFEST_FILE: sha256, TENSORS_FILE: rollout.manifest.tensors_sha256}:
                raise ArtifactError(f"the files of rollout {sha256} are not those that its digests name")
            self._writer.sync_folder(temporary)
            revision = 1
            while not self._writer.publish(temporary, parent / score_folder(sha256, revision)):
                if (there := self.find_rollout(sha256)) is not None:
                    return there
                revision += 1
            return parent / score_folder(sha256, revision)

    def find_rollout(self, sha256: str) -> Path | None:
        """Return the folder of a whole copy of the frozen rollout, or None."""
        self._context.refresh()
        return self._context.rollout(sha256)

    def put_analysis(self, document: Mapping[str, Any]) -> Path:
        """Store a result under the digest of its canonical JSON; return its path, also when it was there."""
        return self._put_document(ANALYSIS, document, lambda name: not self._context.analysis_faults(name))

    def put_ended(self, experiment: str, cases: Mapping[str, str]) -> Path:
        """Record which attempt stands for each case now that a run has ended, so that none can go unnoticed.

        experiment: the digest that CaseSeal.experiment names. cases: case id -> attempt, of those that ended.
        """
        record = plain(RunRecord(schema_version=RUN_RECORD, experiment=experiment, cases=dict(cases)))
        return self._put_document(ENDED, record, lambda name: is_record(self.folder, name))

    def _put_document(self, place: str, document: Mapping[str, Any], is_good: Callable[[str], bool]) -> Path:
        try:
            data, stem = pretty_json(document), digest(document)
        except ValueError as error:
            raise ArtifactError(f"the document for {place}/ is not plain JSON: {error}") from None
        parent = self._writer.ensure_folder(self.folder, place)
        revision = 1
        while True:
            target = parent / f"{score_folder(stem, revision)}.json"
            if self._writer.publish_file(target, data) or is_good(target.name):
                return target
            revision += 1

    # --- shared -------------------------------------------------------------------------------------------

    def _write_all(self, temporary: Path, files: Mapping[str, Content]) -> dict[str, str]:
        return {name: self._writer.write(temporary / name, content) for name, content in files.items()}

    def _complete(self, temporary: Path, seal: Seal) -> Seal:
        """Write COMPLETE, the last file, and bring the folder to the disk; return the seal as written."""
        final = closed(seal)
        self._writer.write(temporary / COMPLETE, pretty_json(final))
        self._writer.sync_folder(temporary)
        return final


def _payloads(names: Iterable[str]) -> list[str]:
    result = list(names)
    bad = [name for name in result if not is_payload(name)]
    twice = {name for name in result if result.count(name) > 1}
    if bad or twice:
        raise ArtifactError(
            f"{(bad or sorted(twice))[0]!r} " + ("is no safe payload name" if bad else "is given twice"),
            hint="Use letters, digits, '.', '_' and '-', at most 128, and begin with a letter or a digit.",
        )
    return result


def _draft(case_id: str, facts: CaseFacts) -> CaseSeal:
    return CaseSeal(
        schema_version=CASE_SEAL,
        case_id=case_id,
        attempt_id="",
        status=facts.status.value,
        assessment=facts.assessment,
        files={},
        experiment=facts.experiment,
        plan_line=facts.plan_line,
        contract=facts.contract,
        rollout=facts.rollout,
        scoring_key=facts.scoring_key,
        comparison_key=facts.comparison_key,
        scores=dict(facts.scores),
        created=_now(),
    )


def _rollout_files(rollout: Rollout) -> dict[str, Content]:
    if rollout.path is not None:
        return {TENSORS_FILE: rollout.path / TENSORS_FILE, MANIFEST_FILE: rollout.path / MANIFEST_FILE}
    from safetensors.numpy import save

    return {TENSORS_FILE: save(rollout.tensors), MANIFEST_FILE: pretty_json(rollout.manifest)}


def _bytes(content: Content) -> bytes:
    return content if isinstance(content, bytes) else read_bounded(str(content))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
