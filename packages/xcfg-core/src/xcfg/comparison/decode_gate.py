"""Whether a score that calls itself a decode replay can be one: its tags, and its counted steps.

A full prefill gives nearly the same numbers, so the numbers cannot tell. What can is that every decoded token
needs a forward of a single token, and that sequences share such a forward only as one batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xcfg.identity.rollout import Rollout
from xcfg.schema.names import Phase
from xcfg.schema.worker import ScoreReport

REPLAYED = (Phase.FIRST_TOKEN.value, Phase.DECODE.value, Phase.RECOMPUTED.value)
COUNTED = ("step_batch", "owner_rank")


def decode_errors(rollout: Rollout, columns: Mapping[str, NDArray[Any]], reports: Sequence[ScoreReport]) -> list[str]:
    """Return why the columns of the arm rollout_decode are no forced replay; empty when nothing speaks against it.

    columns: over T tokens: `phase` (required); `step_batch` and `owner_rank` where the score has them, of integers.
    """
    phase = columns.get("phase")
    if phase is None or phase.shape != rollout.active.shape:
        return ["it has no column 'phase' over all tokens, so no token is known to come from a decode step"]
    odd = [name for name in COUNTED if name in columns and not _counts(columns[name], rollout)]
    if odd:
        return [f"its column {name!r} is no integer per token, so its steps cannot be counted" for name in odd]
    return [*_tag_errors(rollout, phase), *_step_errors(rollout, phase, columns, reports)]


def _counts(column: NDArray[Any], rollout: Rollout) -> bool:
    return column.shape == rollout.active.shape and column.dtype.kind in "iu"


def _tag_errors(rollout: Rollout, phase: NDArray[Any]) -> Iterator[str]:
    active = rollout.active
    other = int(np.count_nonzero(active & ~np.isin(phase, REPLAYED)))
    if other:
        yield f"{other} active tokens are tagged neither first_token, decode nor recomputed"
    follows = np.zeros_like(active)
    follows[1:] = active[:-1]
    follows[rollout.offsets[:-1]] = False
    follows &= active
    first = int(np.count_nonzero(follows & (phase == Phase.FIRST_TOKEN.value)))
    if first:
        yield f"{first} tokens are tagged first_token and follow an active token, so a prompt did not predict them"
    if bool(follows.any()) and not bool((phase[active] == Phase.DECODE.value).any()):
        yield "no active token is tagged decode"


def _step_errors(
    rollout: Rollout, phase: NDArray[Any], columns: Mapping[str, NDArray[Any]], reports: Sequence[ScoreReport]
) -> Iterator[str]:
    decoded = rollout.active & (phase == Phase.DECODE.value)
    owner = columns.get("owner_rank")
    for report in reports:
        if report.record is not None and report.record.role != "owner":
            continue
        mine = decoded if owner is None else decoded & (owner == report.rank)
        least = _least_steps(rollout, mine, columns.get("step_batch"))
        if report.single_token_forwards < least:
            yield (
                f"rank {report.rank} counted {report.single_token_forwards} single-token forwards, "
                f"and its {int(mine.sum())} decoded tokens need at least {least}"
            )


def _least_steps(rollout: Rollout, decoded: NDArray[np.bool_], step_batch: NDArray[Any] | None) -> int:
    """Return a lower bound of the steps behind the tokens `decoded`.

    One sequence has one token per step, and a step of `step_batch` sequences has at most that many tokens.
    """
    ends = np.concatenate(([0], np.cumsum(decoded)))[rollout.offsets]
    longest = int(np.diff(ends).max(initial=0))
    if step_batch is None:
        return longest
    sizes, counts = np.unique(np.maximum(step_batch[decoded], 1), return_counts=True)
    shared = sum((Fraction(int(count), int(size)) for size, count in zip(sizes, counts, strict=True)), Fraction(0))
    return max(longest, -(-shared.numerator // shared.denominator))
