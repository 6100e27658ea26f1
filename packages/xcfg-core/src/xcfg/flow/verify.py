"""Offline verification: every seal, and every comparison recomputed from the tensors it came from."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from xcfg.artifacts.layout import CASES, COMPARISON, attempt_number
from xcfg.artifacts.store import Store
from xcfg.artifacts.stored import StoredAttempt
from xcfg.artifacts.verify import check_seals
from xcfg.contract import load_contract
from xcfg.errors import IdentityError, XcfgError
from xcfg.flow import ties
from xcfg.flow.kept import check_alone
from xcfg.flow.recheck import recheck_attempt
from xcfg.identity.rollout import Rollout, read_rollout
from xcfg.schema.attempt import AttemptCheck
from xcfg.schema.codec import evolve
from xcfg.schema.summary import VERIFY, VerifySummary


def verify(path: Path, *, seals_only: bool = False) -> VerifySummary:
    """Check a runs folder, one experiment, one attempt, a kept comparison of a dump, or a frozen rollout.

    seals_only: hashes only; imports no torch. Raises UsageError when `path` does not exist, NothingSelectedError
    when it holds no attempt and no score.
    """
    try:
        alone = check_alone(path.absolute(), seals_only=seals_only)
    except IdentityError as error:
        alone = AttemptCheck(path=str(path.absolute()), ok=False, reasons=(error.message,))
    if alone is not None:
        return VerifySummary(schema_version=VERIFY, attempts=(alone,))
    checks = check_seals(path.absolute())
    if not seals_only:
        checks = tuple(_recomputed(checks))
    return VerifySummary(schema_version=VERIFY, attempts=tuple(checks))


def _recomputed(checks: Iterable[AttemptCheck]) -> Iterable[AttemptCheck]:
    places = Places()
    for check in checks:
        folder = Path(check.path)
        is_attempt = folder.parent.parent.name == CASES and attempt_number(folder.name) is not None
        if not check.ok or not is_attempt or not (folder / COMPARISON).exists():
            yield check
            continue
        try:
            reasons = places.recheck(folder)
        except XcfgError as error:
            reasons = [error.message]
        yield evolve(check, ok=not reasons, reasons=(*check.reasons, *reasons))


class Places:
    """The stores, attempts and rollouts that were opened, so that each is read once."""

    def __init__(self) -> None:
        """Start with nothing opened."""
        self._stores: dict[Path, Store] = {}
        self._attempts: dict[Path, StoredAttempt] = {}
        self._rollouts: dict[Path, Rollout] = {}

    def attempt(self, folder: Path) -> StoredAttempt | None:
        """Return the validly sealed attempt in `folder`, or None."""
        if folder not in self._attempts:
            home = folder.parent.parent.parent
            store = self._stores.setdefault(home, Store(home.parent, home.name))
            for attempt in store.attempts(folder.parent.name).valid:
                self._attempts[home / CASES / folder.parent.name / attempt.path.name] = attempt
        return self._attempts.get(folder)

    def recheck(self, folder: Path) -> list[str]:
        """Return how the comparison sealed in `folder` differs from the one recomputed now."""
        attempt = self.attempt(folder)
        if attempt is None:
            return ["its experiment folder does not accept it; give the experiment's folder to see why"]
        contract = load_contract()
        if contract.digest != attempt.seal.contract:
            return [f"judged by the contract {attempt.seal.contract[:16]}…, which this xcfg does not carry"]
        store = self._stores[folder.parent.parent.parent]
        place = store.find_rollout(attempt.seal.rollout)
        if place is None:
            return [f"the frozen rollout {attempt.seal.rollout[:16]}… is not beside it"]
        if place not in self._rollouts:
            self._rollouts[place] = read_rollout(place, sha256=attempt.seal.rollout)
        faults = recheck_attempt(attempt, self._rollouts[place], contract) + ties.to_plan(attempt, store)
        for arm, key in sorted(attempt.seal.scores.items()):
            faults += ties.to_score(attempt, store, arm, key)
        return faults
