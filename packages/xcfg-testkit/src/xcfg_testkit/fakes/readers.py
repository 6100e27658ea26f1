"""A good dump reader of JSON lines with a count in front, and readers that each break one rule."""

from __future__ import annotations

import contextlib
import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from xcfg.errors import ArtifactError
from xcfg.plugin import DumpReaderDescriptor

SAMPLE = {"token_id": [5, 6, 7, 8], "rollout_logprob": [-0.5, -1.25, -3.0, -0.0]}
MAGIC = "#fake-dump "


def descriptor(name: str) -> DumpReaderDescriptor:
    """Return a descriptor of the fake `name` of this module."""
    return DumpReaderDescriptor(
        name="fake", summary="a fake", factory=f"{__name__}:{name}", suffixes=(".fake",), framework="none"
    )


def write_sample(folder: Path) -> Path:
    """Write SAMPLE and return its path."""
    rows = [dict(zip(SAMPLE, values, strict=True)) for values in zip(*SAMPLE.values(), strict=True)]
    path = folder / "sample.fake"
    path.write_text(f"{MAGIC}{len(rows)}\n" + "".join(json.dumps(row) + "\n" for row in rows))
    return path


class Good:
    """Keeps every rule."""

    def detect(self, path: Path) -> str:
        """Look at the first bytes."""
        with path.open("rb") as stream:
            return "starts with its magic line" if stream.read(len(MAGIC)) == MAGIC.encode() else ""

    def rows(self, path: Path) -> list[dict[str, Any]]:
        """Return the rows, checked against the count."""
        try:
            head, *lines = path.read_text().splitlines()
            rows = [json.loads(line) for line in lines]
            if len(rows) != int(head.removeprefix(MAGIC)):
                raise ArtifactError(f"{path.name} is truncated")
        except (OSError, ValueError) as error:
            raise ArtifactError(f"{path.name} cannot be read: {error}") from None
        return rows

    def read(self, path: Path) -> Iterator[dict[str, Any]]:
        """Yield batches of two rows."""
        rows = self.rows(path)
        for start in range(0, len(rows), 2):
            yield {name: [row[name] for row in rows[start : start + 2]] for name in SAMPLE}


class NeverDetects(Good):
    """Does not know its own files."""

    def detect(self, path: Path) -> str:
        """Nothing."""
        return ""


class ClaimsAll(Good):
    """Claims every file."""

    def detect(self, path: Path) -> str:
        """Everything."""
        return "looks fine"


class DropsLast(Good):
    """Loses the last row."""

    def rows(self, path: Path) -> list[dict[str, Any]]:
        """All but one."""
        return super().rows(path)[:-1]


class Ragged(Good):
    """Yields columns of unequal length."""

    def read(self, path: Path) -> Iterator[dict[str, Any]]:
        """Cut one column."""
        for batch in super().read(path):
            yield {name: column[: 1 + (name == "token_id")] for name, column in batch.items()}


class Unstable(Good):
    """Gives other values the second time."""

    seen = 0

    def rows(self, path: Path) -> list[dict[str, Any]]:
        """Reverse every other time."""
        type(self).seen += 1
        rows = super().rows(path)
        return rows[::-1] if type(self).seen % 2 == 0 else rows


class Eager(Good):
    """Returns a list."""

    def read(self, path: Path) -> Any:
        """All at once."""
        return list(super().read(path))


class ForgivesMissing(Good):
    """Takes a missing file for an empty one."""

    def rows(self, path: Path) -> list[dict[str, Any]]:
        """Nothing."""
        return super().rows(path) if path.exists() else []


class ForgivesTruncated(Good):
    """Reads as far as it can."""

    def rows(self, path: Path) -> list[dict[str, Any]]:
        """Stop at the first line that does not parse."""
        rows = []
        if not path.exists():
            raise ArtifactError("missing")
        for text in path.read_bytes().decode(errors="replace").splitlines()[1:]:
            try:
                rows.append(json.loads(text))
            except ValueError:
                break
        return rows


class Unpickles(Good):
    """Tries pickle first."""

    def rows(self, path: Path) -> list[dict[str, Any]]:
        """Execute whatever is there."""
        with contextlib.suppress(pickle.UnpicklingError, EOFError, ValueError, OSError):
            pickle.loads(path.read_bytes())  # noqa: S301 - the fault that the contract must catch
        return super().rows(path)
