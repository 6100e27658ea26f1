"""What the baseline, control and rows measure on one phase, call by call: a phase is never in memory at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from xcfg.binding import Stated

from xcfg_ops_logp.ablation.operator import Ablation
from xcfg_ops_logp.contract import bind_logprob
from xcfg_ops_logp.contract.made import ablation_contract
from xcfg_ops_logp.matrix.replay import Call, Phase

Operator = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
GROUP = 7
"""Rows handed over together in the second replay of the control: no divisor of a usual chunk."""
GRADIENT_ROWS = 16
"""Rows of each call whose gradient is taken."""


@dataclass(frozen=True)
class Measured:
    """A phase's own baseline.

    value: token -> log probability. replay: how that compares with the worker's value and, in `reference_max_abs`, with
    an exact operator's on the same logits.
    """

    value: dict[int, float]
    replay: dict[str, float]

    @property
    def broken(self) -> int:
        """Tokens without a finite log probability."""
        return sum(not math.isfinite(value) for value in self.value.values())

    @property
    def unequal(self) -> bool:
        """Whether the replay differs from the worker in any bit."""
        return bool(self.replay["unequal"])


class _Drift:
    """The largest difference of pairs, and how many of them differ at all; NaN equals NaN."""

    def __init__(self) -> None:
        self.tokens = 0
        self.unequal = 0
        self.largest = 0.0

    def add(self, found: torch.Tensor, base: torch.Tensor, mine: NDArray[np.bool_]) -> None:
        first, second = (item.detach().double()[torch.from_numpy(mine)] for item in (found, base))
        apart = (first != second) & ~(first.isnan() & second.isnan())
        self.tokens += len(first)
        self.unequal += int(apart.sum())
        if bool(apart.any()):
            gaps = (first[apart] - second[apart]).abs()
            self.largest = max(self.largest, float(gaps.nan_to_num(nan=torch.inf, posinf=torch.inf).max()))

    def metrics(self) -> dict[str, float]:
        return {"compared": self.tokens, "unequal": self.unequal, "out_max_abs": self.largest}


def replayed(phase: Phase, operator: Operator, exact: Operator | None = None) -> Measured:
    """Return the phase's baseline: the same calls once more, beside what the worker computed, and beside `exact`."""
    drift, away = _Drift(), _Drift()
    value: dict[int, float] = {}
    for call in phase.calls():
        mine = call.tokens >= 0
        again = operator(call.logits, call.selected)
        drift.add(again, call.value, mine)
        if exact is not None:
            away.add(again, exact(call.logits, call.selected), mine)
        value.update(zip(call.tokens[mine].tolist(), again.double()[torch.from_numpy(mine)].tolist(), strict=True))
    apart = {} if exact is None else {"reference_max_abs": away.largest}
    return Measured(value, {**drift.metrics(), **apart})


def invariance(phase: Phase, operator: Operator, base: Measured) -> dict[str, float]:
    """Return how far the same rows move when they are handed over alone, and in reverse in groups of seven."""
    drift = _Drift()
    for call in phase.calls():
        mine = call.tokens >= 0
        held = torch.tensor([base.value.get(int(token), torch.nan) for token in call.tokens], dtype=torch.float64)
        for order in _orders(len(call.tokens)):
            again = torch.empty_like(held)
            for rows in order:
                again[rows] = operator(call.logits[rows], call.selected[rows]).double()
            drift.add(again, held, mine)
    return drift.metrics()


def _orders(count: int) -> Iterator[list[torch.Tensor]]:
    yield list(torch.split(torch.arange(count), 1))
    yield list(torch.split(torch.arange(count).flip(0), GROUP))


def change(
    phase: Phase,
    same: Mapping[str, object],
    factor: Mapping[str, object],
    ends: Sequence[Mapping[int, float]],
    *,
    first: bool,
    training: bool,
) -> tuple[dict[str, float], dict[str, Any]]:
    """Return what one factor moves in one phase against its own baseline, and what ran.

    ends: the baselines of the edge, token -> log probability; the factor acts on the first or the second of them. The
    gradient, of the sum of all log probabilities, is taken where the phase trains.
    """
    before, after = Ablation(**same), Ablation(**{**same, **factor})
    out, lse, gradient = _Drift(), _Drift(), 0.0
    moved: dict[int, float] = {}
    dtype = ""
    for call in phase.calls():
        mine, dtype = call.tokens >= 0, str(call.logits.dtype).removeprefix("torch.")
        with torch.no_grad():
            base, found = (operator.values(call.logits, call.selected) for operator in (before, after))
        out.add(found[0], base[0], mine)
        lse.add(found[1], base[1], mine)
        moved.update(zip(call.tokens[mine].tolist(), (found[0] - base[0]).double().numpy()[mine].tolist(), strict=True))
        if training:
            gradient = max(gradient, _gradient_drift(call, before, after))
    metrics = {**out.metrics(), "lse_max_abs": lse.largest}
    if training:
        metrics["dlogits_max_abs"] = gradient
    metrics |= _edge(ends, moved, first=first)
    program = {
        "operator": "xcfg.ablation_logp on both ends, whatever backend was captured",
        "inputs": f"the logits of {phase.name}, as captured",
        "intermediate": "float32",
        "final_write": "float32",
        "baseline": before.stated.get("options", {}),
        "factor": dict(factor),
        "ran": after.stated.get("options", {}),
        "gradient_rows_per_call": GRADIENT_ROWS if training else 0,
    }
    if after.stated:  # empty where the phase has no call
        program["contract"] = _bound(before, after, factor, dtype, int(metrics["compared"]))
    return metrics, program


def _bound(before: Ablation, after: Ablation, factor: Mapping[str, object], dtype: str, rows: int) -> dict[str, Any]:
    """Return what the contracts of both ends allow, where the factor alone is declared.

    refused: why no number may be made of the two, empty where one may. measured: the fields that bind and differ,
    since they are declared; recorded: those that differ and bind nothing.
    """
    made = partial(ablation_contract, logits_dtype=dtype, rows=rows)
    first, second = (made(item.stated, transforms=item.transforms) for item in (before, after))
    knobs = [f"logprob.{name}" for name in factor]
    found = bind_logprob(Stated(first, "the baseline"), Stated(second, "the changed end"), knobs=knobs)
    return {
        "status": found.status,
        "refused": found.reason,
        "measured": [item.path for item in found.measured],
        "recorded": [item.path for item in found.recorded],
    }


def _gradient_drift(call: Call, before: Ablation, after: Ablation) -> float:
    found: list[torch.Tensor] = []
    for operator in (before, after):
        leaf = call.logits[:GRADIENT_ROWS].float().requires_grad_()
        total = operator.values(leaf, call.selected[:GRADIENT_ROWS])[0].sum()
        found += torch.autograd.grad(total, leaf)
    drift = _Drift()
    drift.add(found[0], found[1], np.ones(len(found[0]), dtype=np.bool_))
    return drift.largest


def _edge(ends: Sequence[Mapping[int, float]], moved: Mapping[int, float], *, first: bool) -> dict[str, float]:
    """Return the edge with the factor on one end: largest |d|, mean(-d), mean(exp d - 1 - d), and |d| without it."""
    tokens = sorted(ends[0].keys() & ends[1].keys() & moved.keys())
    plain = np.asarray([ends[0][token] - ends[1][token] for token in tokens])
    shift = np.asarray([moved[token] for token in tokens])
    gap = plain + shift if first else plain - shift
    return {
        "selected_max_abs": float(np.abs(gap).max(initial=0.0)),
        "selected_max_abs_without": float(np.abs(plain).max(initial=0.0)),
        "mismatch_kl": float(np.mean(-gap)),
        "mismatch_k3_kl": float(np.mean(np.expm1(gap) - gap)),
    }
