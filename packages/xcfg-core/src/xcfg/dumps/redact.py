"""Rows without what could identify a prompt: sample ids, token ids and file names become salted hashes.

Log probabilities, masks, positions, ranks and versions stay, so every figure, mask and verdict is computed as
before, and equal tokens stay equal within one result. The salt is drawn for each result and kept nowhere: with
it, a vocabulary could be tried out in a second.
"""

from __future__ import annotations

import hashlib
import re
import secrets

import numpy as np
from numpy.typing import NDArray

from xcfg.dumps.rows import Rows
from xcfg.errors import ArtifactError


def redact(rows: Rows, salt: bytes = b"") -> Rows:
    """Return `rows` with hashed sample and token ids; an empty salt draws a new one.

    Text columns are gone already (`source` is never kept). Raises ArtifactError should two ids collide.
    """
    key = salt or secrets.token_bytes(32)
    columns = dict(rows.columns)
    unique, inverse = np.unique(columns["token_id"], return_inverse=True)
    hashed = np.array([_hash(key, f"token:{int(token)}") >> 33 for token in unique], dtype=np.int32)
    names = redact_names(rows.sample_ids, key)
    if len(np.unique(hashed)) != len(unique) or len(set(names)) != len(names):
        raise ArtifactError("two ids of the dump have the same hash", hint="Run the command again; the salt is new.")
    columns["token_id"] = _pick(hashed, inverse)
    return Rows(columns, names, "a redacted dump", rows.dtypes)


def redact_names(names: tuple[str, ...], salt: bytes = b"") -> tuple[str, ...]:
    """Return 16 hexadecimal digits per name, under one salt; an empty salt draws a new one."""
    key = salt or secrets.token_bytes(32)
    return tuple(f"{_hash(key, f'sample:{name}'):016x}" for name in names)


def is_redacted(name: str) -> bool:
    """Whether `name` may have come from `redact_names`."""
    return re.fullmatch("[0-9a-f]{16}", name) is not None


def _hash(key: bytes, text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8, key=key).digest(), "big")


def _pick(values: NDArray[np.int32], inverse: NDArray[np.intp]) -> NDArray[np.int32]:
    return values[inverse.reshape(-1)] if len(values) else values
