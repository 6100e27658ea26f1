"""Figures by rank, sequence, position and probability against a plain loop over tokens."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

import numpy as np
import pytest
from xcfg.comparison import compare
from xcfg.comparison import layout as layout_module
from xcfg.comparison.layout import position_label, probability_labels
from xcfg.schema.contract import Contract
from xcfg.schema.result import GroupStat


def check(found: tuple[GroupStat, ...], expected: dict[str, list[float]]) -> None:
    assert [item.group for item in found] == list(expected)
    for item, values in zip(found, expected.values(), strict=True):
        count = len(values)
        assert item.active_tokens == count
        assert item.mismatches == sum(abs(x) > 0.06 for x in values)
        assert item.max_abs == max(map(abs, values))
        assert item.mean_abs == pytest.approx(math.fsum(map(abs, values)) / count, rel=1e-15)
        assert item.bias == pytest.approx(math.fsum(values) / count, rel=1e-14, abs=1e-300)
        assert item.rms == pytest.approx(math.sqrt(math.fsum(x * x for x in values) / count), rel=1e-14)


@pytest.mark.parametrize("chunk", [7, 1 << 15])
def test_groups_equal_a_plain_loop(
    rollout_of: Any, table_of: Any, contract: Contract, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    monkeypatch.setattr(layout_module, "CHUNK", chunk)
    lengths = [40, 1, 3, 90, 2]
    rollout = rollout_of(lengths, prompt=3)
    count = int(rollout.active.sum())
    rng = np.random.default_rng(5)
    training, decode = -rng.exponential(1.0, count), -rng.exponential(1.0, count)
    decode[:6] = np.log([0.01, 0.1, 0.5, 0.9, 0.009, 0.95])
    total = len(rollout.active)
    ranks = {"training": np.arange(total) % 3, "rollout_decode": np.where(np.arange(total) % 2, 4, -1)}
    tables = {
        arm: table_of(rollout, arm, values, owner_rank=ranks[arm].astype(np.int16))
        for arm, values in (("training", training), ("rollout_decode", decode))
    }
    edge = compare(tables, rollout, contract, verdict_arm="rollout_decode").comparison.edges["training_vs_rollout"]
    groups: dict[str, dict[Any, list[float]]] = {
        name: defaultdict(list) for name in ("sequence", "position", "chance", "first", "second")
    }
    sequence = rollout.sequence_index()
    for number, at in enumerate(np.flatnonzero(rollout.active)):
        d = float(training[number] - decode[number])
        response = int(rollout.tensors["position_ids"][at]) - 3
        groups["sequence"][int(sequence[at])].append(d)
        groups["position"][response.bit_length()].append(d)
        groups["chance"][sum(decode[number] >= math.log(edge) for edge in (0.01, 0.1, 0.5, 0.9))].append(d)
        groups["first"][int(ranks["training"][at])].append(d)
        groups["second"][int(ranks["rollout_decode"][at])].append(d)
    labels = probability_labels(contract.descriptive.probability_edges)
    check(edge.by_sequence, {str(key): groups["sequence"][key] for key in sorted(groups["sequence"])})
    check(edge.by_position, {position_label(key): groups["position"][key] for key in sorted(groups["position"])})
    check(edge.by_probability, {labels[key]: groups["chance"][key] for key in sorted(groups["chance"])})
    named = {f"training:{key}": groups["first"][key] for key in sorted(groups["first"])}
    named |= {
        f"rollout_decode:{'unowned' if key < 0 else key}": groups["second"][key] for key in sorted(groups["second"])
    }
    check(edge.by_rank, named)


def test_labels_say_what_a_bucket_holds() -> None:
    assert [position_label(bucket) for bucket in range(6)] == ["0", "1", "2-3", "4-7", "8-15", "16-31"]
    assert probability_labels((0.01, 0.1, 0.5, 0.9)) == (
        "p<0.01",
        "0.01<=p<0.1",
        "0.1<=p<0.5",
        "0.5<=p<0.9",
        "p>=0.9",
    )


def test_response_positions_start_at_the_first_active_token(rollout_of: Any) -> None:
    layout = layout_module.layout_of(rollout_of([6, 3], prompt=2))
    assert layout.sequence.tolist() == [0] * 6 + [1] * 3
    assert layout.bucket.tolist() == [0, 0, 0, 1, 2, 2, 0, 0, 0]
    assert layout.buckets == 3


def test_without_ranks_there_are_no_rank_groups(judge: Any) -> None:
    assert judge([-1.0], [-1.0]).comparison.edges["training_vs_rollout"].by_rank == ()
