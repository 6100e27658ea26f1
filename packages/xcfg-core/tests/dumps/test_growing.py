"""Columns that grow batch by batch hold what a concatenation holds, in no more memory than that."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from xcfg.dumps import collect_rows
from xcfg.dumps import rows as module
from xcfg.dumps.growing import GrowingColumns
from xcfg.errors import ArtifactError


@pytest.mark.parametrize("sizes", [(1,), (0, 3), (5, 1, 1, 400, 7), (1000, 1000, 1)])
def test_what_comes_in_batches_is_their_concatenation(sizes: tuple[int, ...]) -> None:
    random = np.random.default_rng(0)
    batches = [{"a": random.integers(0, 9, n, dtype=np.int32), "b": random.random(n) > 0.5} for n in sizes]
    growing = GrowingColumns()
    for batch in batches:
        growing.append(batch)
    assert growing.rows == sum(sizes)
    found = growing.columns()
    for name in ("a", "b"):
        np.testing.assert_array_equal(found[name], np.concatenate([batch[name] for batch in batches]))
        assert found[name].dtype == batches[0][name].dtype and found[name].base is None


def test_a_column_becomes_wider_and_loses_no_bit() -> None:
    growing = GrowingColumns()
    growing.append({"a": np.float32([-0.1, np.nan])})
    growing.append({"a": np.float64([-0.1])})
    growing.append({"a": np.float32([-0.2])})
    expected = np.concatenate([np.float32([-0.1, np.nan]), np.float64([-0.1]), np.float32([-0.2])])
    assert growing.columns()["a"].tobytes() == expected.tobytes()


def batches(count: int, rows: int) -> Iterator[dict[str, Any]]:
    """Samples of 100 tokens, in order."""
    for part in range(count):
        at = np.arange(part * rows, (part + 1) * rows)
        yield {
            "sample_id": at // 100,
            "position": at % 100,
            "token_id": at % 997,
            "active": at % 100 > 0,
            "logp_rollout": np.full(rows, -1.0, dtype=np.float32),
            "logp_train": np.full(rows, -2.0, dtype=np.float32),
        }


def test_collecting_takes_little_beside_the_rows() -> None:
    """Failing means that a dump needs a second copy of a column, or of several, to become rows.

    The rows have 21 bytes per token; a batch, its checks and the spare of a column come on top.
    """
    total = 200 * 10_000
    tracemalloc.start()
    try:
        found = collect_rows(batches(200, 10_000))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        found.offsets  # noqa: B018
        after = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    size = sum(values.nbytes for values in found.columns.values())
    assert size == 21 * total and found.count == total
    assert peak < 1.2 * size
    assert after < 1.05 * size


@pytest.mark.parametrize("slice_rows", [1, 2, 3, 100])
def test_order_and_duplicates_are_seen_across_slices(slice_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Failing means that a fault on the edge of a slice is not seen."""
    monkeypatch.setattr(module, "SLICE", slice_rows)
    (batch,) = batches(1, 7)
    np.testing.assert_array_equal(collect_rows([batch]).columns["position"], np.arange(7))
    for at in range(6):
        order = np.arange(7)
        order[[at, at + 1]] = order[[at + 1, at]]
        swapped = {name: values[order] for name, values in batch.items()}
        np.testing.assert_array_equal(collect_rows([swapped]).columns["token_id"], batch["token_id"])
        twice = batch | {"position": np.where(np.arange(7) == at + 1, at, np.arange(7)), "active": np.arange(7) > 6}
        with pytest.raises(ArtifactError, match=f"has 1 duplicate rows, the first for sample '0', position {at}"):
            collect_rows([twice])


def test_offsets_are_those_of_the_samples() -> None:
    found = collect_rows(batches(1, 250))
    assert found.offsets.tolist() == [0, 100, 200, 250] and found.offsets.dtype == np.int64
