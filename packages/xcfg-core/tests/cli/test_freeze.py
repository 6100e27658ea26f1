"""`xcfg freeze`: what is typed reaches the journey, and what came of it is printed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from xcfg.flow import freeze as journey
from xcfg.identity.rollout import make_rollout
from xcfg.schema.identity import CheckpointRef, SamplingRecord

WORDS = ("freeze", "--checkpoint", "builtin:x", "--prompts", "p.jsonl", "--output", "o")


@pytest.fixture
def asked(monkeypatch):
    """The options that reached the journey, which returns one sequence that ended at id 9."""
    seen = []
    ids, active = np.array([5, 9]), np.array([False, True])
    flat = {"token_ids": ids, "selected_token_ids": ids, "offsets": np.array([0, 2]), "position_ids": np.array([0, 1])}
    flat |= {"active_mask": active, "attention_mask": np.array([True, True]), "segment": active.astype(np.int8)}
    rollout = make_rollout(
        flat | {"weight_version": np.zeros(2, dtype=np.int32)},
        checkpoint=CheckpointRef(uri="builtin:x"),
        sampling=SamplingRecord(extra={"stop_ids": [9]}),
        generator={"finish_reasons": ["stop"]},
    )

    def freeze(manager, options):
        seen.append(options)
        return rollout

    monkeypatch.setattr(journey, "freeze", freeze)
    return seen


def test_stop_ids_are_given_one_by_one_and_the_end_of_sequence_counts_unless_it_is_ignored(call, asked):
    assert call(*WORDS)[0] == call(*WORDS, "--stop-id", "7", "--stop-id", "3", "--ignore-eos")[0] == 0
    plain, given = asked
    assert (plain.stop_ids, plain.ignore_eos) == ((), False)
    assert (given.stop_ids, given.ignore_eos, given.output) == ((7, 3), True, Path("o"))


def test_how_many_ended_at_a_stop_id_is_shown(call, asked):
    _, out, _ = call(*WORDS)
    assert "frozen 1 sequences, 1 active tokens" in out and "1 of them ended at a stop id" in out
    document = json.loads(call(*WORDS, "--json")[1])
    assert (document["stop_ids"], document["stopped"], document["sequences"]) == ([9], 1, 1)
