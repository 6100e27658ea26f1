"""Cubes by hand: rows with known differences, and an Evidence that hands them out instead of reading a store."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
from xcfg.contract import load_contract
from xcfg.schema.result import EdgeResult
from xcfg_analysis.cube.rows import CUBE, ArmCell, AxisCell, Cube, Row

EDGE = "training_vs_rollout"
ARMS = ("training", "rollout_decode")
THRESHOLD = 0.5


def edge(d, threshold):
    size = np.abs(d)
    return EdgeResult(
        name=EDGE,
        first="training",
        second="rollout_decode",
        status="PASS",
        comparable=True,
        threshold=threshold,
        active_tokens=len(d),
        mismatches=int((size > threshold).sum()),
        max_abs=float(size.max()),
        rms=float(np.sqrt(np.square(d).mean())),
    )


def row(case_id, d, delta=None, **changes):
    """A row whose verdict edge has the differences `d`; its arms carry `digest` so that equal bits can be said."""
    delta = delta or {}
    digest = changes.pop("digest", case_id)
    threshold = changes.pop("threshold", THRESHOLD)
    exercised = changes.pop("exercised", "yes")
    pids = changes.pop("pids", (1,))
    claims = changes.pop("claims", {})
    mechanism = changes.pop("mechanism", {})
    cells = {
        key: AxisCell(path=key, requested=value, actual=value, status="applied", exercised=exercised)
        for key, value in delta.items()
    }
    arms = {
        arm: ArmCell(
            arm=arm,
            key=f"{case_id}-{arm}",
            digest=f"{digest}-{arm}",
            dtype="bfloat16",
            processes=pids,
            started=("7",) * len(pids),
            claims=claims,
            mechanism=mechanism if arm == "rollout_decode" else {},
        )
        for arm in ARMS
    }
    fields = {
        "case_id": case_id,
        "attempt": "attempt-0001",
        "label": ", ".join(f"{k}={v}" for k, v in delta.items()) or case_id,
        "role": "case",
        "index": 0,
        "delta": delta,
        "axes": cells,
        "runtimes": {"rollout": "a", "training": "b"},
        "devices": {},
        "status": "PASS",
        "reason": "",
        "verdict_edge": "" if d is None else EDGE,
        "verdict_arm": "rollout_decode",
        "threshold": None if d is None else threshold,
        "edges": {} if d is None else {EDGE: edge(d, threshold)},
        "assessment": None,
        "arms": {} if d is None else arms,
        "seconds": {},
    }
    return Row(**(fields | changes))


class Handmade:
    """Stands for cube.load.Evidence: differences and training scores by case id."""

    def __init__(self, differences, sequence, rows, controls=None):
        self.differences, self.sequence = differences, np.asarray(sequence)
        self.sequences = int(self.sequence.max()) + 1
        self.active = np.ones(len(self.sequence), dtype=bool)
        self.cube = Cube(
            schema_version=CUBE,
            experiment_id="handmade",
            experiment={"controls": controls or {}},
            contract={},
            rollout="",
            rows=tuple(rows),
            runtimes={"rollout": "a", "training": "b"},
        )
        self.run = SimpleNamespace(
            contract=load_contract(),
            experiment=self.cube.experiment,
            revision=SimpleNamespace(experiment_digest="0" * 64),
            rollout=self._rollout(),
            folder=Path.cwd() / "runs" / "handmade",
        )
        self.plugins = SimpleNamespace(commands=tuple, signatures=tuple, knobs=dict)

    def _rollout(self):
        count = np.bincount(self.sequence)
        starts = np.concatenate(([0], np.cumsum(count)))
        return SimpleNamespace(
            offsets=starts,
            token_ids=np.arange(len(self.sequence)),
            tensors={
                "weight_version": np.zeros(len(self.sequence), dtype=np.int32),
                "position_ids": np.arange(len(self.sequence)) - np.repeat(starts[:-1], count),
            },
            manifest=SimpleNamespace(
                generator={}, sampling=None, sequences=[SimpleNamespace(request_id=str(at)) for at in range(len(count))]
            ),
        )

    def columns(self, item, arm):
        """No optional column."""
        return {}

    def difference(self, item, name):
        d = self.differences.get(item.case_id) if name else None
        return None if d is None else (d, np.ones(len(d), dtype=bool))

    def scored_at(self, item):
        """As the ids sort."""
        return item.case_id

    def scores(self, item, arm):
        """The rollout arm is 0 everywhere, so that the training arm is the difference itself."""
        d = self.differences.get(item.case_id)
        return None if d is None else d if arm == "training" else np.zeros(len(d))

    def exact(self, item, arm):
        """No score has the column."""
