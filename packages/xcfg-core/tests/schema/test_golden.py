"""What earlier versions stored and printed still decodes, and nothing of it is lost on the way.

The documents come from one real run: `xcfg run experiment_v1.json --runtime cpu-smoke --allow-smoke-operators`,
`xcfg plan`, `xcfg plugins list`, `xcfg verify` and a file that does not exist, all with `--json`; `kept` from
`xcfg compare --redact --output` of a dump with two samples. A document is
replaced only together with its schema_version; a new field with a default needs no new document.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from xcfg.errors import ConfigError
from xcfg.flow import documents
from xcfg.schema import attempt, experiment, identity, kept, plan, result, summary, worker
from xcfg.schema._base import Input
from xcfg.schema.codec import convert, decode_json, digest, plain, read_strict

GOLDEN = Path(__file__).parent / "golden"
KINDS = {
    "actual": (documents.Actual, documents.ACTUAL),
    "case": (plan.ExperimentCase, None),
    "case_seal": (attempt.CaseSeal, attempt.CASE_SEAL),
    "comparison": (result.Comparison, result.COMPARISON_SCHEMA),
    "construct": (worker.WorkerSpec, None),
    "error": (summary.ErrorSummary, summary.ERROR),
    "experiment_record": (attempt.ExperimentRecord, attempt.EXPERIMENT_RECORD),
    "experiment_v1": (experiment.ExperimentV1, experiment.V1),
    "experiment_v2": (experiment.ExperimentV2, experiment.V2),
    "failure": (documents.Failure, documents.FAILURE),
    "identity": (documents.IdentityDocument, documents.IDENTITY),
    "kept": (kept.KeptComparison, kept.KEPT),
    "manifest": (identity.RolloutManifest, identity.ROLLOUT_SCHEMA),
    "materialized": (documents.Materialized, documents.MATERIALIZED),
    "plan_summary": (summary.PlanSummary, plan.PLAN_SCHEMA),
    "plugins": (summary.PluginsSummary, summary.PLUGINS),
    "request": (worker.ScoreRequest, None),
    "requested": (documents.Requested, documents.REQUESTED),
    "run_summary": (summary.RunSummary, summary.RUN_SUMMARY),
    "score_seal": (attempt.ScoreSeal, attempt.SCORE_SEAL),
    "verify": (summary.VerifySummary, summary.VERIFY),
}


def contains(whole, part, path="$"):
    """Say where `part` is not in `whole`: every stored value must still be there, under its name."""
    if isinstance(part, dict):
        return [line for key in part for line in contains(whole.get(key, "gone"), part[key], f"{path}.{key}")]
    if isinstance(part, list):
        if len(whole) != len(part):
            return [f"{path}: {len(part)} entries became {len(whole)}"]
        pairs = enumerate(zip(whole, part, strict=True))
        return [line for index, (a, b) in pairs for line in contains(a, b, f"{path}[{index}]")]
    return [] if type(whole) is type(part) and whole == part else [f"{path}: {part!r} became {whole!r}"]


def test_every_document_is_tried():
    assert {file.stem for file in GOLDEN.iterdir()} == set(KINDS)


@pytest.mark.parametrize("name", KINDS)
def test_a_stored_document_decodes_whole(name):
    kind, schema = KINDS[name]
    data = (GOLDEN / f"{name}.json").read_bytes()
    stored = json.loads(data)
    value = decode_json(data, kind, source=name)
    assert contains(plain(value), stored) == []
    if schema is not None:
        assert value.schema_version == schema


@pytest.mark.parametrize("name", KINDS)
def test_a_field_of_a_later_version_is_ignored_in_a_record_and_refused_in_an_input(name):
    kind, _ = KINDS[name]
    stored = read_strict(GOLDEN / f"{name}.json")
    if issubclass(kind, Input):
        with pytest.raises(ConfigError, match="invented_later"):
            convert(stored | {"invented_later": 1}, kind)
    else:
        assert convert(stored | {"invented_later": 1}, kind) == convert(stored, kind)


@pytest.mark.parametrize("name", ["case_seal", "score_seal", "experiment_record", "kept"])
def test_a_seal_is_the_digest_of_the_rest(name):
    stored = read_strict(GOLDEN / f"{name}.json")
    seal = stored.pop("seal")
    assert digest(stored) == seal
    for field in stored:
        assert digest({key: value for key, value in stored.items() if key != field}) != seal


def test_the_documents_name_each_other():
    seal = decode_json((GOLDEN / "case_seal.json").read_bytes(), attempt.CaseSeal)
    requested = decode_json((GOLDEN / "requested.json").read_bytes(), documents.Requested)
    proof = decode_json((GOLDEN / "identity.json").read_bytes(), documents.IdentityDocument)
    assert seal.case_id == requested.case_id
    assert seal.rollout == proof.rollout
    assert seal.status == decode_json((GOLDEN / "comparison.json").read_bytes(), result.Comparison).status == "PASS"
