"""Hand-made rows of a cube, whose per-sequence figures are what a test says they are."""

from __future__ import annotations

import numpy as np
from xcfg.schema.result import AssessmentResult, EdgeResult, GroupStat
from xcfg_analysis.cube.rows import CUBE, ArmCell, AxisCell, Cube, Row

EDGE = "training_vs_rollout"
TOKENS = 10
OPERATORS = {"operators.selected_logprob.rollout": "native", "operators.selected_logprob.training": "native"}


def edge(squares, *, top=None):
    """An edge of TOKENS tokens per sequence whose sums of d^2 are `squares`."""
    squares = np.asarray(squares, dtype=np.float64)
    rms = np.sqrt(squares / TOKENS)
    groups = tuple(
        GroupStat(group=str(at), active_tokens=TOKENS, mismatches=0, mean_abs=value, max_abs=value, bias=0.0, rms=value)
        for at, value in enumerate(rms.tolist())
    )
    whole = float(np.sqrt(squares.sum() / (TOKENS * len(squares))))
    return EdgeResult(
        name=EDGE,
        first="training",
        second="rollout_decode",
        status="PASS",
        comparable=True,
        active_tokens=TOKENS * len(squares),
        max_abs=float(rms.max()) if top is None else top,
        rms=whole,
        by_sequence=groups,
    )


def row(
    squares,
    delta=None,
    *,
    status="MISMATCH",
    role="case",
    index=0,
    threshold=0.1,
    top=None,
    assessment="EXPLAINED_BY_PRECISION",
    budget=0.03,
    digests=("t", "r"),
    operators=None,
    applied="applied",
    exercised="yes",
    coupled=(),
    outside=(),
    seconds=1.0,
):
    """A row; squares: None for a case without figures. digests: of (training, rollout)."""
    delta = delta or {}
    asked = OPERATORS | (operators or {})
    axes = {
        key: AxisCell(path=key, requested=value, actual=value, status=applied, exercised=exercised)
        for key, value in asked.items()
    }
    name = "+".join(f"{key}={value}" for key, value in delta.items()) or "baseline"
    arms = dict(zip(("training", "rollout_decode"), digests, strict=True))
    return Row(
        case_id=f"case-{name}-{role}{index}",
        attempt="attempt-0001",
        label=name,
        role=role,
        index=index,
        delta=delta,
        axes=axes,
        runtimes={"rollout": "torch", "training": "torch"},
        devices={},
        status=status,
        reason="" if status in ("PASS", "MISMATCH") else "it broke",
        verdict_edge="" if squares is None else EDGE,
        verdict_arm="rollout_decode",
        threshold=threshold,
        edges={} if squares is None else {EDGE: edge(squares, top=top)},
        assessment=AssessmentResult(assessment=assessment, b_training=budget, b_rollout=budget),
        arms={arm: ArmCell(arm=arm, key=arm, digest=digest, dtype="bfloat16") for arm, digest in arms.items()},
        seconds={"build": 1.0, "score": seconds},
        coupled=coupled,
        outside=outside,
    )


def cube(*rows, definitions=None):
    """A cube of these rows, the baseline first."""
    return Cube(
        schema_version=CUBE,
        experiment_id="made",
        experiment={},
        contract={},
        rollout="",
        rows=rows,
        definitions=definitions or {},
    )
