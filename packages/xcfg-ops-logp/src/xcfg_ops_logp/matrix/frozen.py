"""The one run whose logits a matrix replays: an experiment's baseline, with both sides' logits kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import xcfg
from xcfg.errors import ConfigError, InterruptedRunError
from xcfg.plugin.protocols import MatrixRequest
from xcfg.schema import codec
from xcfg.schema.names import Status
from xcfg.schema.operators import OperatorBackendDescriptor

from xcfg_ops_logp.matrix.replay import Phase, phase_of
from xcfg_ops_logp.matrix.rows import CAPTURE, EDGES

V2 = "cross_config.experiment_config.v2"
REPLACED = ("logp", "logprob.", "operators.selected_logprob")
"""What begins so chooses the operator, or sets its options; the matrix puts its own there."""
NUMBERS = (Status.PASS.value, Status.MISMATCH.value)


@dataclass
class Frozen:
    """What the one capturing run left: phases by arm, and why there are none.

    threshold: of the contract. gradient: what it prints for float32 gradients; it decides nothing.
    """

    status: str
    reason: str = ""
    threshold: float | None = None
    gradient: float = float("inf")
    phases: dict[str, Phase] = field(default_factory=dict)
    reports: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    selected: Any = None
    missing: Mapping[str, str] = field(default_factory=dict)


def captured(
    request: MatrixRequest, backend: OperatorBackendDescriptor, options: Mapping[str, Any], scratch: Path
) -> Frozen:
    """Run the baseline of the experiment once, with both sides' logits kept in `scratch`.

    Raises InterruptedRunError where the run was interrupted: nothing of it is kept.
    """
    folders = {side: scratch / side for side in ("training", "rollout")}
    choices = {}
    for side, folder in folders.items():
        folder.mkdir()
        kept = {"folder": str(folder.absolute()), "factory": backend.factory, "options": _json(options)}
        choices[side] = {"backend": CAPTURE.backend_id, "options": kept}
    file = scratch / "experiment.json"
    file.write_bytes(codec.pretty_json(_experiment(request.file, choices)))
    given = {**request.options, "output_root": scratch / "runs", "resume": False}
    summary = xcfg.run(file, plugins=request.plugins, **given)
    if summary.exit_code == InterruptedRunError.exit_code:
        raise InterruptedRunError(
            "interrupted while logits were captured", hint="Nothing of a matrix is kept; the same command starts anew."
        )
    case = summary.cases[0]
    if case.status not in NUMBERS:
        return Frozen(case.status, case.reason)
    stored = xcfg.open_run(scratch / "runs" / summary.experiment_id)
    found = stored.cases[0]
    frozen = Frozen(
        case.status,
        threshold=case.threshold,
        gradient=_gradient_limit(stored.contract),
        reports=dict(found.identity.reports) if found.identity is not None else {},
        selected=stored.rollout.tensors["selected_token_ids"],
        missing=case.missing_arms,
    )
    for arm in sorted({arm for edge in EDGES for arm in edge}):
        columns = found.score(arm)
        if columns is not None:
            place = folders["training" if arm == "training" else "rollout"]
            frozen.phases[arm] = phase_of(arm, place, columns["selected_logprob"], stored.rollout.active)
    return frozen


def _gradient_limit(contract: Any) -> float:
    return float(contract.accuracy.gradients["logprob"]["float32"].atol)


def _json(options: Mapping[str, Any]) -> str:
    return codec.canonical_json(dict(options)).decode()


def _experiment(file: Path, choices: Mapping[str, Any]) -> dict[str, Any]:
    """Return the experiment of `file` reduced to its baseline, with `choices` as its operators; paths absolute."""
    document = codec.read_strict(file)
    if not isinstance(document, dict) or document.get("schema_version") != V2:
        raise ConfigError(
            "a matrix needs a frozen rollout", source=str(file), path="$.schema_version", hint=f"Use a {V2} file."
        )
    kept = ("schema_version", "scenario_id", "identity", "baseline", "fixed", "runtime_options", "scenario")
    found = {name: document[name] for name in kept if name in document}
    for table in ("baseline", "fixed"):
        if isinstance(found.get(table), dict):
            found[table] = {name: value for name, value in found[table].items() if not name.startswith(REPLACED)}
    others = {name: value for name, value in document.get("operators", {}).items() if name != CAPTURE.operation}
    identity = found.get("identity")
    if isinstance(identity, dict) and isinstance(identity.get("rollout"), dict):
        here = file.resolve().parent
        rollout = {**identity["rollout"], "path": str(here / str(identity["rollout"].get("path", "")))}
        found["identity"] = {**identity, "rollout": rollout}
        checkpoint = identity.get("checkpoint")
        if isinstance(checkpoint, str) and not checkpoint.startswith("builtin:"):
            found["identity"]["checkpoint"] = str(here / checkpoint)
    return {
        **found,
        "experiment_id": "matrix-logp",
        "operators": {**others, CAPTURE.operation: dict(choices)},
        "interventions": [],
        "controls": {"reference": False},
    }
