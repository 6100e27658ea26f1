"""Recomputing a sealed comparison from the files of its own attempt; needs no plugin and no engine."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from xcfg.artifacts.stored import StoredAttempt
from xcfg.comparison import same_comparison
from xcfg.contract import Contract
from xcfg.errors import ArtifactError, ConfigError
from xcfg.flow.documents import Actual, IdentityDocument, Requested
from xcfg.flow.judge import judge
from xcfg.flow.record import score_file, stored_column
from xcfg.identity.rollout import Rollout
from xcfg.schema.codec import decode_json
from xcfg.schema.result import Comparison

T = TypeVar("T")


def recheck_attempt(attempt: StoredAttempt, rollout: Rollout, contract: Contract) -> list[str]:
    """Return how the sealed comparison differs from the one recomputed now; empty when it holds.

    Raises ArtifactError when a file is missing, altered or malformed.
    """
    stored = decode(attempt, "comparison.json", Comparison)
    requested = decode(attempt, "requested.json", Requested)
    actual = decode(attempt, "actual.json", Actual)
    identity = decode(attempt, "identity.json", IdentityDocument)
    if identity.rollout != rollout.sha256:
        return [f"identity.json names the rollout {identity.rollout[:16]}…, not {rollout.sha256[:16]}…"]
    tables = sorted(actual.compute_dtypes)
    scores = {table: attempt.tensors(score_file(table, requested.verdict_arm))[0] for table in tables}
    fresh = judge(requested, actual, identity, scores, rollout, contract)
    faults = same_comparison(stored, fresh.comparison)
    return faults + _token_faults(attempt, fresh.token_diffs)


def _token_faults(attempt: StoredAttempt, fresh: dict[str, NDArray[Any]]) -> list[str]:
    if not fresh:
        return ["token_diffs.pt is there and no numbers are due"] if "token_diffs.pt" in attempt.seal.files else []
    stored, _ = attempt.tensors("token_diffs.pt")
    expected = {stored_column(name): array for name, array in fresh.items()}
    if set(stored) != set(expected):
        return [f"token_diffs.pt holds other columns than the scores give: {sorted(set(stored) ^ set(expected))[:4]}"]
    return [
        f"token_diffs.pt: {name} is not what the scores give"
        for name, array in sorted(expected.items())
        if not np.array_equal(stored[name], array, equal_nan=array.dtype.kind == "f")
    ]


def decode(attempt: StoredAttempt, name: str, kind: type[T]) -> T:
    """Return a JSON payload of a sealed attempt as a record. Raises ArtifactError."""
    try:
        return decode_json(attempt.read(name), kind, source=str(attempt.path / name))
    except ConfigError as error:
        raise ArtifactError(error.message, hint=error.hint) from None
