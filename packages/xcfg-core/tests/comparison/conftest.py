"""Small rollouts and score tables; every fixture is a factory with plain defaults."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from xcfg.comparison import CompareOutcome, ScoreTable, compare
from xcfg.contract import load_contract
from xcfg.identity.rollout import Rollout, make_rollout
from xcfg.schema.contract import Contract
from xcfg.schema.identity import CheckpointRef, SamplingRecord


@pytest.fixture
def contract() -> Contract:
    return load_contract()


@pytest.fixture
def rollout_of() -> Callable[..., Rollout]:
    """rollout_of([5, 3], prompt=2): sequences of these lengths whose first `prompt` tokens are not active."""

    def make(lengths: Sequence[int], *, prompt: int = 1, recorded: Any = None, chain: tuple[str, ...] = ()) -> Rollout:
        offsets = np.concatenate(([0], np.cumsum(lengths)))
        positions = np.concatenate([np.arange(length) for length in lengths])
        active = positions >= prompt
        ids = np.arange(offsets[-1]) + 100
        tensors: dict[str, Any] = {
            "token_ids": ids,
            "offsets": offsets,
            "active_mask": active,
            "attention_mask": np.ones(len(ids), dtype=bool),
            "position_ids": positions,
            "selected_token_ids": ids,
            "segment": active.astype(np.int8),
            "weight_version": np.zeros(len(ids), dtype=np.int32),
        }
        if recorded is not None:
            tensors["recorded_logprob"] = np.asarray(recorded, dtype=np.float32)
        return make_rollout(
            tensors, checkpoint=CheckpointRef(uri="builtin:none"), sampling=SamplingRecord(transform_chain=chain)
        )

    return make


@pytest.fixture
def table_of() -> Callable[..., ScoreTable]:
    """table_of(rollout, "training", values): scores on the active tokens, NaN elsewhere."""

    def make(
        rollout: Rollout, arm: str, values: Any, *, dtype: str = "bfloat16", store: Any = np.float64, **more: Any
    ) -> ScoreTable:
        logprob = np.full(len(rollout.active), np.nan, dtype=store)
        logprob[rollout.active] = values
        return ScoreTable(arm=arm, compute_dtype=dtype, logprob=logprob, active=rollout.active.copy(), **more)

    return make


@pytest.fixture
def judge(
    rollout_of: Callable[..., Rollout], table_of: Callable[..., ScoreTable], contract: Contract
) -> Callable[..., CompareOutcome]:
    """judge(training, rollout): the verdict on one sequence with these scores, in the decode arm."""

    def run(
        training: Any, decode: Any, *, dtypes: tuple[str, str] = ("bfloat16", "bfloat16"), store: Any = np.float64
    ) -> CompareOutcome:
        rollout = rollout_of([len(training) + 1])
        tables = {
            "training": table_of(rollout, "training", training, dtype=dtypes[0], store=store),
            "rollout_decode": table_of(rollout, "rollout_decode", decode, dtype=dtypes[1], store=store),
        }
        return compare(tables, rollout, contract, verdict_arm="rollout_decode")

    return run
