"""Columns that grow batch by batch, so that no second copy of any of them exists when the last batch is in."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from xcfg.dumps.columns import Batch

SPARE = 32
"""A column grows by at least one part in SPARE: few moves, little room that is not used."""


class GrowingColumns:
    """Appends batches of equal columns; a column becomes the wider of the dtypes that come."""

    def __init__(self) -> None:
        """Start without a column."""
        self.rows = 0
        self._columns: Batch = {}

    def append(self, batch: Batch) -> None:
        """Add one batch, of which every column has the same length."""
        added = len(next(iter(batch.values())))
        for name, values in batch.items():
            column = self._columns.get(name, np.empty(0, dtype=values.dtype))
            wide = np.promote_types(column.dtype, values.dtype)
            if wide != column.dtype:
                column = column.astype(wide)
            if self.rows + added > len(column):
                column = _resized(column, max(self.rows + added, len(column) + len(column) // SPARE))
            column[self.rows : self.rows + added] = values
            self._columns[name] = column
        self.rows += added

    def columns(self) -> Batch:
        """Return the columns, cut to the rows that came; nothing can be appended afterwards."""
        return {name: _resized(self._columns.pop(name), self.rows) for name in list(self._columns)}


def _resized(column: NDArray[Any], rows: int) -> NDArray[Any]:
    """Return the column with `rows` rows, in its own memory where the system can move it without a copy."""
    column.resize(rows, refcheck=False)
    return column
