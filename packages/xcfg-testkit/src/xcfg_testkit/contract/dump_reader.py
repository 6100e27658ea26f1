"""What a reader of foreign dumps must fulfil: it knows its own files, loses no token, and runs nothing."""

from __future__ import annotations

import contextlib
import os
import pickle
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from xcfg.errors import ArtifactError
from xcfg.plugin import DumpReaderDescriptor
from xcfg.plugin.operators import load_factory

from xcfg_testkit.contract.guard import Contract

Columns = dict[str, np.ndarray[Any, Any]]


class _Bomb:
    """Makes a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


class DumpReaderContract(Contract):
    """Give `descriptor`, and the methods `write_sample` and `expected`.

    truncatable: whether a file cut in half can be told from a whole one (a line format may not).
    """

    needs = ("descriptor", "write_sample", "expected")
    descriptor: ClassVar[DumpReaderDescriptor]
    truncatable: ClassVar[bool] = True

    def write_sample(self, folder: Path) -> Path:
        """Write a small valid dump into `folder` and return its path."""
        raise NotImplementedError

    def expected(self) -> Mapping[str, Any]:
        """Return what the sample holds: canonical column name -> values."""
        raise NotImplementedError

    def reader(self) -> Any:
        """Return a new reader."""
        return load_factory(self.descriptor.factory)()

    def read(self, path: Path) -> Columns:
        """Read all batches and join them; each batch must have columns of one length."""
        batches: list[dict[str, Any]] = []
        for batch in self.reader().read(path):
            lengths = {name: len(column) for name, column in batch.items()}
            assert len(set(lengths.values())) == 1, f"a batch has columns of unequal length: {lengths}"
            batches.append(batch)
        names = {frozenset(batch) for batch in batches}
        assert len(names) == 1, f"batches have different columns: {names}"
        return {name: np.concatenate([np.asarray(batch[name]) for batch in batches]) for name in batches[0]}

    def test_recognises_its_own(self, tmp_path: Path) -> None:
        """Failing means that a person must name the format of a file that says what it is. Return the reason."""
        reason = self.reader().detect(self.write_sample(tmp_path))
        assert isinstance(reason, str)
        assert reason.strip(), "detect returned no reason"

    def test_refuses_what_is_not_its_own(self, tmp_path: Path) -> None:
        """Failing means that this reader claims foreign files, and so makes other readers ambiguous."""
        suffixes = self.descriptor.suffixes or ("",)
        for suffix in suffixes:
            for name, data in (("empty", b""), ("noise", bytes(range(256)) * 4), ("text", b"hello, world\n")):
                path = tmp_path / f"{name}{suffix}"
                path.write_bytes(data)
                assert not self.reader().detect(path), f"it claims the file {path.name}"

    def test_reads_every_value(self, tmp_path: Path) -> None:
        """Failing means lost, repeated, reordered or converted values. Compare with `expected`, column by column."""
        found, expected = self.read(self.write_sample(tmp_path)), self.expected()
        assert [len(column) for column in expected.values() if len(column)], "expected() is empty"
        for name, column in expected.items():
            assert name in found, f"the column {name!r} is missing; there are {sorted(found)}"
            np.testing.assert_array_equal(found[name], np.asarray(column), err_msg=name)

    def test_reads_the_same_twice(self, tmp_path: Path) -> None:
        """Failing means state in the reader, or an order taken from a set."""
        path = self.write_sample(tmp_path)
        first, second = self.read(path), self.read(path)
        assert set(first) == set(second)
        for name in first:
            np.testing.assert_array_equal(first[name], second[name])

    def test_reads_in_batches(self, tmp_path: Path) -> None:
        """Failing means that the whole dump is in memory before the first batch. Yield from a generator."""
        assert isinstance(self.reader().read(self.write_sample(tmp_path)), Iterator)

    def test_a_missing_file_is_an_artifact_error(self, tmp_path: Path) -> None:
        """Failing means a traceback, or an empty dump, where the path is wrong. Raise ArtifactError."""
        with pytest.raises(ArtifactError):
            list(self.reader().read(tmp_path / "absent"))

    def test_a_truncated_file_is_an_artifact_error(self, tmp_path: Path) -> None:
        """Failing means that half a dump is read as a whole one, with fewer tokens. Check lengths, then raise."""
        if not self.truncatable:
            pytest.skip("the format cannot tell a truncated file")
        path = self.write_sample(tmp_path)
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        with pytest.raises(ArtifactError):
            list(self.reader().read(path))

    def test_nothing_is_unpickled(self, tmp_path: Path) -> None:
        """Failing means that opening a dump runs code of whoever wrote it. Never call pickle or a loader that does."""
        marker = tmp_path / "executed"
        for suffix in self.descriptor.suffixes or ("",):
            path = tmp_path / f"bomb{suffix}"
            path.write_bytes(pickle.dumps(_Bomb(marker)))
            with contextlib.suppress(Exception):  # any refusal is right here; what counts is that nothing ran
                self.reader().detect(path)
            with contextlib.suppress(Exception):
                list(self.reader().read(path))
            assert not marker.exists(), f"reading {path.name} executed its pickle"
