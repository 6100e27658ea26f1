"""The canonical columns of a dump (one row per token) and the checks that every batch passes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xcfg.errors import ArtifactError, did_you_mean

Batch = dict[str, NDArray[Any]]

REQUIRED: dict[str, str] = {
    "sample_id": "integer or text, the same for all tokens of one sequence",
    "position": "integer, 0-based logical position within the sequence",
    "token_id": "integer, the token at that position",
    "active": "boolean, whether the token is compared",
    "logp_rollout": "number in nats; may be absent only where not active (null in JSON, NaN in columns)",
    "logp_train": "number in nats; may be absent only where not active (null in JSON, NaN in columns)",
}
OPTIONAL: dict[str, str] = {
    "weight_version": "integer, version of the weights that sampled the token",
    "rank": "integer, the training rank that scored the token",
    "source": "text, where the row comes from; kept out of every judgement",
    "selected_logit": "number",
    "logsumexp": "number",
    "entropy": "number, nats",
    "token_rank": "integer, 1 is the most likely",
    "kept_mass": "number, probability kept by top-k or top-p",
    "phase": "integer, schema.names.Phase",
    "step_batch": "integer, real batch of the decode step",
}
INTEGER = frozenset(("position", "token_id", "weight_version", "rank", "token_rank", "phase", "step_batch"))
NUMBER = frozenset(("logp_rollout", "logp_train", "selected_logit", "logsumexp", "entropy", "kept_mass"))
SCORES = ("logp_rollout", "logp_train")
SIDE_COLUMNS = {"rollout": "logp_rollout", "training": "logp_train"}
KEYS = tuple(name for name in REQUIRED if name not in SCORES)
"""What every batch has; beside them stand both scores, or one where the other side lies in another file."""
BOUNDS = {"token_id": 2**31, "position": 2**31, "rank": 2**15, "weight_version": 2**31, "token_rank": 2**31}
"""Exclusive upper bounds; the lower bound is 0. What lies outside is no id, position or rank."""


def is_canonical(names: Iterable[str]) -> bool:
    """Whether `names` hold the keys and at least one of the two scores."""
    present = set(names)
    return present >= set(KEYS) and bool(present & set(SCORES))


IMPOSSIBLE = 0.5
"""Nats above which a value is no log probability: rounding carries one above 0, but by far less."""


def refuse_missing(present: set[str], where: str) -> None:
    """Raise ArtifactError unless the keys and at least one of the two scores are among `present`."""
    missing = sorted(set(KEYS) - present)
    if not present & set(SCORES):
        missing = sorted({*missing, *SCORES})
    if missing:
        hint = "; ".join(f"{name}: {REQUIRED[name]}" for name in missing)
        near = did_you_mean(missing[0], present)
        raise ArtifactError(f"{where} has no column {', '.join(map(repr, missing))}", hint=f"{hint}. {near}".strip())


def check_batch(batch: Batch, where: str) -> None:
    """Check columns, equal lengths, dtypes, bounds, and finite scores where active; raises ArtifactError.

    One of the two scores may be absent from the whole batch: a file of one side, to be joined with another.

    Scores are float32 or float64 [N], `active` bool [N], integer columns of an integer dtype [N].
    """
    refuse_missing(set(batch), where)
    lengths = {name: len(values) if values.ndim == 1 else -1 for name, values in batch.items()}
    if len(set(lengths.values())) != 1 or -1 in lengths.values():
        shown = ", ".join(f"{name} {tuple(batch[name].shape)}" for name in sorted(batch))
        raise ArtifactError(
            f"the columns of {where} are not of one length: {shown}",
            hint="Every column has one value per token.",
        )
    for name, values in batch.items():
        _check_dtype(name, values, where)
    for name in (*INTEGER, "sample_id"):
        if name in batch and batch[name].dtype.kind in "iu" and len(batch[name]):
            _check_bounds(name, batch[name], where)
    for name in [name for name in SCORES if name in batch]:
        _refuse_scores(
            name,
            batch["active"] & ~np.isfinite(batch[name]),
            batch,
            where,
            hint="An active token needs both log probabilities; mark tokens without one as not active.",
        )
        _refuse_scores(
            name,
            batch["active"] & (batch[name] > IMPOSSIBLE),
            batch,
            where,
            hint="A log probability is at most 0: is this a loss, a probability or another column?",
        )


def _refuse_scores(name: str, bad: NDArray[np.bool_], batch: Batch, where: str, *, hint: str) -> None:
    rows = np.flatnonzero(bad)
    if len(rows):
        row = int(rows[0])
        sample = batch["sample_id"][row]
        raise ArtifactError(
            f"{where}: {name} is {float(batch[name][row])!r} on {len(rows)} active tokens, the first at "
            f"sample {str(sample)!r:.80}, position {int(batch['position'][row])}",
            hint=hint,
        )


def _check_dtype(name: str, values: NDArray[Any], where: str) -> None:
    kind = values.dtype.kind
    if name == "active":
        good, wanted = values.dtype == np.bool_, "boolean"
    elif name in SCORES:
        good, wanted = str(values.dtype) in ("float32", "float64"), "float32 or float64"
    elif name in NUMBER:
        good, wanted = kind == "f", "floating"
    elif name in INTEGER:
        good, wanted = kind in "iu", "integer"
    elif name == "sample_id":
        good, wanted = kind in "iuUO", "integer or text"
    else:
        return
    if not good:
        raise ArtifactError(f"{where}: the column {name!r} is {values.dtype}, not {wanted}")


def _check_bounds(name: str, values: NDArray[Any], where: str) -> None:
    low, high = int(values.min()), int(values.max())
    least = -(2**63) if name == "sample_id" else 0
    if low < least or high >= BOUNDS.get(name, 2**63):
        raise ArtifactError(f"{where}: the column {name!r} holds {low if low < least else high}, which is out of range")
