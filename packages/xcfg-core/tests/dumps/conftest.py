"""A small canonical dump as rows and as columns, and writers of both formats."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

Row = dict[str, Any]


@pytest.fixture
def rows() -> list[Row]:
    """Two samples, out of order: b has positions 0 to 2, a 4 to 6 (its prompt was not dumped)."""
    table = [
        ("b", 2, 12, True, -1.5, -1.625),
        ("a", 4, 24, True, -0.5, -0.5),
        ("b", 0, 10, False, None, None),
        ("a", 6, 26, False, -9.0, None),
        ("b", 1, 11, True, -2.0, -2.0),
        ("a", 5, 25, True, -0.25, -0.75),
    ]
    names = ("sample_id", "position", "token_id", "active", "logp_rollout", "logp_train")
    return [dict(zip(names, line, strict=True)) for line in table]


@pytest.fixture
def jsonl(tmp_path: Path) -> Callable[..., Path]:
    def write(rows: list[Row] | str | bytes, name: str = "dump.jsonl") -> Path:
        path = tmp_path / name
        if isinstance(rows, list):
            rows = "".join(json.dumps(row) + "\n" for row in rows)
        path.write_bytes(rows if isinstance(rows, bytes) else rows.encode())
        return path

    return write


@pytest.fixture
def columns() -> dict[str, Any]:
    return {
        "sample_id": np.array([7, 7, 7, 3, 3]),
        "position": np.array([0, 1, 2, 0, 1]),
        "token_id": np.array([1, 2, 3, 4, 5]),
        "active": np.array([False, True, True, False, True]),
        "logp_rollout": np.array([np.nan, -1.0, -2.0, np.nan, -3.0], dtype=np.float32),
        "logp_train": np.array([np.nan, -1.25, -2.0, np.nan, -3.0], dtype=np.float32),
    }


@pytest.fixture
def tensors(tmp_path: Path) -> Callable[..., Path]:
    def write(columns: dict[str, Any], metadata: dict[str, str] | None = None) -> Path:
        path = tmp_path / "dump.safetensors"
        save_file({name: np.ascontiguousarray(values) for name, values in columns.items()}, path, metadata=metadata)
        return path

    return write
