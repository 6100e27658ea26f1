"""Small frozen rollouts for contract tests."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from xcfg.identity.rollout import Rollout, make_rollout
from xcfg.schema.identity import SEGMENT_GENERATED, SEGMENT_PROMPT, CheckpointRef

LENGTHS = (7, 5, 2)
PROMPTS = (3, 1, 1)


def tiny_rollout(*, vocabulary: int = 32, seed: int = 0, edits: dict[int, int] | None = None) -> Rollout:
    """Return three sequences of 7, 5 and 2 tokens, with prompts of 3, 1 and 1 tokens that are not compared.

    ids lie in [1, vocabulary). edits: flat index -> other token id, for tests that change one token.
    """
    generator = np.random.default_rng(seed)
    total = sum(LENGTHS)
    ids: NDArray[np.int64] = generator.integers(1, vocabulary, total)
    for index, token in (edits or {}).items():
        ids[index] = token
    offsets = np.concatenate([[0], np.cumsum(LENGTHS)])
    positions = np.concatenate([np.arange(length) for length in LENGTHS])
    active = positions >= np.repeat(PROMPTS, LENGTHS)
    tensors: dict[str, NDArray[np.generic]] = {
        "token_ids": ids,
        "offsets": offsets,
        "active_mask": active,
        "attention_mask": np.ones(total, dtype=np.bool_),
        "position_ids": positions,
        "selected_token_ids": ids.copy(),
        "segment": np.where(active, SEGMENT_GENERATED, SEGMENT_PROMPT),
        "weight_version": np.zeros(total, dtype=np.int32),
    }
    return make_rollout(tensors, checkpoint=CheckpointRef(uri="builtin:testkit"))
