"""`xcfg freeze` with the real engine: where sequences end, and what the manifest says about it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xcfg

EVEN = list(range(0, 512, 2))
TOKENS = 6


@pytest.fixture(scope="module")
def ending(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny checkpoint with every even id as end of sequence, and prompts beside it."""
    folder = tmp_path_factory.mktemp("ending") / "model"
    shutil.copytree(tiny, folder)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": EVEN}))
    prompts = [{"token_ids": [5 + index, 7, 9]} for index in range(6)]
    (folder.parent / "prompts.jsonl").write_text("\n".join(json.dumps(prompt) for prompt in prompts))
    return folder


def tails(rollout: Any) -> list[list[int]]:
    """The generated ids of each sequence."""
    return [rollout.token_ids[rollout.span(index)][3:].tolist() for index in range(rollout.sequence_count)]


def test_a_sequence_ends_with_the_checkpoints_end_of_sequence_which_is_compared(ending, tmp_path):
    """If this fails, what follows the end is sampled and judged: text that the model was never trained to write."""
    rollout = xcfg.freeze(
        str(ending),
        ending.parent / "prompts.jsonl",
        tmp_path / "o",
        settings={"rollout.dtype": "float32"},
        max_new_tokens=TOKENS,
        logprobs_mode="processed_logprobs",
        temperature=0.7,
        top_k=50,
        top_p=0.9,
    )
    sampling = rollout.manifest.sampling
    assert sampling.extra == {"stop_ids": EVEN}
    assert sampling.transform_chain == ("temperature:0.7", "top_k:50", "top_p:0.9")
    found = tails(rollout)
    assert any(len(tail) < TOKENS for tail in found), "no sequence ended early, so nothing was tried"
    reasons = rollout.manifest.generator["finish_reasons"]
    for index, (tail, reason, record) in enumerate(zip(found, reasons, rollout.manifest.sequences, strict=True)):
        assert all(token % 2 for token in tail[:-1]), tail
        assert (tail[-1] % 2 == 0) == (reason == "stop"), (tail, reason)
        assert reason == "stop" or (reason, len(tail)) == ("length", TOKENS)
        assert record.active_tokens == len(tail), "the end of the sequence is active too"
        recorded = rollout.tensors["recorded_logprob"][rollout.span(index)]
        assert np.isnan(recorded[:3]).all() and np.isfinite(recorded[3:]).all()
