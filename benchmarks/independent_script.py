"""Score a frozen rollout with plain transformers and torch, judge it with numpy. Nothing here imports xcfg.

What an engineer would write by hand to check xcfg's embedded runtime: the same tokens, the same batches (their
composition, padding side and head rows), the same rule, other code. The float64 reference of float32 settings is
a forward pass written out below, not a Hugging Face model. Run

    python independent_script.py --rollout FOLDER --checkpoint FOLDER --contract ws1-c1-v2.json \
        --settings settings.json --output result.json

settings.json: `[{"name": "baseline", "training": {"dtype": "bfloat16", ...}, "rollout": {...}}]`, the fields of
`Side` below. Sides that several settings share are scored once.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _by_hand import (
    Bools,
    Floats,
    Frozen,
    Scored,
    Scoring,
    Side,
    decode,
    load_model,
    prefill,
    read_rollout,
)
from _float64 import reference64
from numpy.typing import NDArray

LEVEL = 0.95
RESAMPLES = 2000


def needed(training: Side, rollout: Side) -> dict[str, Scoring | None]:
    """Return table -> scoring; None stands for the float64 forward above."""
    dtypes = sorted({training.dtype, rollout.dtype})
    tables: dict[str, Scoring | None] = {
        "training": Scoring("prefill", training),
        "rollout_prefill": Scoring("prefill", rollout),
        "rollout_decode": Scoring("decode", rollout),
    }
    for dtype in dtypes:
        for attention in ("eager", "sdpa"):
            tables[f"plain {attention} {dtype}"] = _plain(dtype, attention)
    tables["reference"] = None if "float32" in dtypes else _plain("float32", "eager")
    return tables


def _plain(dtype: str, attention: str) -> Scoring:
    return Scoring("prefill", Side(dtype=dtype, attention=attention, batch_size=1))


def distinct(settings: Sequence[tuple[str, Side, Side]]) -> list[Scoring | None]:
    """Return every scoring once, those of one model together."""
    wanted = dict.fromkeys(item for _, training, rollout in settings for item in needed(training, rollout).values())
    return sorted(wanted, key=lambda item: ("", "") if item is None else (item.side.dtype, item.side.attention))


def score_all(
    folder: Path,
    frozen: Frozen,
    wanted: Iterable[Scoring | None],
    cores: int,
    note: Callable[[str, float], None] = lambda what, seconds: None,
) -> dict[Scoring | None, Scored]:
    """Return every scoring, with one model in memory at a time; note: told what took how many seconds."""
    found: dict[Scoring | None, Scored] = {}
    model, loaded = None, ("", "")
    for item in wanted:
        if item is not None and (item.side.dtype, item.side.attention) != loaded:
            model, loaded = None, (item.side.dtype, item.side.attention)
            started = time.perf_counter()
            model = load_model(folder, *loaded)
            note(f"load {' '.join(loaded)}", time.perf_counter() - started)
        torch.set_num_threads(max(1, cores // (1 if item is None else item.side.ranks)))
        started = time.perf_counter()
        with torch.no_grad():
            found[item] = _score(folder, model, frozen, item)
        found[item].seconds = time.perf_counter() - started
        note("reference float64" if item is None else f"{item.arm} {item.side}", found[item].seconds)
    return found


def _score(folder: Path, model: Any, frozen: Frozen, item: Scoring | None) -> Scored:
    if item is None:
        return reference64(folder, frozen)
    return (decode if item.arm == "decode" else prefill)(model, frozen, item.side)


def edge(first: Floats, second: Floats, mask: Bools, threshold: float | None) -> dict[str, Any]:
    """Return the figures of d = first - second over `mask`, in float64."""
    d = first[mask].astype(np.float64) - second[mask].astype(np.float64)
    size = np.abs(d)
    mismatches = 0 if threshold is None else int((size > threshold).sum())
    status = "UNOBSERVABLE" if threshold is None else "MISMATCH" if mismatches else "PASS"
    return {
        "status": status if np.isfinite(d).all() and len(d) else "INVALID",
        "threshold": threshold,
        "active_tokens": len(d),
        "mismatches": mismatches,
        "max_abs": float(size.max()),
        "mean_abs": float(size.mean()),
        "rms": float(np.sqrt(np.square(d).mean())),
        "p99_abs": float(np.quantile(size, 0.99)),
        "approx_kl0": float((np.expm1(d) - d).mean()),
    }


def judge(
    frozen: Frozen, training: Side, rollout: Side, scores: Mapping[str, Scored], contract: Mapping[str, Any], seed: int
) -> dict[str, Any]:
    """Return status, threshold, figures per edge, and the precision budget of one setting."""
    limits = {dtype: entry["atol"] for dtype, entry in contract["accuracy"]["default"]["logprob"].items()}
    precise = "float64" if "float32" in (training.dtype, rollout.dtype) else "float32"
    values: dict[str, Floats] = {name: item.values for name, item in scores.items()}
    dtypes: dict[str, str | None] = {"training": training.dtype, "reference": precise}
    dtypes |= dict.fromkeys(("rollout_prefill", "rollout_decode"), rollout.dtype)
    edges = {}
    if frozen.recorded is not None:
        values["recorded"], dtypes["recorded"] = frozen.recorded, None
    for name, first, second in _pairs(values):
        coarser = [limits[dtype.replace("float64", "float32")] for dtype in (dtypes[first], dtypes[second]) if dtype]
        mask = frozen.active & ~np.isnan(values[first]) & ~np.isnan(values[second])
        if (first, second) == ("rollout_prefill", "rollout_decode"):
            mask &= scores["rollout_decode"].decoded
        edges[name] = edge(values[first], values[second], mask, max(coarser) if len(coarser) == 2 else None)
    verdict = edges["training_vs_rollout"]
    return {
        "status": verdict["status"],
        "threshold": verdict["threshold"],
        "edges": edges,
        "budget": budget(frozen, values, training.dtype, rollout.dtype, precise, seed),
    }


def _pairs(values: Mapping[str, Floats]) -> Iterator[tuple[str, str, str]]:
    yield "training_vs_rollout", "training", "rollout_decode"
    yield "training_vs_rollout_prefill", "training", "rollout_prefill"
    yield "rollout_prefill_vs_decode", "rollout_prefill", "rollout_decode"
    if "recorded" in values:
        yield "training_vs_recorded", "training", "recorded"
        yield "decode_vs_recorded", "rollout_decode", "recorded"
    for arm in ("training", "rollout_prefill", "rollout_decode", "recorded"):
        if arm in values:
            yield f"{arm}_vs_reference", arm, "reference"


def budget(
    frozen: Frozen, values: Mapping[str, Floats], training: str, rollout: str, precise: str, seed: int
) -> dict[str, Any]:
    """Return b and R of both sides and the gap, and the bias, each with a bootstrap interval over sequences."""
    where = np.flatnonzero(frozen.active)
    wide = {name: array[where].astype(np.float64) for name, array in values.items()}
    truth = wide["reference"]
    columns = [np.ones(len(where)), wide["training"] - truth, wide["rollout_decode"] - truth]
    plain = [f"plain {attention} {dtype}" for dtype in (training, rollout) for attention in ("eager", "sdpa")]
    columns += [wide[name] - truth for name in plain]
    gap = wide["training"] - wide["rollout_decode"]
    terms = np.stack([*(np.square(column) for column in (*columns, gap)), gap])
    sequence = np.searchsorted(frozen.offsets, where, side="right") - 1
    table = np.stack([np.bincount(sequence, weights=term, minlength=frozen.count) for term in terms], axis=1)
    table = table[table[:, 0] > 0]
    point = _ratios(table.sum(axis=0, keepdims=True))
    drawn = np.random.default_rng(seed).integers(len(table), size=(RESAMPLES, len(table)))
    samples = _ratios(np.stack([table[:, column][drawn].sum(axis=1) for column in range(table.shape[1])], axis=1))
    result: dict[str, Any] = {"reference_dtype": precise}
    result |= {name: float(point[name][0]) for name in ("b_training", "b_rollout")}
    for name in ("r_training", "r_rollout", "r_gap", "bias"):
        tail = (1 - LEVEL) / 2
        low, high = np.quantile(samples[name], [tail, 1 - tail])
        result[name] = {"value": float(point[name][0]), "low": float(low), "high": float(high)}
    return result


def _ratios(sums: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
    """Return the figures of summed columns [rows, 9], each [rows]."""
    mean = sums / sums[:, :1]
    b_training, b_rollout = (np.sqrt(np.maximum(mean[:, at], mean[:, at + 1])) for at in (3, 5))
    return {
        "b_training": b_training,
        "b_rollout": b_rollout,
        "r_training": np.sqrt(mean[:, 1]) / b_training,
        "r_rollout": np.sqrt(mean[:, 2]) / b_rollout,
        "r_gap": np.sqrt(mean[:, 7]) / np.hypot(b_training, b_rollout),
        "bias": mean[:, 8],
    }


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    for name in ("rollout", "checkpoint", "contract", "settings", "output"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0, help="of the bootstrap")
    given = parser.parse_args()
    started = time.perf_counter()
    frozen = read_rollout(given.rollout)
    contract = json.loads(given.contract.read_text())
    asked = json.loads(given.settings.read_text())
    settings = [(item["name"], Side(**item["training"]), Side(**item["rollout"])) for item in asked]
    seconds: list[dict[str, Any]] = []
    scores = score_all(
        given.checkpoint,
        frozen,
        distinct(settings),
        cores(),
        lambda what, taken: seconds.append({"what": what, "seconds": taken}),
    )
    cases = []
    for name, training, rollout in settings:
        tables = {table: scores[item] for table, item in needed(training, rollout).items()}
        found = judge(frozen, training, rollout, tables, contract, given.seed)
        cases.append({"name": name, "training": asdict(training), "rollout": asdict(rollout), **found})
    document = {"cases": cases, "scorings": len(scores), "seconds": seconds, "total": time.perf_counter() - started}
    given.output.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
