"""Hand-made cubes: a row says its label, what it changes, and how far the two sides are apart."""

from __future__ import annotations

import pytest
from xcfg.schema.codec import decode_json, evolve, pretty_json
from xcfg.schema.result import AssessmentResult, EdgeResult, GroupStat
from xcfg_analysis.cube.rows import CUBE, AxisCell, Cube, Row

EDGE = "training_vs_rollout"
LIMIT = 0.5
"""The threshold of these cubes; the contract's own have no place in a test of what reads them."""


def sequences(mean, count=10, tokens=8):
    """Sequences whose means spread around `mean`, so that a bootstrap has something to draw."""
    found = []
    for index in range(count):
        own = mean * (1 + 0.2 * (index - (count - 1) / 2) / count)
        stat = {"mean_abs": own, "max_abs": 2 * own, "bias": own / 10, "rms": 1.2 * own}
        found.append(GroupStat(group=str(index), active_tokens=tokens, mismatches=int(own > LIMIT), **stat))
    return tuple(found)


def make_edge(status, threshold, top, **changes):
    mean = top / 2
    groups = sequences(mean)
    tokens = sum(item.active_tokens for item in groups)
    bad = sum(item.mismatches for item in groups)
    edge = EdgeResult(
        name=EDGE,
        first="training",
        second="rollout_decode",
        status=status,
        comparable=True,
        threshold=threshold,
        active_tokens=tokens,
        mismatches=bad,
        mismatch_ratio=bad / tokens,
        max_abs=top,
        mean_abs=mean,
        bias=mean / 10,
        rms=1.2 * mean,
        p99_abs=top,
        approx_kl0=mean**2 / 2,
        by_sequence=groups,
    )
    return evolve(edge, **changes)


@pytest.fixture
def row():
    """row(label, top=largest |d|, delta=..., **fields) -> a measured Row; status follows from top and threshold."""

    def make(label, top=0.1, delta=None, *, threshold=LIMIT, edge=None, **fields):
        status = fields.pop("status", None) or ("MISMATCH" if top > threshold else "PASS")
        found = make_edge(status, threshold, top, **(edge or {}))
        delta = delta or {}
        plain = {
            "case_id": f"case-{label}",
            "attempt": "attempt-1",
            "label": label,
            "role": "case",
            "index": 0,
            "delta": delta,
            "axes": {
                key: AxisCell(path=key, requested=value, actual=value, status="applied", exercised="yes")
                for key, value in delta.items()
            },
            "runtimes": {"rollout": "torch", "training": "torch"},
            "devices": {"rollout": "cpu: x", "training": "cpu: x"},
            "status": status,
            "reason": "",
            "verdict_edge": EDGE,
            "verdict_arm": "rollout_decode",
            "threshold": threshold,
            "edges": {EDGE: found},
            "assessment": AssessmentResult(assessment="EXPLAINED_BY_PRECISION"),
            "arms": {},
            "seconds": {"build": 1.0, "score": 2.0},
        }
        return Row(**(plain | fields))

    return make


@pytest.fixture
def failed(row):
    """failed(label, status, reason) -> a Row without numbers."""

    def make(label, status, reason="why", delta=None):
        return row(
            label, delta=delta, status=status, reason=reason, edges={}, verdict_edge="", threshold=None, assessment=None
        )

    return make


@pytest.fixture
def cube():
    """cube(rows, slices=..., missing=...) -> a Cube around them."""

    def make(rows, *, slices=None, missing=(), **changes):
        found = Cube(
            schema_version=CUBE,
            experiment_id="made",
            experiment={"experiment_id": "made", "slices": slices or {}},
            contract={"source": "made", "version": "v1", "digest": "d" * 64},
            rollout="r" * 64,
            rows=tuple(rows),
            missing=tuple(missing),
            runtimes={"rollout": "torch", "training": "torch"},
        )
        return evolve(found, **changes)

    return make


KEYS = {"A1": "k.arithmetic", "A2": "k.reduction", "A3": "k.representation"}


@pytest.fixture
def ladder_run(row, cube):
    """ladder_run(A0=0.1, A1=..., ...) -> the cube of a run of profiles with one setting per class.

    Keywords are largest |d| by point (A4 pairs as `A12`, `A13`, `A23`); a point without one was not run.
    """

    def make(aligned=0.0, production=1.0, **points):
        every = list(KEYS.values())

        def pinned(*free):
            return {key: ("aligned",) for key in every if key not in free}

        slices = {"A0": pinned(), "A5": dict.fromkeys(every, ("produced",))}
        slices |= {name: pinned(key) for name, key in KEYS.items()}
        names = {
            "A12": ("arithmetic", "reduction"),
            "A13": ("arithmetic", "representation"),
            "A23": ("reduction", "representation"),
        }
        for pair in names.values():
            slices["A4." + "+".join(pair)] = pinned(*(f"k.{of}" for of in pair))
        rows = [] if aligned is None else [row("baseline", aligned)]
        for name, top in points.items():
            keys = [KEYS[name]] if name in KEYS else [f"k.{of}" for of in names[name]]
            rows.append(row(name, top, dict.fromkeys(keys, "produced")))
        if production is not None:
            rows.append(row("A5", production, dict.fromkeys(every, "produced")))
        return cube(rows, slices=slices)

    return make


@pytest.fixture
def again():
    """again(record) -> the record after a trip through plain JSON."""

    def trip(record):
        return decode_json(pretty_json(record), type(record))

    return trip
