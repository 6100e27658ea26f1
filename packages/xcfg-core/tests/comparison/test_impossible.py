"""A log probability above 0 is none: raw logits never pass, and what rounding can do is no fault."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from xcfg.comparison import compare
from xcfg.comparison.tables import highest
from xcfg.schema.contract import Contract

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


@pytest.mark.parametrize("dtype", [*DTYPES, ""])
@pytest.mark.parametrize("sides", [("both", 4.0, 4.0), ("training", 4.0, -1.0), ("rollout_decode", -1.0, 4.0)])
def test_raw_logits_never_pass(judge: Any, dtype: str, sides: tuple[str, float, float]) -> None:
    """Failing means that two engines that both forgot the softmax are called equal."""
    name, training, rollout = sides
    outcome = judge([training, -2.0], [rollout, -2.0], dtypes=(dtype, dtype)).comparison
    assert outcome.status == "INVALID_ARTIFACT"
    assert "raw logits?" in outcome.reason and f"above {highest(dtype):g} nats" in outcome.reason
    assert ("training has 1" in outcome.reason) == (name != "rollout_decode")
    edge = outcome.edges["training_vs_rollout"]
    assert edge.max_abs is None and outcome.assessment.assessment == "NO_REFERENCE"


@pytest.mark.parametrize(("dtype", "bound"), [("bfloat16", 1.0), ("float16", 0.125), ("float32", 0.125), ("", 1.0)])
def test_the_bound_is_one_unit_in_the_last_place_of_a_logit_below_256(judge: Any, dtype: str, bound: float) -> None:
    """By hand: numbers in [128, 256) with 7 fraction bits lie 2^7 * 2^-7 = 1 apart, with 10 they lie 2^-3 apart."""
    at, over = [bound, -2.0], [float(np.nextafter(bound, 2.0)), -2.0]
    status = "UNOBSERVABLE" if not dtype else "PASS"
    assert judge(at, at, dtypes=(dtype, dtype)).comparison.status == status
    assert judge(over, over, dtypes=(dtype, dtype)).comparison.status == "INVALID_ARTIFACT"


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("top", [30.0, 250.0])
def test_no_log_softmax_comes_above_the_bound(name: str, top: float) -> None:
    """Nearly certain tokens, where rounding can lift a value above 0: in one dtype never; fused, by half an ulp.

    fused: the logit is rounded to the compute dtype, the LSE is not, as in kernels that never store the logits.
    """
    draw = torch.Generator().manual_seed(0)
    exact = torch.randn(256, 4096, dtype=torch.float64, generator=draw)
    at = torch.randint(4096, (256, 1), generator=draw)
    certain = top * (0.9 + 0.1 * torch.rand(256, 1, dtype=torch.float64, generator=draw))
    exact = exact.scatter(1, at, certain)
    rounded = exact.to(DTYPES[name])
    own = torch.log_softmax(rounded, -1).gather(1, at)
    fused = rounded.gather(1, at).double() - torch.logsumexp(exact, -1, keepdim=True)
    assert float(own.max()) <= 0.0
    assert 0.0 < float(fused.max()) <= highest(name) / 2


def test_a_reference_of_raw_logits_gives_no_budget(rollout_of: Any, table_of: Any, contract: Contract) -> None:
    frozen = rollout_of([9] * 10)
    values = np.full(80, -2.0)
    tables = {arm: table_of(frozen, arm, values) for arm in ("training", "rollout_decode")}
    plain = {"reference:float32": table_of(frozen, "reference", values + 9.0, dtype="float32")}
    plain |= {f"plain_{kind}:bfloat16": table_of(frozen, "reference", values) for kind in ("eager", "sdpa")}
    found = compare(tables, frozen, contract, verdict_arm="rollout_decode", reference=plain).comparison
    assert found.status == "PASS" and found.assessment.assessment == "NO_REFERENCE"
    assert "raw logits?" in found.assessment.reason


def test_inactive_values_are_nobodys_fault(rollout_of: Any, table_of: Any, contract: Contract) -> None:
    frozen = rollout_of([3])
    tables = {arm: table_of(frozen, arm, [-1.0, -2.0]) for arm in ("training", "rollout_decode")}
    tables["training"].logprob[0] = 40.0
    assert compare(tables, frozen, contract, verdict_arm="rollout_decode").comparison.status == "PASS"
