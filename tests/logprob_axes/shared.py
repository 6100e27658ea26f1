"""The axes, the experiment that varies them, an engine's own logits from a capture, and float64's prediction."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import xcfg
from numpy.typing import NDArray
from xcfg_ops_logp.matrix.capture import SCALE
from xcfg_ops_logp.reference import evaluate

TINY = Path(__file__).parents[2] / "examples" / "quickstart" / "tiny.json"
BACKEND = "xcfg.ablation_logp"
PADDED = 768
BASELINE = {
    "logprob.vocab_shard_map": "even:8",
    "logprob.reduce": "allgather_partials_fixed_merge",
    "logprob.padded_vocab_size": PADDED,
}
ONE_SIDED = [
    ("vocab_padding_policy", "include"),
    ("vocab_shard_map", "megatron:2:384"),
    ("reduce", "allreduce_partials"),
    ("merge_order", "reverse_vocab_shard_index"),
    ("head_dtype", "bfloat16"),
    ("accum_dtype", "float64"),
    ("downcast_at", "result"),
    ("selected_gather", "masked_sum_allreduce"),
    ("block_size", 16),
]
REFUSED = [("transform_chain", "temperature:0.7"), ("shift_convention", "internal")]
SEEN_IN_BITS = ("merge_order", "accum_dtype", "vocab_shard_map")
"""Another order or dtype of the same sum."""


class Captured(NamedTuple):
    """Of one arm: flat numbers of the active tokens [A], the engine's own logits [A, V], and the selected ids [A]."""

    active: NDArray[np.int64]
    logits: torch.Tensor
    selected: torch.Tensor


def experiment(folder: Path, name: str, **changes: Any) -> Path:
    """Write the tiny experiment in float32 with the ablation backend on both sides; `baseline` adds to the baseline."""
    document = json.loads(TINY.read_text())
    document["identity"]["rollout"]["path"] = str(TINY.parent / "tiny-rollout")
    baseline = {
        "batch": {"size": 8, "padding_side": "right"},
        "rollout": {"dtype": "float32", "attention_backend": "model_default"},
        "training": {"compute_dtype": "float32", "attention_backend": "model_default"},
        **changes.pop("baseline", BASELINE),
    }
    document |= {
        "experiment_id": name,
        "baseline": baseline,
        "interventions": [],
        "controls": {"reference": False},
        "operators": {"selected_logprob": dict.fromkeys(("rollout", "training"), BACKEND)},
        **changes,
    }
    file = folder / f"{name}.json"
    file.write_text(json.dumps(document))
    return file


def one_side(side: str, axes: list[tuple[str, Any]]) -> list[dict[str, Any]]:
    """Return the interventions that set each axis on one side alone."""
    return [{"path": f"logprob.{name}", "side": side, "values": [value]} for name, value in axes]


def capturing(kept: Path) -> dict[str, Any]:
    """Return the choice of the backend that keeps the logits that it is handed in `kept`, which it makes."""
    kept.mkdir()
    options = {"folder": str(kept), "factory": "xcfg_ops_logp.reference:build", "options": "{}"}
    return {"backend": "xcfg.capture_logp", "options": options}


def captured(run: Path, kept: Path) -> dict[str, Captured]:
    """Return what every arm of a capturing run was handed, by arm, in the order of tokens."""
    rows = {}
    for file in kept.glob("process-*/*.pt"):
        held = torch.load(file, weights_only=True)
        rows |= {
            held["first"] + index: (held["logits"][index], held["selected"][index])
            for index in range(len(held["value"]))
        }
    case = xcfg.open_run(run).cases[0]
    found = {}
    for arm in case.actual.applications:
        numbers = case.score(arm)["selected_logprob"]
        active = np.flatnonzero(np.isfinite(numbers))
        mine = [rows.get(round(float(number) / SCALE)) for number in numbers[active]]
        if all(item is not None for item in mine):
            found[arm] = Captured(active, torch.stack([x for x, _ in mine]), torch.stack([y for _, y in mine]))
    return found


def by_axis(run: Path, summary: Any) -> dict[tuple[str, str], tuple[Any, Any]]:
    """Return (axis, side) -> case and its line of the summary; the baseline is ("baseline", "")."""
    found = {}
    for case, line in zip(xcfg.open_run(run).cases, summary.cases, strict=True):
        path, _, side = next(iter(case.planned.delta), "baseline").partition("@")
        found[path.rpartition(".")[2], side] = (case, line)
    return found


def predicted(name: str, logits: torch.Tensor, selected: torch.Tensor, columns: int) -> torch.Tensor | None:
    """How far the axis moves each value in exact arithmetic; None where it is the same function.

    columns: of the vocabulary and its padding, whose logits are 0.
    """
    exact = evaluate(logits, selected)
    if name == "vocab_padding_policy":
        added = columns - logits.shape[1]
        return -torch.log1p(added * torch.exp(-torch.logsumexp(logits.double(), dim=-1)))
    if name == "head_dtype":
        return evaluate(logits.bfloat16(), selected).logprob - exact.logprob
    if name == "downcast_at":
        return exact.logprob.float().bfloat16().double() - exact.logprob
    return None


def rounding(own: Captured) -> float:
    """Return what float32 may move a difference of two values by: nats."""
    exact = evaluate(own.logits, own.selected)
    return 4 * torch.finfo(torch.float32).eps * float(exact.logprob.abs().max() + exact.logsumexp.abs().max())


def values(case: Any, arm: str, active: NDArray[np.int64]) -> torch.Tensor:
    """Return the scores [A] of the active tokens of one arm, widened to float64."""
    return torch.from_numpy(case.score(arm)["selected_logprob"][active].astype(np.float64))


def check_moved(
    name: str, case: Any, base: Any, arm: str, own: Captured, *, columns: int = PADDED
) -> torch.Tensor | None:
    """Hold what an arm's values moved by against float64 on its own logits [A, V]; return the prediction [A]."""
    moved = values(case, arm, own.active) - values(base, arm, own.active)
    wanted, slack = predicted(name, own.logits, own.selected, columns), rounding(own)
    if name == "downcast_at":  # a value next to the middle of two bfloat16 may round to either
        assert ((moved - wanted).abs() <= slack).double().mean() > 0.99
    else:
        apart = (moved - (torch.zeros_like(moved) if wanted is None else wanted)).abs()
        assert apart.max() <= slack, f"{int((apart > slack).sum())} of {len(apart)} tokens, at most {apart.max():.3g}"
    if wanted is not None:
        assert wanted.abs().max() > 10 * slack, "the prediction would also hold for nothing at all"
    if name == "selected_gather":
        assert not moved.any(), "one owner: the gather moves no bit"
    if name in SEEN_IN_BITS:
        assert moved.any(), "another order or dtype of the same sum is seen in some bit"
    return wanted


def check_applied(name: str, case: Any, side: str, arms: tuple[str, ...]) -> None:
    """Every rank of each arm shows by what its calls did that the option ran."""
    for arm in arms:
        found = [item for item in case.actual.applications[arm] if item.path == f"logprob.{name}" and item.side == side]
        assert found and {item.status.value for item in found} == {"applied"}, found
        assert all("execution" in {evidence.kind.value for evidence in item.evidence} for item in found)
        assert {item.exercised.value for item in found} == {"yes"}
