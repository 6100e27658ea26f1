"""Parquet: the canonical columns, read row group by row group; and the refusal of TRL's completions.

pyarrow is an extra, `xcfg-dumps[parquet]`: it is larger than everything else here together, and no other format
needs it. TRL at f2cd5771 (2026-07-24), trl/trainer/grpo_trainer.py, writes completions_{step}.parquet with step,
prompt, completion, advantage and one column per reward: text without ids or log probabilities.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xcfg.dumps import OPTIONAL, REQUIRED, is_canonical
from xcfg.errors import ArtifactError, MissingDependencyError

ROWS = 1 << 16
MAGIC = b"PAR1"
CAPTURE = (
    "In the loop, three lines of xcfg_dumps.capture write ids and both log probabilities: see capture-from-a-loop."
)


class ParquetReader:
    """Reads canonical Parquet."""

    def detect(self, path: Path) -> str:
        """Return why the file is Parquet: its first and last bytes. What it holds is checked when it is read."""
        try:
            with path.open("rb") as stream:
                found = stream.read(4) == MAGIC and stream.seek(-4, 2) > 4 and stream.read(4) == MAGIC
        except OSError:
            return ""
        return "it begins and ends with the magic bytes of Parquet" if found else ""

    def read(self, path: Path) -> Iterator[dict[str, Any]]:
        """Yield batches of at most 65,536 rows. Raises ArtifactError, or MissingDependencyError without pyarrow."""
        if not self.detect(path):
            raise ArtifactError(f"{str(path)!r} is no Parquet file, or a truncated one")
        try:
            from pyarrow import ArrowException, parquet
        except ImportError:
            raise MissingDependencyError(
                f"{path.name} is a Parquet file and pyarrow is not installed",
                hint="Install it with: pip install 'xcfg-dumps[parquet]'",
            ) from None
        try:
            with parquet.ParquetFile(path) as file:
                names = list(file.schema_arrow.names)
                _refuse_other(names, path.name)
                known = [name for name in names if name in REQUIRED or name in OPTIONAL]
                if not file.metadata.num_rows:
                    raise ArtifactError(f"{path.name} is empty", hint="A dump has one row per token.")
                for batch in file.iter_batches(batch_size=ROWS, columns=known):
                    yield {name: _column(batch.column(name), name, path.name) for name in known}
        except (ArrowException, OSError) as error:
            raise ArtifactError(f"{str(path)!r} is no readable Parquet file: {error}") from None


def _refuse_other(names: list[str], where: str) -> None:
    if is_canonical(names):
        return
    if {"prompt", "completion"} <= set(names):
        raise ArtifactError(
            f"{where} holds text only (TRL completions: {', '.join(names)[:200]}); there are no token ids and no log "
            "probabilities, and tokenising text again gives other ids",
            hint=CAPTURE,
        )
    missing = sorted(set(REQUIRED) - set(names))
    raise ArtifactError(
        f"{where} has no column {', '.join(map(repr, missing))}; there are {', '.join(names)[:300]}",
        hint="Write the canonical columns, one row per token.",
    )


def _column(values: Any, name: str, where: str) -> NDArray[Any]:
    """Return an Arrow array as numpy: null is NaN in a column of numbers and an error elsewhere."""
    if values.null_count and str(values.type) not in ("float", "double", "null"):
        raise ArtifactError(f"{where}: the column {name!r} has {values.null_count} nulls")
    if str(values.type) == "null":
        return np.full(len(values), np.nan)
    array: NDArray[Any] = values.to_numpy(zero_copy_only=False)
    return array
