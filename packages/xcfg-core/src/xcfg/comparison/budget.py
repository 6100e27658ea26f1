"""The tables behind the precision budget: which reference, which plain scores, their sums per sequence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from xcfg.comparison.exact import Float
from xcfg.comparison.layout import Layout, chunks
from xcfg.comparison.tables import ScoreTable, not_finite, structural_faults
from xcfg.schema.contract import COUNTS_AS

ATTENTIONS = ("eager", "sdpa")
PRECISE = {"float32", "float64"}


def reference_key(reference: Mapping[str, ScoreTable], dtypes: tuple[str, ...]) -> str | None:
    """Return the key of the reference: `reference:float64` where there is one, else `reference:float32`.

    A float32 score is no reference for a side that computes in float32 or float64 itself.
    """
    if "reference:float64" in reference:
        return "reference:float64"
    if "reference:float32" in reference and not PRECISE & set(dtypes):
        return "reference:float32"
    return None


def plain_key(reference: Mapping[str, ScoreTable], attention: str, compute_dtype: str) -> str:
    """Return the key of plain scores in a side's compute dtype, e.g. `plain:sdpa:bfloat16`.

    A float64 side without plain float64 scores takes the float32 ones, as it takes the float32 threshold.
    """
    exact = f"plain:{attention}:{compute_dtype}"
    return exact if exact in reference else f"plain:{attention}:{COUNTS_AS.get(compute_dtype, compute_dtype)}"


@dataclass(frozen=True)
class Budget:
    """The five or seven tables of one assessment. plain: (training eager, sdpa, rollout eager, sdpa)."""

    training: ScoreTable
    rollout: ScoreTable
    reference: ScoreTable
    plain: tuple[ScoreTable, ScoreTable, ScoreTable, ScoreTable]

    def sums(self, layout: Layout) -> Float:
        """Return float64 [S, 9] over the sequences that every table scored.

        Columns: tokens; squared error against the reference of training, rollout and the four plain scores;
        squared d; sum of d (d = training - rollout).
        """
        mask = self.mask(layout)
        count = layout.rollout.sequence_count
        table = np.zeros((count, 9))
        for part in chunks(len(mask)):
            inside = mask[part]
            if not inside.any():
                continue
            values = [
                item.logprob[part][inside].astype(np.float64)
                for item in (self.training, self.rollout, *self.plain, self.reference)
            ]
            with np.errstate(over="ignore"):
                d = values[0] - values[1]
                errors = [np.square(value - values[-1]) for value in values[:-1]]
                columns = [np.ones(len(d)), *errors, np.square(d), d]
            where = layout.sequence[part][inside] - layout.sequence[part][inside][0]
            start = int(layout.sequence[part][inside][0])
            for number, weights in enumerate(columns):
                found = np.bincount(where, weights=weights)
                table[start : start + len(found), number] += found
        return table[table[:, 0] > 0]

    def mask(self, layout: Layout) -> NDArray[np.bool_]:
        """Return bool [T]: the active tokens that the reference and every plain table scored."""
        mask = layout.rollout.active.copy()
        for item in (self.reference, *self.plain):
            mask &= item.active
        return mask


def find_budget(
    training: ScoreTable, rollout: ScoreTable, reference: Mapping[str, ScoreTable], layout: Layout
) -> Budget | str:
    """Return the tables of the assessment, or what is missing in words."""
    dtypes = (training.compute_dtype, rollout.compute_dtype)
    unseen = [table.arm for table in (training, rollout) if not table.compute_dtype]
    if unseen:
        return f"the compute dtype of {' and '.join(unseen)} was not observed"
    key = reference_key(reference, dtypes)
    if key is None:
        wanted = "reference:float64" if PRECISE & set(dtypes) else "reference:float64 or reference:float32"
        return f"no {wanted} scores for {dtypes[0]} against {dtypes[1]}"
    names = [plain_key(reference, attention, dtype) for dtype in dtypes for attention in ATTENTIONS]
    missing = sorted({name for name in names if name not in reference})
    if missing:
        return f"no scores {', '.join(missing)}"
    faults = [text for name in dict.fromkeys([key, *names]) for text in _faults(name, reference[name], layout)]
    if faults:
        return "; ".join(faults)
    plain = tuple(reference[name] for name in names)
    return Budget(training, rollout, reference[key], (plain[0], plain[1], plain[2], plain[3]))


def _faults(name: str, table: ScoreTable, layout: Layout) -> list[str]:
    found = structural_faults(table, layout.rollout, subset=True)
    if not found:
        text = not_finite(table, table.active)
        found = [text] if text else []
    return [f"{name}: {text}" for text in found]
