"""`xcfg schema`: the JSON Schemas of every document that xcfg reads, writes or prints."""

from __future__ import annotations

from typing import Any

import click

from xcfg.cli._output import Session, common_options, emit, pass_session
from xcfg.errors import UnknownNameError, did_you_mean
from xcfg.schema import (
    analysis,
    attempt,
    codec,
    cube,
    doctor,
    experiment,
    gate,
    identity,
    kept,
    matrix,
    plan,
    result,
    summary,
    worker,
)
from xcfg.schema._base import Record

SCHEMAS = "xcfg.schemas.v1"
DIALECT = "https://json-schema.org/draft/2020-12/schema"


class SchemasSummary(Record):
    """`xcfg schema --json` without a name."""

    schema_version: str
    schemas: dict[str, str]


class ExperimentFile(experiment.ExperimentV2):
    """An experiment file, v2; `identity` is the inline matrices or a frozen rollout."""

    identity: dict[str, Any]
    runtime_options: experiment.RuntimeOptionsInput = experiment.RuntimeOptionsInput()  # type: ignore[assignment]


def documents() -> dict[str, tuple[str, Any]]:
    """Return name -> (schema_version, Struct type); the version is empty where a document carries none."""
    from xcfg.cli.cmd_knobs import KNOBS, KnobsSummary
    from xcfg.cli.cmd_ops import OPERATORS, RESOLUTION, OperatorsSummary, ResolutionSummary
    from xcfg.cli.cmd_plugins import PLUGIN, PluginDetail

    return {
        "plugins": (summary.PLUGINS, summary.PluginsSummary),
        "plugin": (PLUGIN, PluginDetail),
        "knobs": (KNOBS, KnobsSummary),
        "operators": (OPERATORS, OperatorsSummary),
        "operator_resolution": (RESOLUTION, ResolutionSummary),
        "plan": (plan.PLAN_SCHEMA, summary.PlanSummary),
        "run_summary": (summary.RUN_SUMMARY, summary.RunSummary),
        "analysis": (analysis.ANALYSIS, analysis.Analysis),
        "cube": (cube.CUBE, cube.Cube),
        "pivot": (cube.PIVOT, cube.Pivot),
        "gate": (gate.GATE, gate.GateReport),
        "gate_baseline": (gate.BASELINE, gate.GateBaseline),
        "doctor": (doctor.DOCTOR, doctor.DoctorSummary),
        "matrix": (matrix.MATRIX, matrix.MatrixReport),
        "matrix_manifest": (matrix.MANIFEST, matrix.MatrixManifest),
        "verify": (summary.VERIFY, summary.VerifySummary),
        "error": (summary.ERROR, summary.ErrorSummary),
        "schemas": (SCHEMAS, SchemasSummary),
        "experiment.v1": (experiment.V1, experiment.ExperimentV1),
        "experiment.v2": (experiment.V2, ExperimentFile),
        "manifest": (identity.ROLLOUT_SCHEMA, identity.RolloutManifest),
        "comparison": (result.COMPARISON_SCHEMA, result.Comparison),
        "score_seal": (attempt.SCORE_SEAL, attempt.ScoreSeal),
        "case_seal": (attempt.CASE_SEAL, attempt.CaseSeal),
        "kept": (kept.KEPT, kept.KeptComparison),
        "worker.construct": ("", worker.WorkerSpec),
        "worker.ready": ("", worker.BuildReport),
        "worker.request": ("", worker.ScoreRequest),
        "worker.done": ("", worker.ScoreReport),
    }


@click.command()
@click.argument("name", required=False)
@common_options
@pass_session
def schema(session: Session, name: str | None) -> None:
    """Print the JSON Schema of NAME; without NAME, list the names."""
    known = documents()
    if name is None:
        versions = {short: version for short, (version, _) in known.items()}
        emit(session, SchemasSummary(schema_version=SCHEMAS, schemas=versions), _listing)
        return
    short = {version: key for key, (version, _) in known.items() if version}.get(name, name)
    if short not in known:
        raise UnknownNameError(f"no document is called {name!r}", hint=did_you_mean(name, known))
    emit(session, json_schema(*known[short]), lambda document: codec.pretty_json(document).decode())


def json_schema(version: str, kind: Any) -> dict[str, Any]:
    """Return the JSON Schema of one document, with its `schema_version` pinned to `version`."""
    document = codec.json_schema(kind)
    if kind is ExperimentFile:  # msgspec has no union of two record types without a tag
        shapes = [codec.json_schema(shape) for shape in (experiment.InlineIdentity, experiment.FrozenIdentity)]
        for shape in shapes:
            document["$defs"].update(shape["$defs"])
        either = {"anyOf": [{"$ref": shape["$ref"]} for shape in shapes]}
        document["$defs"][kind.__name__]["properties"]["identity"] = either
    definition = document["$defs"][kind.__name__] if "$ref" in document else document
    if version:
        definition["properties"]["schema_version"] = {"const": version}
    return {"$schema": DIALECT, "title": version or kind.__name__, **document}


def _listing(found: SchemasSummary) -> str:
    return "\n".join(f"{name:20}  {version}".rstrip() for name, version in found.schemas.items())
