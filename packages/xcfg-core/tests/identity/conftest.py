"""Small ragged rollouts, and a way to write a frozen rollout that nobody checked."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save
from xcfg.identity.rollout import Rollout, make_rollout, write_rollout
from xcfg.schema.codec import plain, pretty_json
from xcfg.schema.identity import CheckpointRef

Tensors = dict[str, Any]


@pytest.fixture
def tensors() -> Tensors:
    """Three sequences of 4, 1 and 3 tokens; the second has no active token; two recorded values are absent."""
    ids = np.array([5, 6, 7, 8, 9, 1, 2, 3], dtype=np.int64)
    return {
        "token_ids": ids,
        "offsets": np.array([0, 4, 5, 8], dtype=np.int64),
        "active_mask": np.array([0, 0, 1, 1, 0, 0, 1, 1], dtype=np.bool_),
        "attention_mask": np.ones(8, dtype=np.bool_),
        "position_ids": np.array([0, 1, 2, 3, 0, 10, 11, 12], dtype=np.int64),
        "selected_token_ids": ids.copy(),
        "segment": np.array([0, 0, 1, 1, 0, 0, 1, 1], dtype=np.int8),
        "weight_version": np.array([7, 7, 7, 7, 7, 7, 7, 7], dtype=np.int32),
        "recorded_logprob": np.array([np.nan, np.nan, -0.5, -0.0, np.nan, np.nan, -3.25, np.nan], dtype=np.float32),
    }


@pytest.fixture
def rollout(tensors: Tensors) -> Rollout:
    return make_rollout(
        tensors, checkpoint=CheckpointRef(uri="builtin:none", weight_version=7), request_ids=["a", "b", "c"]
    )


@pytest.fixture
def frozen(rollout: Rollout, tmp_path: Path) -> Path:
    return write_rollout(rollout, tmp_path / "frozen")


@pytest.fixture
def forge(rollout: Rollout, tmp_path: Path) -> Callable[..., Path]:
    """forge(tensors or bytes, field=value): a folder whose digests are right, whatever its content is."""

    def make(content: Tensors | bytes, **manifest: Any) -> Path:
        data = content if isinstance(content, bytes) else save({k: np.ascontiguousarray(v) for k, v in content.items()})
        document = plain(rollout.manifest) | {"tensors_sha256": hashlib.sha256(data).hexdigest()} | manifest
        folder = tmp_path / "forged"
        folder.mkdir()
        (folder / "rollout.safetensors").write_bytes(data)
        (folder / "manifest.json").write_bytes(pretty_json(document))
        return folder

    return make


@pytest.fixture
def safetensors() -> Callable[..., bytes]:
    """safetensors(header, data): the bytes of a file whose header says anything at all."""

    def make(header: Any, data: bytes = b"") -> bytes:
        text = header if isinstance(header, bytes) else json.dumps(header).encode()
        return struct.pack("<Q", len(text)) + text + data

    return make
