"""The frozen replay: what each phase handed to its operator, token by token, as it was captured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from xcfg.errors import IdentityError

from xcfg_ops_logp.contract.shards import ShardMap
from xcfg_ops_logp.matrix.capture import SCALE


class Call(NamedTuple):
    """One call of the operator. tokens: int64 [n], flat indices; -1 for a row that belongs to no active token here.

    shards: by rank, empty where the engine gathered the columns. beyond: the largest magnitude in hidden ones.
    """

    logits: torch.Tensor
    selected: torch.Tensor
    value: torch.Tensor
    tokens: NDArray[np.int64]
    shards: ShardMap
    beyond: float


@dataclass(frozen=True)
class Phase:
    """One arm. files: of the calls that hold its rows. token_of: captured row -> flat token. count: of tokens."""

    name: str
    files: tuple[Path, ...]
    token_of: dict[int, int]
    count: int

    @property
    def width(self) -> int:
        """Columns of the logits."""
        return next(self.calls()).logits.shape[1]

    def calls(self) -> Iterator[Call]:
        """Yield the calls of this phase, one in memory at a time."""
        for file in self.files:
            call = _read(file, self.token_of)
            if call is not None:
                yield call


def phase_of(name: str, folder: Path, numbers: NDArray[np.float64], active: NDArray[np.bool_]) -> Phase:
    """Return the phase whose score column is `numbers` [T]: SCALE times the captured row of each active token.

    Raises IdentityError where an active token has no row, or shares one.
    """
    tokens = np.flatnonzero(active)
    rows = numbers[tokens].astype(np.float64) / SCALE
    whole = np.isfinite(rows) & (rows >= 1) & (rows == np.round(rows))
    if not whole.all():
        raise IdentityError(
            f"{int((~whole).sum())} of {len(tokens)} active tokens of {name} name no captured row",
            hint="The engine changed what its operator returned; a replay is not possible there.",
        )
    token_of = dict(zip(rows.astype(np.int64).tolist(), tokens.tolist(), strict=True))
    if len(token_of) != len(tokens):
        raise IdentityError(f"active tokens of {name} share captured rows")
    return Phase(name, tuple(sorted(folder.glob("process-*/*.pt"))), token_of, len(tokens))


def _read(file: Path, token_of: dict[int, int]) -> Call | None:
    """Return one call, None where none of its rows is of this phase; the file is read lazily."""
    held = torch.load(file, weights_only=True, mmap=True)
    first = int(held["first"])
    tokens = np.asarray([token_of.get(first + row, -1) for row in range(len(held["selected"]))], dtype=np.int64)
    if not (tokens >= 0).any():
        return None
    shards = tuple((start, stop) for start, stop in held["shards"].tolist())
    return Call(held["logits"], held["selected"], held["value"], tokens, shards, held["beyond"])
