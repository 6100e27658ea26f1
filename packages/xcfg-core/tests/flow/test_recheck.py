"""A comparison that was changed after the fact, with every seal made anew, does not recompute."""

from __future__ import annotations

import numpy as np
import pytest
from xcfg.artifacts.tensors import load_pt, save_pt
from xcfg.errors import ArtifactError
from xcfg.flow.recheck import decode, recheck_attempt
from xcfg.identity.rollout import make_rollout
from xcfg.schema.codec import evolve, plain
from xcfg.schema.names import Applied
from xcfg.schema.result import Comparison


def test_an_attempt_as_it_was_judged_holds(attempt, case):
    assert recheck_attempt(attempt(), case.rollout, case.contract) == []


def test_an_attempt_that_was_sealed_by_an_earlier_version_holds(attempt, case, golden):
    """Failing means that evidence people already have no longer verifies: keep what was computed, add beside it."""
    tensors = (golden("actual").parents[2] / "flow" / "golden" / "token_diffs.pt").read_bytes()
    old = attempt({"comparison.json": golden("comparison").read_bytes(), "token_diffs.pt": tensors})
    assert recheck_attempt(old, case.rollout, case.contract) == []


CHANGES = {
    "status": lambda c: c | {"status": "MISMATCH"},
    "reason": lambda c: c | {"reason": "fine"},
    "threshold": lambda c: c | {"threshold": 1.0},
    "verdict_arm": lambda c: c | {"verdict_arm": "rollout_decode"},
    "contract": lambda c: c | {"contract": {**c["contract"], "digest": "0" * 64}},
    "assessment": lambda c: c | {"assessment": {**c["assessment"], "assessment": "EXPLAINED_BY_PRECISION"}},
    "edges": lambda c: c | {"edges": {}},
    "coupled_changes": lambda c: c | {"coupled_changes": [{"path": "x"}]},
    "identity_errors": lambda c: c | {"identity_errors": ["none"]},
    "replica_disagreements": lambda c: c | {"replica_disagreements": [{"rank": 1}]},
    "edges.training_vs_rollout.max_abs": lambda c: edge(c, max_abs=5e-324),
    "edges.training_vs_rollout.active_tokens": lambda c: edge(c, active_tokens=7),
    "edges.training_vs_rollout.mismatches": lambda c: edge(c, mismatches=1),
    "edges.training_vs_rollout.comparable": lambda c: edge(c, comparable=False),
    "edges.training_vs_rollout.compute_dtype": lambda c: edge(c, compute_dtype="bfloat16"),
    "edges.training_vs_rollout.rms": lambda c: edge(c, rms=1e-9),
}


def edge(document, **changes):
    edges = document["edges"]
    return document | {"edges": {**edges, "training_vs_rollout": {**edges["training_vs_rollout"], **changes}}}


@pytest.mark.parametrize("field", CHANGES)
def test_a_changed_comparison_is_found_and_the_field_named(field, attempt, case, judged):
    altered = attempt({"comparison.json": CHANGES[field](plain(judged().comparison))})
    faults = recheck_attempt(altered, case.rollout, case.contract)
    assert faults and all(text.startswith(field) for text in faults)


def test_every_column_of_the_token_table_is_recomputed(attempt, case):
    columns, meta = load_pt(attempt().path / "token_diffs.pt")
    assert len(columns) == 10  # five parts of two edges
    for name, array in columns.items():
        changed = array.copy()
        where = int(np.flatnonzero(case.rollout.active)[0])
        changed[where] = not changed[where] if array.dtype == np.bool_ else changed[where] + 1
        altered = attempt({"token_diffs.pt": save_pt({**columns, name: changed}, meta)})
        assert recheck_attempt(altered, case.rollout, case.contract) == [
            f"token_diffs.pt: {name} is not what the scores give"
        ]


def test_a_column_too_many_or_too_few_is_found(attempt, case):
    columns, _ = load_pt(attempt().path / "token_diffs.pt")
    name = next(iter(columns))
    for changed in ({**columns, "more": columns[name]}, {k: v for k, v in columns.items() if k != name}):
        (fault,) = recheck_attempt(attempt({"token_diffs.pt": save_pt(changed, {})}), case.rollout, case.contract)
        assert fault.startswith("token_diffs.pt holds other columns")


def test_a_changed_score_is_found_in_figures_and_tokens(attempt, case):
    columns, _ = load_pt(attempt().path / "score_training.pt")
    values = columns["selected_logprob"].copy()
    values[4] += 1
    altered = attempt({"score_training.pt": save_pt({**columns, "selected_logprob": values}, {})})
    faults = recheck_attempt(altered, case.rollout, case.contract)
    assert any(text.startswith("edges.training_vs_rollout.") for text in faults)
    assert "token_diffs.pt: training_vs_rollout__first is not what the scores give" in faults


def test_a_judgement_without_numbers_may_hold_no_tokens(attempt, case, setting):
    tokens = (attempt().path / "token_diffs.pt").read_bytes()
    setting("training", "batch.size", status=Applied.FALLBACK)
    refused = attempt()
    assert "token_diffs.pt" not in refused.seal.files
    assert recheck_attempt(refused, case.rollout, case.contract) == []
    faults = recheck_attempt(attempt({"token_diffs.pt": tokens}), case.rollout, case.contract)
    assert faults == ["token_diffs.pt is there and no numbers are due"]


def test_evidence_that_was_taken_back_is_found(attempt, case, setting, judged):
    passed = plain(judged().comparison)
    setting("training", "batch.size", status=Applied.FALLBACK)
    faults = recheck_attempt(attempt({"comparison.json": passed}), case.rollout, case.contract)
    assert any(text.startswith("status: 'PASS', 'FALLBACK'") for text in faults)


def test_an_attestation_that_was_changed_is_found(attempt, case, judged):
    passed = plain(judged().comparison)
    reports = case.identity.reports
    changed = tuple(evolve(item, fold_after="00000001") for item in reports["training"])
    case.identity = evolve(case.identity, reports={**reports, "training": changed})
    faults = recheck_attempt(attempt({"comparison.json": passed}), case.rollout, case.contract)
    assert any("INVALID_IDENTITY" in text for text in faults)


def test_another_rollout_is_refused_before_anything_is_recomputed(attempt, case):
    tensors = {**case.rollout.tensors, "position_ids": case.rollout.tensors["position_ids"] + 1}
    other = make_rollout(tensors, checkpoint=case.rollout.manifest.checkpoint)
    (fault,) = recheck_attempt(attempt(), other, case.contract)
    assert case.rollout.sha256[:16] in fault and other.sha256[:16] in fault


def test_a_wider_contract_is_found(attempt, case, judged):
    sealed = attempt({"comparison.json": plain(judged().comparison)})
    logprob = case.contract.accuracy.default["logprob"]
    wide = evolve(logprob["float32"], atol=logprob["float32"].atol * 2)
    accuracy = evolve(
        case.contract.accuracy, default={**case.contract.accuracy.default, "logprob": {**logprob, "float32": wide}}
    )
    faults = recheck_attempt(sealed, case.rollout, evolve(case.contract, accuracy=accuracy))
    assert any(text.startswith("threshold: ") for text in faults)


@pytest.mark.parametrize(
    "name", ["comparison.json", "requested.json", "actual.json", "identity.json", "score_training.pt", "token_diffs.pt"]
)
def test_a_payload_that_is_missing_altered_or_malformed_is_an_artifact_error(name, attempt, case):
    with pytest.raises(ArtifactError):
        recheck_attempt(attempt({name: None}), case.rollout, case.contract)
    with pytest.raises(ArtifactError):
        recheck_attempt(attempt({name: b'{"schema_version": "x"}'}), case.rollout, case.contract)
    whole = attempt()
    data = (whole.path / name).read_bytes()
    (whole.path / name).write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(ArtifactError):
        recheck_attempt(whole, case.rollout, case.contract)


def test_decode_names_the_file_and_the_fault(attempt):
    with pytest.raises(ArtifactError, match=r"comparison\.json"):
        decode(attempt({"comparison.json": {"status": 3}}), "comparison.json", Comparison)
