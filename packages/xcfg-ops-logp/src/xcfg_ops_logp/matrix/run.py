"""Run the matrix `logp`: capture the logits of every arm once, then gates, controls and rows on them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from xcfg.errors import NotComparableError, UnknownNameError, did_you_mean
from xcfg.plugin.operators import load_factory
from xcfg.plugin.protocols import MatrixRequest
from xcfg.schema.matrix import MatrixRow, MatrixRowDefinition
from xcfg.schema.names import Status
from xcfg.schema.operators import OperatorBackendDescriptor

from xcfg_ops_logp.matrix.frozen import NUMBERS, Frozen, captured
from xcfg_ops_logp.matrix.guarded import Guarded
from xcfg_ops_logp.matrix.measure import Measured, Operator, change, invariance, replayed
from xcfg_ops_logp.matrix.ownership import Held, ownership
from xcfg_ops_logp.matrix.rows import CAPTURE, EDGES, MODULE, changed
from xcfg_ops_logp.matrix.selection import selection
from xcfg_ops_logp.reference import selected_logprob

REFERENCE = "xcfg.reference_logp"
CLAIMS = {"L0": "run-to-run", "LC0": "batch-invariant"}
"""Row -> the property that it holds a backend to which declares it."""


def run(request: MatrixRequest) -> tuple[MatrixRow, ...]:
    """Return the rows of both edges; implements MatrixRunner. Raises XcfgError where nothing could be captured."""
    backend = _backend(request)
    options = {item.name: item.default for item in backend.options if item.default is not None}
    operator = Guarded(load_factory(backend.factory)(**options), backend.backend_id)
    with request.scratch() as scratch:
        frozen = captured(request, backend, options, scratch)
        return _Matrix(request, backend, operator, frozen).rows()


def _backend(request: MatrixRequest) -> OperatorBackendDescriptor:
    offered: list[OperatorBackendDescriptor] = [item.record for item in request.plugins.operator_backends()]
    known = {name: item for item in offered if item.operation == CAPTURE.operation for name in _names(item)}
    wanted = request.backend or REFERENCE
    if wanted not in known or known[wanted].diagnostic_only or known[wanted].runtimes:
        usable = [item.backend_id for item in known.values() if not item.diagnostic_only and not item.runtimes]
        raise UnknownNameError(
            f"no backend {wanted!r} of {CAPTURE.operation} can be replayed outside its engine",
            hint=did_you_mean(wanted, dict.fromkeys(usable)),
        )
    return known[wanted]


def _names(item: OperatorBackendDescriptor) -> tuple[str, ...]:
    return (item.backend_id, *item.aliases)


@dataclass
class _Matrix:
    """Turns one replay into rows. failed: why no row may run."""

    request: MatrixRequest
    backend: OperatorBackendDescriptor
    operator: Operator
    frozen: Frozen
    failed: str = ""
    unmet: dict[str, Held] = field(default_factory=dict)
    values: dict[str, Measured] = field(default_factory=dict)
    moves: dict[str, dict[str, float]] = field(default_factory=dict)

    def rows(self) -> tuple[MatrixRow, ...]:
        """Gates of both edges, then baselines and controls of both, then rows: none runs beside a failed control."""
        found: list[MatrixRow] = []
        for roles in (("gate",), ("baseline", "control"), ("row", "probe")):
            for item in self.request.rows:
                if item.role in roles:
                    for edge in EDGES:
                        found += self._row(item, edge)
        return tuple(found)

    def _row(self, item: MatrixRowDefinition, edge: tuple[str, str]) -> list[MatrixRow]:
        name = "_vs_".join(edge)
        if self.frozen.status not in NUMBERS:
            return [self._blank(item, name, self.frozen.status, self.frozen.reason)]
        absent = [arm for arm in edge if arm not in self.frozen.phases]
        if absent:
            why = self.frozen.missing.get(absent[0], f"the runtime has no arm {absent[0]}")
            return [self._blank(item, name, Status.UNSUPPORTED.value, why)]
        if item.role == "gate":
            return [self._gate(item, edge, name)]
        if name not in self.unmet:  # a selection of rows may leave the gates out; they are held all the same
            self._hold(edge, name)
        status, why = self.unmet[name]
        if status != Status.PASS.value:
            return [self._blank(item, name, status, why)]
        spoilt = self._spoilt(edge)
        if spoilt:
            return [self._blank(item, name, Status.INVALID_ARTIFACT.value, spoilt)]
        if item.role in ("baseline", "control"):
            return [self._control(item, arm, name) for arm in edge]
        if not self.failed:
            self._check_controls()
        if self.failed:
            return [self._blank(item, name, Status.CONTROL_FAILED.value, self.failed)]
        return [self._change(item, arm, edge, name) for arm in edge]

    def _spoilt(self, edge: tuple[str, str]) -> str:
        """Return why an end has no log probabilities that could be compared, as a run would say it."""
        for arm in edge:
            measured = self._measured(arm)
            if measured.broken:
                return f"{measured.broken} of {len(measured.value)} active log probabilities of {arm} are not finite"
        return ""

    def _hold(self, edge: tuple[str, str], name: str) -> dict[str, tuple[Held, dict[str, Any]]]:
        """Return gate -> (what came of it, what it saw), and note the first that is not met."""
        pair = [self.frozen.phases[arm] for arm in edge]
        found = {
            "L1": ownership(pair, [self.frozen.reports.get(arm, ()) for arm in edge]),
            "L2": (selection(pair, self.frozen.selected), {}),
        }
        broken = [held for held, _ in found.values() if held[0] != Status.PASS.value]
        self.unmet[name] = broken[0] if broken else (Status.PASS.value, "")
        return found

    def _gate(self, item: MatrixRowDefinition, edge: tuple[str, str], name: str) -> MatrixRow:
        (status, why), seen = self._hold(edge, name)[item.row]
        met = status == Status.PASS.value
        return self._made(item, name, status, {}, comparable=met, reason=why, program=seen)

    def _blank(self, item: MatrixRowDefinition, edge: str, status: str, reason: str) -> MatrixRow:
        return self._made(item, edge, status, {}, comparable=False, reason=reason)

    def _measured(self, arm: str) -> Measured:
        if arm not in self.values:
            exact = None if self.backend.backend_id == REFERENCE else selected_logprob
            self.values[arm] = replayed(self.frozen.phases[arm], self.operator, exact)
        return self.values[arm]

    def _moves(self, arm: str) -> dict[str, float]:
        if arm not in self.moves:
            self.moves[arm] = invariance(self.frozen.phases[arm], self.operator, self._measured(arm))
        return self.moves[arm]

    def _check_controls(self) -> None:
        """A selection of rows may leave controls out; what the backend claims is held all the same."""
        for arm in self.frozen.phases:
            if self._claimed("L0") and self._measured(arm).unequal:
                self.failed = f"the replay of {arm} is not what the worker computed"
            elif self._claimed("LC0") and self._moves(arm)["unequal"]:
                self.failed = f"{self.backend.backend_id} depends on the batch in {arm}"

    def _claimed(self, row: str) -> bool:
        """Whether the backend declares what a control asks for; of another one the control is a measurement."""
        return CLAIMS[row] in self.backend.properties

    def _control(self, item: MatrixRowDefinition, arm: str, edge: str) -> MatrixRow:
        base = self._measured(arm)
        metrics = base.replay if item.row == "L0" else self._moves(arm)
        zero, status, reason = not metrics["unequal"], Status.PASS.value, ""
        if not zero:
            word = f"declares {CLAIMS[item.row]}" if self._claimed(item.row) else "is measured here"
            reason = f"{self.backend.backend_id} {word}, and is not bitwise equal in {arm}"
        if not zero and self._claimed(item.row):
            status = Status.CONTROL_FAILED.value
            self.failed = f"{item.row} of {arm} is not bitwise zero"
        away = metrics.get("reference_max_abs", 0.0)
        if self.frozen.threshold is not None and away > self.frozen.threshold:
            status = Status.MISMATCH.value
            reason = f"{self.backend.backend_id} lies {away:.4g} nats from {REFERENCE} on the logits of {arm}"
        return self._made(item, edge, status, metrics, phase=arm, reason=reason)

    def _change(self, item: MatrixRowDefinition, arm: str, edge: tuple[str, str], name: str) -> MatrixRow:
        phase = self.frozen.phases[arm]
        found = changed(item.probe, phase.width)
        if found is None:
            raise NotComparableError(f"the row {item.row!r} has no probe {item.probe!r}")
        ends = [self._measured(end).value for end in edge]
        metrics, program = change(phase, *found, ends, first=arm == edge[0], training=arm == "training")
        idle = [name for name, value in program["factor"].items() if program["ran"].get(name) != value]
        if idle:
            why = f"{idle[0]} changes nothing over {phase.width} entries"
            return self._blank(item, name, Status.UNOBSERVABLE.value, why)
        bound = program["contract"]
        if bound["status"]:
            why = f"more than the factor differs between the two ends: {bound['refused']}"
            return self._blank(item, name, bound["status"], why)
        limit = self.frozen.threshold
        apart = limit is not None and metrics["out_max_abs"] > limit
        status = Status.MISMATCH.value if apart else Status.PASS.value
        steep = metrics.get("dlogits_max_abs", 0.0)
        told = f"a gradient moves by {steep:.3g}; the contract prints {self.frozen.gradient:.3g}, which decides nothing"
        reason = told if steep > self.frozen.gradient else ""
        return self._made(item, name, status, metrics, phase=arm, program=program, reason=reason)

    def _made(
        self,
        item: MatrixRowDefinition,
        edge: str,
        status: str,
        metrics: dict[str, float],
        *,
        comparable: bool = True,
        phase: str = "",
        reason: str = "",
        program: dict[str, Any] | None = None,
    ) -> MatrixRow:
        odd = [name for name, value in metrics.items() if not math.isfinite(value)]
        if odd:
            return self._blank(item, edge, Status.INVALID_ARTIFACT.value, f"{odd[0]} of {phase} is not finite")
        return MatrixRow(
            module=MODULE,
            row=item.row,
            role=item.role,
            probe=item.probe,
            edge=edge,
            status=status,
            comparable=comparable,
            metrics=metrics,
            phase=phase,
            reason=reason,
            program=program or {},
        )
