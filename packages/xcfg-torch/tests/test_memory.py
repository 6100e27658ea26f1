"""How much of the logits is widened at a time: the bound that scoring.py states, measured by torch's profiler."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from xcfg.plugin.operators import BoundOperator
from xcfg.schema.identity import SamplingRecord
from xcfg.schema.names import Phase
from xcfg.schema.operators import OperatorBinding
from xcfg.schema.worker import OPTIONAL_COLUMNS
from xcfg_torch.logprob import log_softmax_gather
from xcfg_torch.scoring import ScoreSheet

ROWS, VOCABULARY = 256, 4096
CHAIN = ("temperature:0.7", "top_k:50", "top_p:0.9")


def peak_bytes(call) -> int:
    """Return the most bytes that were held at a time beside what was there before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as recorded:
        call()
    events = [item for item in recorded.profiler.kineto_results.events() if item.name() == "[memory]"]
    return int(np.cumsum([item.nbytes() for item in sorted(events, key=lambda item: item.start_ns())]).max())


def scored(rollout_of, chunk: int, columns=(), chain=()) -> int:
    sampling = SamplingRecord(temperature=0.7, top_k=50, top_p=0.9)
    rollout = rollout_of([1], [ROWS], vocabulary=VOCABULARY, sampling=sampling)
    binding = OperatorBinding(operation="selected_logprob", side="training", requested="", backend_id="", factory="")
    operator = BoundOperator(binding, log_softmax_gather())
    sheet = ScoreSheet(rollout, operator, columns=columns, dtype="float32", chain=chain, row_chunk=chunk)
    logits = torch.randn(ROWS, VOCABULARY, generator=torch.Generator().manual_seed(0)).bfloat16()
    found = peak_bytes(lambda: sheet.score(np.arange(1, ROWS + 1), logits, Phase.PREFILL))
    assert operator.calls == -(-ROWS // chunk)
    return found


SMALL = ROWS * 64  # columns of the sheet, ids, indices


@pytest.mark.parametrize("chunk", [8, 32])
def test_plain_scores_widen_one_chunk_to_two_float32_copies(rollout_of, chunk):
    assert chunk * VOCABULARY * 8 <= scored(rollout_of, chunk) <= chunk * VOCABULARY * 8 + SMALL


def test_without_chunks_all_of_it_is_widened(rollout_of):
    """The measure can fail: one chunk of all rows needs what the bound forbids."""
    assert scored(rollout_of, ROWS) > 7 * 32 * VOCABULARY * 8


def test_transforms_and_optional_columns_stay_within_forty_bytes(rollout_of):
    assert scored(rollout_of, 16, OPTIONAL_COLUMNS, CHAIN) <= 16 * VOCABULARY * 40 + SMALL


def test_a_prefill_hands_over_no_more_than_a_chunk(built, uneven):
    engine = built("training", "bfloat16", options={"row_chunk": 7})
    original, seen = engine.adapter.engine.operator.function, []

    def watched(logits, selected):
        seen.append(tuple(logits.shape))
        return original(logits, selected)

    engine.adapter.engine.operator.function = watched
    engine.score(uneven, knobs={"batch.size": 5})
    assert sum(rows for rows, _ in seen) == 41
    assert max(rows for rows, _ in seen) == 7
