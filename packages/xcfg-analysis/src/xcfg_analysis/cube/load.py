"""From a stored run to its cube, and from a row of the cube to the tokens behind it; all reads go through the seals."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import xcfg
from numpy.typing import NDArray
from xcfg.binding import CLAIMS
from xcfg.errors import ArtifactError
from xcfg.schema import codec
from xcfg.schema.gradient import gradient_of
from xcfg.schema.names import Arm, Side
from xcfg.schema.plan import ExperimentCase
from xcfg.schema.result import AssessmentResult, Comparison

from xcfg_analysis.cube.axes import axis_cells, definitions
from xcfg_analysis.cube.rows import CUBE, ArmCell, Cube, Row

Float = NDArray[np.float64]
Int = NDArray[np.int64]
Bool = NDArray[np.bool_]
ARMS = (Arm.TRAINING.value, Arm.ROLLOUT_PREFILL.value, Arm.ROLLOUT_DECODE.value, Arm.RECORDED.value)
SIDES = {Arm.TRAINING.value: Side.TRAINING.value}
"""Side of an arm; every other arm is the rollout's."""


def side_of(arm: str) -> str:
    """Return the side that scored an arm."""
    return SIDES.get(arm, Side.ROLLOUT.value)


def load_cube(folder: Path, *, plugins: Any = None, runtimes: str = "", cases: Collection[str] = ()) -> Cube:
    """Return the cube of `runs/<experiment>`; arguments and errors as for `Evidence.open`."""
    return Evidence.open(folder, plugins=plugins, runtimes=runtimes, cases=cases).cube


class Evidence:
    """A run that was opened: its cube, and the stored tokens of every row. Scores are read once each."""

    def __init__(self, run: Any, plugins: Any) -> None:
        """Keep what xcfg.open_run returned; nothing heavy is read yet."""
        self.run, self.plugins = run, plugins
        self._cases = {case.planned.case_id: case for case in run.cases}
        self._digests: dict[str, str] = {}
        self._times: dict[str, dict[str, float]] = {}
        self._edges: dict[tuple[str, str], tuple[Float, Bool]] = {}
        self._scores: dict[tuple[str, str], Float | None] = {}
        self._exact: dict[tuple[str, str], Float] = {}

    @classmethod
    def open(
        cls,
        folder: Path,
        *,
        plugins: Any = None,
        runtimes: str = "",
        experiment: str = "",
        cases: Collection[str] = (),
    ) -> Evidence:
        """Return the evidence in `runs/<experiment>`, of its newest revision.

        runtimes: `ROLLOUT/TRAINING` where several pairs ran it; pairs are never mixed. experiment: the digest of a
        revision. cases: ids; a revision that plans exactly these goes before newer ones.
        Raises UsageError when the folder holds no run, NothingSelectedError when no case ended,
        UnknownNameError for a pair that did not run, ArtifactError for a file that was altered.
        """
        run = xcfg.open_run(folder, runtimes=runtimes, experiment=experiment, cases=cases)
        return cls(run, plugins if plugins is not None else xcfg.load_plugins())

    # --- tokens -------------------------------------------------------------------------------------------

    @cached_property
    def sequence(self) -> Int:
        """int64 [T]: which sequence each token belongs to."""
        found: Int = self.run.rollout.sequence_index()
        return found

    @cached_property
    def active(self) -> Bool:
        """Bool [T]: the tokens that are compared."""
        found: Bool = self.run.rollout.active
        return found

    @property
    def sequences(self) -> int:
        """S."""
        return int(self.run.rollout.sequence_count)

    def difference(self, row: Row, edge: str) -> tuple[Float, Bool] | None:
        """Return (d, mask) of an edge of a row: first - second in float64 [T], and its tokens, bool [T].

        None where the row has no such figures. d is 0 outside the mask.
        """
        if edge not in row.edges or row.edges[edge].rms is None:
            return None
        place = (row.case_id, edge)
        if place not in self._edges:
            columns = self._cases[row.case_id].tokens()
            for name in row.edges:
                if f"{name}__mask" in columns:
                    self._edges[row.case_id, name] = _edge(columns, name)
        return self._edges.get(place)

    def scores(self, row: Row, arm: str) -> Float | None:
        """Return the log probabilities of an arm of a row, float64 [T], as stored; None where it has none."""
        if arm not in row.arms:
            return None
        place = (row.case_id, arm)
        if place not in self._scores:
            columns = self._cases[row.case_id].score(arm)
            self._scores[place] = None if columns is None else columns["selected_logprob"].astype(np.float64)
            if columns is not None and "exact_logprob" in columns:
                self._exact[place] = columns["exact_logprob"].astype(np.float64)
        return self._scores[place]

    def exact(self, row: Row, arm: str) -> Float | None:
        """Return the log probabilities in float64 of the logits that an arm formed, float64 [T]; None if not kept."""
        return self._exact.get((row.case_id, arm)) if self.scores(row, arm) is not None else None

    def columns(self, row: Row, arm: str) -> dict[str, NDArray[Any]] | None:
        """Return every column [T] of the score of an arm of a row; None where it has none. Not kept in memory."""
        found: dict[str, NDArray[Any]] | None = self._cases[row.case_id].score(arm) if arm in row.arms else None
        return found

    def assess_by(self, row: Row, ground: Row) -> AssessmentResult:
        """Return the assessment of a row by the smaller of its own precision budget and that of `ground`."""
        found: AssessmentResult = self.run.assess_by(self._cases[row.case_id], self._cases[ground.case_id])
        return found

    def planned(self, row: Row) -> ExperimentCase:
        """Return what a row was asked to be: its knobs, operators and options."""
        found: ExperimentCase = self._cases[row.case_id].planned
        return found

    # --- rows ---------------------------------------------------------------------------------------------

    @cached_property
    def cube(self) -> Cube:
        """The run as records."""
        cases = [case for case in self.run.cases if case.attempt is not None]
        ground = next((case for case in cases if case.planned.role == "case" and not case.planned.delta), None)
        rows = tuple(self._row(case, ground) for case in cases)
        paths = {key.partition("@")[0] for row in rows for key in row.axes}
        ref = self.run.experiment["contract"]
        return Cube(
            schema_version=CUBE,
            experiment_id=str(self.run.experiment["experiment_id"]),
            experiment=self.run.experiment,
            contract={name: str(ref[name]) for name in ("source", "version", "digest")},
            rollout=next((case.attempt.seal.rollout for case in cases if case.attempt is not None), ""),
            rows=rows,
            missing=tuple(case.planned.label for case in self.run.cases if case.attempt is None),
            definitions=definitions(paths, self.plugins.knobs()),
            runtimes=dict(self.run.runtimes),
            others=self.run.others,
            rejected=tuple(f"{case.planned.label}: {text}" for case in self.run.cases for text in case.newer),
        )

    def _row(self, case: Any, ground: Any) -> Row:
        seal, comparison, actual = case.attempt.seal, case.comparison, case.actual
        edges = {} if comparison is None else comparison.edges
        verdict = "" if comparison is None or comparison.verdict_edge not in edges else comparison.verdict_edge
        deciding = (Arm.TRAINING.value, case.requested.verdict_arm)
        reported = actual.applications if actual is not None else {}
        applications = [item for arm in deciding for item in reported.get(arm, ())]
        if case.failure is not None:
            applications += case.failure.applications
        arms = {arm: self._arm(case, arm) for arm in ARMS if arm in seal.scores}
        return Row(
            case_id=seal.case_id,
            attempt=seal.attempt_id,
            label=case.planned.label,
            role=case.planned.role,
            index=case.planned.index,
            delta=case.planned.delta,
            axes=axis_cells(case.planned, applications),
            runtimes=dict(case.requested.runtimes),
            devices={side_of(arm): _device(actual, arm) for arm in deciding if actual and arm in actual.provenance},
            status=seal.status,
            reason=_reason(case, comparison),
            verdict_edge=verdict,
            verdict_arm=case.requested.verdict_arm,
            threshold=None if comparison is None else comparison.threshold,
            edges=edges,
            assessment=None if comparison is None or not edges else comparison.assessment,
            arms=arms,
            seconds=self._seconds(arms),
            coupled=() if comparison is None else comparison.coupled_changes,
            undeclared=() if comparison is None else comparison.undeclared_differences,
            outside=_outside(case, ground),
        )

    def _arm(self, case: Any, arm: str) -> ArmCell:
        key = case.attempt.seal.scores[arm]
        facts = case.actual.provenance.get(arm, {}) if case.actual is not None else {}
        ranks = [item for item in facts.get("ranks", ()) if isinstance(item, dict)]
        living = [item["process"] for item in ranks if isinstance(item.get("process"), dict)]
        said = len(living) == len(ranks)
        mechanism = next((item for item in facts.get("mechanism", ()) if isinstance(item, dict)), {})
        return ArmCell(
            arm=arm,
            key=key,
            digest=self._digest(case, arm),
            dtype=case.actual.compute_dtypes.get(arm, "") if case.actual is not None else "",
            processes=tuple(int(item["pid"]) for item in living) if said else (),
            started=tuple(str(item["started"]) for item in living) if said else (),
            mechanism=mechanism,
            environment=codec.digest(facts.get("environment", {})),
            claims=_claims(ranks),
            gradient=gradient_of(facts.get("mechanism", ())),
        )

    def _digest(self, case: Any, arm: str) -> str:
        sha256 = case.score_sha256(arm)
        if sha256 not in self._digests:
            columns = case.score(arm)
            if columns is None:
                raise ArtifactError(f"{str(case.attempt.path)!r} names a score of {arm!r} and does not hold it")
            values = np.ascontiguousarray(columns["selected_logprob"][columns["active"].astype(np.bool_)])
            self._digests[sha256] = hashlib.sha256(values.dtype.str.encode() + values.tobytes()).hexdigest()
        return self._digests[sha256]

    def _seconds(self, arms: Mapping[str, ArmCell]) -> dict[str, float]:
        spent = [self._spent(key) for key in {cell.key for cell in arms.values()}]
        return {name: sum(item.get(name, 0.0) for item in spent) for name in ("build", "score")}

    def scored_at(self, row: Row) -> str:
        """Return when the newest score of a row was sealed, ISO 8601 in UTC; empty where nothing was scored."""
        stored = [self.run.side_score(cell.key) for cell in row.arms.values() if cell.arm != Arm.RECORDED.value]
        return max((item.seal.created for item in stored if item is not None), default="")

    def _spent(self, key: str) -> dict[str, float]:
        if key not in self._times:
            stored = self.run.side_score(key)
            self._times[key] = {} if stored is None else dict(stored.json("timeline.json").get("seconds", {}))
        return self._times[key]


def _edge(columns: Mapping[str, NDArray[Any]], name: str) -> tuple[Float, Bool]:
    mask = columns[f"{name}__mask"].astype(np.bool_)
    first, second = (columns[f"{name}__{part}"].astype(np.float64) for part in ("first", "second"))
    d = np.zeros(len(mask))
    d[mask] = first[mask] - second[mask]
    return d, mask


def _reason(case: Any, comparison: Comparison | None) -> str:
    if comparison is not None:
        return comparison.reason
    return case.failure.reason if case.failure is not None else ""


def _device(actual: Any, arm: str) -> str:
    environment = actual.provenance[arm].get("environment", {})
    accelerator = environment.get("accelerator:model_and_driver", "")
    return f"cuda: {accelerator}" if accelerator else f"cpu: {environment.get('processor', 'unknown')}"


def _claims(ranks: list[dict[str, Any]]) -> dict[str, bool]:
    """Return the switches among CLAIMS that every rank reports as on, wherever they stand in its provenance."""
    found = [_switches(item) for item in ranks]
    return {name: True for name in CLAIMS if found and all(item.get(name) is True for item in found)}


def _switches(node: Any) -> dict[str, Any]:
    if not isinstance(node, dict):
        return {}
    found = {name: node[name] for name in CLAIMS if isinstance(node.get(name), bool)}
    for value in node.values():
        found = _switches(value) | found
    return found


def _outside(case: Any, ground: Any) -> tuple[str, ...]:
    """Return what differs from the baseline beside the knobs: engine options, and facts of the scoring environment."""
    if ground is None or case is ground:
        return ()
    found = set()
    for side in (Side.ROLLOUT.value, Side.TRAINING.value):
        mine, its = (item.requested.runtime_options.get(side, {}) for item in (case, ground))
        found |= {f"runtime_options.{side}.{name}" for name in _differing(mine, its)}
    for arm in (Arm.TRAINING.value, case.requested.verdict_arm):
        if case.actual is None or ground.actual is None:
            break
        mine, its = (item.actual.provenance.get(arm, {}).get("environment") for item in (case, ground))
        if mine is not None and its is not None:
            found |= {f"environment.{side_of(arm)}.{name}" for name in _differing(mine, its)}
    return tuple(sorted(found))


def _differing(mine: Mapping[str, Any], its: Mapping[str, Any]) -> set[str]:
    return {name for name in {*mine, *its} if mine.get(name) != its.get(name)}
