"""Two files, one with the rollout's log probabilities and one with the trainer's, joined into one dump.

The key is (sample_id, position), and the token at a key must be the same in both files. A token is compared
where both files call it active. What is active in one file and absent from the other is an error, because the
two sides then hold sequences of different lengths; samples that only one file has are counted and left out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xcfg.dumps.columns import OPTIONAL, SIDE_COLUMNS, Batch
from xcfg.dumps.rows import Rows, no_columns
from xcfg.errors import ArtifactError

Keys = NDArray[np.int64]


@dataclass(frozen=True)
class Joined:
    """How two files met. samples, tokens: in both. only_rollout, only_training: samples that one file has.

    only_rollout_tokens, only_training_tokens: the rows of those samples. active_in_one: joined tokens that are not
    compared, since only one file calls them active. unused: column and file that the other file replaces.
    example: a key of each side, for a join that found nothing.
    """

    rollout: str
    training: str
    samples: int
    tokens: int
    only_rollout: tuple[str, ...] = ()
    only_training: tuple[str, ...] = ()
    unused: str = ""
    example: str = ""
    only_rollout_tokens: int = 0
    only_training_tokens: int = 0
    active_in_one: int = 0

    def record(self) -> dict[str, Any]:
        """Return the counts as plain values: no name of a file or a sample."""
        return {
            "samples": self.samples,
            "tokens": self.tokens,
            "only_rollout": {"samples": len(self.only_rollout), "tokens": self.only_rollout_tokens},
            "only_training": {"samples": len(self.only_training), "tokens": self.only_training_tokens},
            "active_in_one": self.active_in_one,
        }

    def describe(self) -> str:
        """Return one sentence: what was joined and what was left out."""
        lines = [f"joined by sample_id and position: samples {self.samples}, tokens {self.tokens}"]
        for file, names, tokens in (
            (self.rollout, self.only_rollout, self.only_rollout_tokens),
            (self.training, self.only_training, self.only_training_tokens),
        ):
            if names:
                some = ", ".join(f"{name!r:.60}" for name in names[:3]) + (", …" if len(names) > 3 else "")
                lines.append(f"{len(names)} only in {file} ({some}), tokens {tokens}")
        if self.active_in_one:
            lines.append(f"not compared, since only one file calls them active: tokens {self.active_in_one}")
        return "; ".join([*lines, *([self.unused] if self.unused else [])])


def order_sides(first: Rows, second: Rows) -> tuple[Rows, Rows]:
    """Return (rollout, training) of two files, in whichever order they were given.

    A file that holds both sides (a training dump often repeats what the rollout recorded) gives the one that the
    other file lacks. Raises ArtifactError when both files hold both, or both the same one.
    """
    if len(first.sides) == len(second.sides) == 2:
        raise ArtifactError(
            "both files hold both log probabilities; there is nothing to join", hint="Compare one of them alone."
        )
    first, second = _lacking(first, second), _lacking(second, first)
    if first.sides == second.sides:
        missing = next(side for side in SIDE_COLUMNS if side not in first.sides)
        raise ArtifactError(
            f"{first.source!r} and {second.source!r} both hold the {first.sides[0]} side; "
            f"the {missing} side is missing",
            hint=f"Give one file with {' and one with '.join(SIDE_COLUMNS.values())}.",
        )
    return (first, second) if first.sides == ("rollout",) else (second, first)


def _lacking(rows: Rows, other: Rows) -> Rows:
    """Return `rows` with only the side that `other` lacks, when it holds both."""
    if len(rows.sides) < 2 or not other.sides:
        return rows
    unused = SIDE_COLUMNS[other.sides[0]]
    kept = {name: values for name, values in rows.columns.items() if name != unused}
    return replace(rows, columns=kept, unused=unused)


def join(rollout: Rows, training: Rows) -> tuple[Rows, Joined]:
    """Return the rows of both files, and how they met; no key in common gives 0 rows (EMPTY_JOIN).

    Raises ArtifactError, naming the sample, where the token at a key differs, or where a file lacks a row that
    is active in the other.
    """
    known = {name: code for code, name in enumerate(rollout.sample_ids)}
    codes = np.array([known.get(name, -1) for name in training.sample_ids], dtype=np.int32)
    shared = np.zeros(len(known), dtype=np.bool_)
    shared[codes[codes >= 0]] = True
    left = _keyed(rollout, np.where(shared, np.arange(len(known)), -1))
    right = _keyed(training, codes)
    keys = np.union1d(left[0], right[0])
    places = np.searchsorted(keys, left[0]), np.searchsorted(keys, right[0])
    have = [np.zeros(len(keys), dtype=np.bool_) for _ in places]
    for found, place in zip(have, places, strict=True):
        found[place] = True
    both = have[0] & have[1]
    report = Joined(
        rollout=rollout.source,
        training=training.source,
        samples=int(shared.sum()),
        tokens=int(both.sum()),
        only_rollout=tuple(name for name, code in known.items() if not shared[code]),
        only_training=tuple(name for name, code in zip(training.sample_ids, codes, strict=True) if code < 0),
        unused="; ".join(f"{rows.unused} of {rows.source} is not used" for rows in (rollout, training) if rows.unused),
        example="" if both.any() else f"{_example(rollout)} against {_example(training)}",
        only_rollout_tokens=rollout.count - len(left[0]),
        only_training_tokens=training.count - len(right[0]),
    )
    dtypes = {**rollout.dtypes, **training.dtypes}
    if not both.any():
        return Rows(no_columns(), (), f"{rollout.source} with {training.source}", dtypes), report
    aligned = [
        _aligned(rows, picked, place, len(keys))
        for rows, (_, picked), place in zip((rollout, training), (left, right), places, strict=True)
    ]
    _refuse_other_tokens(rollout, training, keys, aligned, both)
    _refuse_other_lengths(rollout, training, keys, aligned, have)
    columns = _merged(aligned, have, both)
    one = both & (aligned[0]["active"] ^ aligned[1]["active"])
    report = replace(report, active_in_one=int(one.sum()))
    columns["sequence"] = _renumbered(keys)
    columns["position"] = (keys & 0xFFFFFFFF).astype(np.int32)
    names = tuple(name for name, code in known.items() if shared[code])
    return Rows(columns, names, f"{rollout.source} with {training.source}", dtypes), report


def _keyed(rows: Rows, codes: NDArray[np.integer]) -> tuple[Keys, NDArray[np.int64]]:
    """Return the sorted keys of the rows whose sample has a code, and the rows in that order."""
    code = codes[rows.columns["sequence"]] if len(codes) else np.zeros(0, dtype=np.int64)
    picked = np.flatnonzero(code >= 0)
    keys = (code[picked].astype(np.int64) << 32) | rows.columns["position"][picked]
    order = np.argsort(keys, kind="stable")
    return keys[order], picked[order]


def _aligned(rows: Rows, picked: NDArray[np.int64], place: NDArray[np.int64], total: int) -> Batch:
    """Return the columns of one file over all joined rows; NaN, False or -1 where it has no row."""
    found: Batch = {}
    for name, values in rows.columns.items():
        if name in ("sequence", "position"):
            continue
        fill = np.nan if values.dtype.kind == "f" else False if values.dtype == np.bool_ else -1
        dtype = np.promote_types(values.dtype, np.int8) if values.dtype.kind == "u" else values.dtype
        found[name] = np.full(total, fill, dtype=dtype)
        found[name][place] = values[picked]
    return found


def _merged(aligned: list[Batch], have: list[NDArray[np.bool_]], both: NDArray[np.bool_]) -> Batch:
    rollout, training = aligned
    columns = {
        "token_id": np.where(have[0], rollout["token_id"], training["token_id"]),
        "active": rollout["active"] & training["active"] & both,
        "logp_rollout": rollout["logp_rollout"],
        "logp_train": training["logp_train"],
    }
    for name in OPTIONAL:
        sampled = name == "weight_version"  # the version that sampled the token is the rollout's to say
        first, second = (rollout, training) if sampled else (training, rollout)
        if name in first or name in second:
            columns[name] = first[name] if name in first else second[name]
    return columns


def _renumbered(keys: Keys) -> NDArray[np.int32]:
    code = keys >> 32
    changes = np.concatenate(([0], np.cumsum(np.diff(code) != 0)))
    return changes.astype(np.int32)


def _refuse_other_tokens(
    rollout: Rows, training: Rows, keys: Keys, aligned: list[Batch], both: NDArray[np.bool_]
) -> None:
    bad = np.flatnonzero(both & (aligned[0]["token_id"] != aligned[1]["token_id"]))
    if len(bad):
        key = int(keys[bad[0]])
        ids = [int(columns["token_id"][bad[0]]) for columns in aligned]
        raise ArtifactError(
            f"the token ids differ at {len(bad)} of {int(both.sum())} joined rows, the first at sample "
            f"{rollout.sample_ids[key >> 32]!r}, position {key & 0xFFFFFFFF}: {ids[0]} in {rollout.source!r}, "
            f"{ids[1]} in {training.source!r}",
            hint="The two sides did not see the same tokens: look for text that was tokenised again, a shift by "
            "one, or sample ids that name other samples.",
        )


def _refuse_other_lengths(
    rollout: Rows, training: Rows, keys: Keys, aligned: list[Batch], have: list[NDArray[np.bool_]]
) -> None:
    for here, there, mine, rows, other in (
        (0, 1, aligned[0], rollout, training),
        (1, 0, aligned[1], training, rollout),
    ):
        bad = np.flatnonzero(have[here] & mine["active"] & ~have[there])
        if not len(bad):
            continue
        key = int(keys[bad[0]])
        name = rollout.sample_ids[key >> 32]
        raise ArtifactError(
            f"sample {name!r} has other lengths in the two files: position {key & 0xFFFFFFFF} is active in "
            f"{rows.source!r} and absent from {other.source!r} ({len(bad)} such rows in all; "
            f"{_extent(rollout, name)} in {rollout.source!r}, {_extent(training, name)} in {training.source!r})",
            hint="Mark tokens that one side did not score as not active, and drop samples that one side truncated.",
        )


def _extent(rows: Rows, name: str) -> str:
    at = rows.sample_ids.index(name)
    start, stop = (int(value) for value in rows.offsets[at : at + 2])
    positions = rows.columns["position"]
    return f"{stop - start} rows at positions {int(positions[start])} to {int(positions[stop - 1])}"


def _example(rows: Rows) -> str:
    if not rows.count:
        return f"no row in {rows.source!r}"
    return f"sample {rows.sample_of(0)!r}, position {int(rows.columns['position'][0])} in {rows.source!r}"
