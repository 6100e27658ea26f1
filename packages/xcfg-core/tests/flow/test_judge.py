"""The judgement of a real attempt, changed one fact at a time: each change must end in its own status."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from xcfg.errors import ArtifactError
from xcfg.flow.documents import KnobFacts
from xcfg.flow.judge import judge
from xcfg.schema.codec import evolve
from xcfg.schema.names import Applied, Tier

ENDS = {
    "error": "WORKER_FAILED",
    "unsupported": "UNSUPPORTED",
    "fallback": "FALLBACK",
    "unobservable": "UNOBSERVABLE",
}


def facts(case, path, **changes):
    definitions = {**case.requested.definitions, path: evolve(case.requested.definitions[path], **changes)}
    case.requested = evolve(case.requested, definitions=definitions)


def without_numbers(judgement, status):
    comparison = judgement.comparison
    assert comparison.status == status
    assert (comparison.edges, comparison.threshold, judgement.token_diffs) == ({}, None, {})
    assert comparison.assessment.assessment == "NO_REFERENCE"
    return comparison


def with_numbers(judgement, status):
    comparison = judgement.comparison
    assert comparison.status == status
    assert comparison.edges["training_vs_rollout"].active_tokens == 6
    assert judgement.token_diffs
    return comparison


def test_the_attempt_as_it_stands_passes_with_its_six_tokens(judged, rollout, contract):
    comparison = with_numbers(judged(), "PASS")
    edge = comparison.edges["training_vs_rollout"]
    assert (edge.mismatches, edge.max_abs, edge.mean_abs, comparison.reason) == (0, 0.0, 0.0, "")
    assert comparison.threshold == contract.threshold("float32", "float32")
    assert (comparison.verdict_edge, comparison.verdict_arm) == ("training_vs_rollout", "rollout_prefill")
    assert comparison.contract["digest"] == contract.digest
    diffs = judged().token_diffs
    assert {name.partition(".")[2] for name in diffs} == {"first", "second", "mask", "mismatch", "difference"}
    assert diffs["training_vs_rollout.mask"].tolist() == rollout.active.tolist()


# --- settings -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", ENDS)
@pytest.mark.parametrize("arm", ["training", "rollout_prefill"])
def test_a_strict_case_whose_setting_did_not_hold_has_no_number(arm, status, fault, judged):
    fault(arm, "logp.backend", status)
    comparison = without_numbers(judged(), ENDS[status])
    side = "training" if arm == "training" else "rollout"
    assert comparison.reason == f"logp.backend on {side}: {status} it was"


@pytest.mark.parametrize("status", ENDS)
def test_a_lenient_case_has_numbers_and_is_still_no_pass(status, fault, judged, case):
    case.requested = evolve(case.requested, strict=False)
    fault("training", "batch.size", status)
    comparison = with_numbers(judged(), ENDS[status])
    assert comparison.edges["training_vs_rollout"].status == "PASS"
    assert comparison.reason == f"batch.size on training: {status} it was"


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize(("first", "second"), list(itertools.permutations(ENDS, 2)))
def test_the_gravest_fault_of_both_sides_decides(first, second, strict, fault, judged, case):
    case.requested = evolve(case.requested, strict=strict)
    fault("training", "training.sharding", first)
    fault("rollout_prefill", "rollout.dtype", second)
    worst = min((first, second), key=list(ENDS).index)
    assert judged().comparison.status == ENDS[worst]
    path = "training.sharding" if worst == first else "rollout.dtype"
    assert judged().comparison.reason.startswith(path)


@pytest.mark.parametrize("status", ENDS)
def test_a_setting_that_is_not_critical_ends_nothing(status, fault, judged, case):
    facts(case, "batch.size", critical=False)
    fault("training", "batch.size", status)
    with_numbers(judged(), "PASS")


def test_a_missing_reason_is_replaced_by_the_status(setting, judged):
    setting("training", "batch.size", status=Applied.FALLBACK, reason="")
    assert judged().comparison.reason == "batch.size on training: fallback"


def beside(case, arm="rollout_decode"):
    """Give the case a third arm, with the scores and reports of prefill: no decode gate lets that pass."""
    case.scores[arm] = case.scores["rollout_prefill"]
    applications, builds, reports = case.actual.applications, case.identity.builds, case.identity.reports
    case.actual = evolve(
        case.actual,
        applications={**applications, arm: applications["rollout_prefill"]},
        baseline={**case.actual.baseline, arm: applications["rollout_prefill"]},
        compute_dtypes={**case.actual.compute_dtypes, arm: "float32"},
    )
    case.identity = evolve(
        case.identity,
        builds={**builds, arm: builds["rollout_prefill"]},
        reports={**reports, arm: reports["rollout_prefill"]},
    )


def test_an_arm_beside_the_verdict_costs_its_own_edges_and_no_more(judged, case, fault):
    beside(case)
    comparison = with_numbers(judged(), "PASS")
    assert set(comparison.missing_arms) == {"rollout_decode"}
    assert "rollout_decode: " in comparison.missing_arms["rollout_decode"]
    assert not [edge for edge in comparison.edges if "decode" in edge]
    fault("rollout_decode", "rollout.dtype", "fallback")
    assert with_numbers(judged(), "PASS").missing_arms.keys() == {"rollout_decode"}


def test_as_the_verdict_arm_the_same_fault_ends_the_case(judged, case):
    beside(case)
    case.requested = evolve(case.requested, verdict_arm="rollout_decode")
    without_numbers(judged(), "INVALID_IDENTITY")


def test_an_arm_that_could_not_be_scored_is_named(judged, case):
    case.actual = evolve(case.actual, failures={"rollout_decode": "out of memory"})
    assert with_numbers(judged(), "PASS").missing_arms == {"rollout_decode": "out of memory"}


# --- identity -------------------------------------------------------------------------------------------------


def report(case, arm, **changes):
    reports = {**case.identity.reports, arm: tuple(evolve(item, **changes) for item in case.identity.reports[arm])}
    case.identity = evolve(case.identity, reports=reports)


def attested(case, arm, index, **changes):
    items = list(case.identity.reports[arm][0].attestations)
    items[index] = evolve(items[index], **changes)
    report(case, arm, attestations=tuple(items))


def weights(case, arm, **changes):
    builds = tuple(evolve(item, weights=evolve(item.weights, **changes)) for item in case.identity.builds[arm])
    case.identity = evolve(case.identity, builds={**case.identity.builds, arm: builds})


OTHER = "0" * 64
VIOLATIONS = {
    "other tokens": lambda case, arm: attested(case, arm, 1, token_ids=OTHER),
    "other positions": lambda case, arm: attested(case, arm, 0, position_ids=OTHER),
    "other selected ids": lambda case, arm: attested(case, arm, 0, selected_ids=OTHER),
    "another length": lambda case, arm: attested(case, arm, 0, length=4),
    "a sequence left out": lambda case, arm: report(
        case, arm, attestations=case.identity.reports[arm][0].attestations[:1]
    ),
    "nothing attested": lambda case, arm: report(case, arm, attestations=()),
    "parameters changed": lambda case, arm: report(case, arm, fold_after="00000001"),
    "no fold": lambda case, arm: report(case, arm, fold_before=""),
    "state changed": lambda case, arm: report(case, arm, state_unchanged=False),
    "state not attested": lambda case, arm: report(case, arm, state_unchanged=None),
    "a temperature": lambda case, arm: report(case, arm, transforms=("temperature:0.7",)),
    "transforms not attested": lambda case, arm: report(case, arm, transforms=None),
    "a tensor too many": lambda case, arm: weights(case, arm, tensors={"w": OTHER}),
    "weights in another dtype": lambda case, arm: weights(case, arm, dtype="bfloat16"),
    "weights by an unknown method": lambda case, arm: weights(case, arm, method="trust"),
    "no report": lambda case, arm: setattr(
        case, "identity", evolve(case.identity, reports={**case.identity.reports, arm: ()})
    ),
    "no build": lambda case, arm: setattr(
        case, "identity", evolve(case.identity, builds={**case.identity.builds, arm: ()})
    ),
    "a weight of the checkpoint missing": lambda case, arm: setattr(
        case, "identity", evolve(case.identity, expected_weights={"float32": {"w": OTHER}})
    ),
    "unknown weights": lambda case, arm: setattr(case, "identity", evolve(case.identity, expected_weights={})),
}


@pytest.mark.parametrize("arm", ["training", "rollout_prefill"])
@pytest.mark.parametrize("violation", VIOLATIONS)
def test_a_violated_identity_has_no_number_and_names_arm_and_fault(violation, arm, judged, case):
    VIOLATIONS[violation](case, arm)
    comparison = without_numbers(judged(), "INVALID_IDENTITY")
    assert any(text.startswith(f"{arm}: ") for text in comparison.identity_errors)
    assert comparison.reason.startswith(comparison.identity_errors[0])


def test_the_same_temperature_on_both_sides_is_still_not_the_recorded_chain(judged, case):
    for arm in ("training", "rollout_prefill"):
        report(case, arm, transforms=("temperature:0.7",))
    without_numbers(judged(), "INVALID_IDENTITY")


def test_a_lenient_case_is_not_lenient_about_identity(fault, judged, case):
    case.requested = evolve(case.requested, strict=False)
    fault("training", "batch.size", "fallback")
    report(case, "training", fold_after="00000001")
    without_numbers(judged(), "INVALID_IDENTITY")


def test_a_strict_fault_is_named_before_the_identity(fault, judged, case):
    fault("training", "batch.size", "fallback")
    report(case, "training", fold_after="00000001")
    without_numbers(judged(), "FALLBACK")


def test_many_violations_are_counted_in_the_reason_and_listed(judged, case):
    for arm in ("training", "rollout_prefill"):
        for index in (0, 1):
            attested(case, arm, index, token_ids=OTHER)
        report(case, arm, fold_after="00000001")
    comparison = without_numbers(judged(), "INVALID_IDENTITY")
    assert len(comparison.identity_errors) == 6
    assert comparison.reason.endswith("; and 3 more")


# --- numbers --------------------------------------------------------------------------------------------------


def scores(case, arm, values):
    case.scores[arm] = {**case.scores[arm], "selected_logprob": np.asarray(values)}


def test_a_difference_above_the_threshold_is_a_mismatch_and_below_is_none(judged, case, contract):
    threshold = contract.threshold("float32", "float32")
    base = case.scores["training"]["selected_logprob"].astype(np.float64)
    for factor, status, count in ((2.0, "MISMATCH", 1), (0.5, "PASS", 0)):
        moved = base.copy()
        moved[4] += factor * threshold
        scores(case, "training", moved)
        scores(case, "rollout_prefill", base)
        edge = with_numbers(judged(), status).edges["training_vs_rollout"]
        assert edge.mismatches == count
        assert edge.max_abs == abs(moved[4] - base[4])
        assert edge.worst[0].position == 4 if count else True


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("arm", ["training", "rollout_prefill"])
def test_a_score_that_is_not_finite_is_an_invalid_artifact(arm, value, judged, case):
    values = case.scores[arm]["selected_logprob"].copy()
    values[4] = value
    scores(case, arm, values)
    assert judged().comparison.status == "INVALID_ARTIFACT"


@pytest.mark.parametrize("change", [lambda v: v[:-1], lambda v: v.astype(np.int32), lambda v: v.astype(np.float16)])
def test_scores_of_another_shape_or_dtype_are_an_invalid_artifact(change, judged, case):
    scores(case, "training", change(np.nan_to_num(case.scores["training"]["selected_logprob"])))
    assert judged().comparison.status == "INVALID_ARTIFACT"


@pytest.mark.parametrize("column", ["selected_logprob", "active"])
def test_a_score_without_a_column_is_refused_by_name(column, judged, case):
    del case.scores["training"][column]
    with pytest.raises(ArtifactError, match=f"'training' has no column '{column}'"):
        judged()


def test_a_mask_that_scored_less_than_was_frozen_is_no_pass(judged, case):
    case.scores["training"]["active"] = np.zeros(12, dtype=np.bool_)
    assert judged().comparison.status == "INVALID_ARTIFACT"


@pytest.mark.parametrize("arm", ["training", "rollout_prefill"])
def test_a_compute_dtype_that_was_not_observed_is_unobservable(arm, judged, case):
    case.actual = evolve(case.actual, compute_dtypes={**case.actual.compute_dtypes, arm: ""})
    assert judged().comparison.status == "UNOBSERVABLE"


def test_a_missing_arm_is_no_pass(judged, case):
    for arm in ("training", "rollout_prefill"):
        kept = dict(case.scores)
        del case.scores[arm]
        assert judged().comparison.status in ("INVALID_ARTIFACT", "UNSUPPORTED")
        case.scores = kept


def test_another_verdict_arm_is_not_replaced_by_the_one_that_is_there(judged, case):
    case.requested = evolve(case.requested, verdict_arm="rollout_decode")
    assert judged().comparison.status == "UNSUPPORTED"


# --- what else changed ----------------------------------------------------------------------------------------


def test_an_undeclared_identical_difference_is_not_comparable_and_keeps_its_numbers(setting, judged):
    setting("training", "training.compute_dtype", of="baseline", actual="bfloat16")
    comparison = with_numbers(judged(), "NOT_COMPARABLE")
    assert "training.compute_dtype" in comparison.reason
    (difference,) = comparison.undeclared_differences
    assert (difference["path"], difference["baseline"], difference["case"]) == (
        "training.compute_dtype",
        "bfloat16",
        "float32",
    )
    assert comparison.coupled_changes == comparison.undeclared_differences


def test_a_declared_difference_is_measured(setting, judged, case):
    setting("training", "training.compute_dtype", of="baseline", actual="bfloat16")
    case.requested = evolve(case.requested, delta={"training.compute_dtype": "float32"})
    setting("training", "batch.size", of="baseline", actual=1)
    setting("rollout_prefill", "batch.size", of="baseline", actual=1)
    comparison = with_numbers(judged(), "PASS")
    assert comparison.coupled_changes == comparison.undeclared_differences == ()


def test_an_undeclared_recorded_difference_is_listed_and_changes_no_status(setting, judged):
    setting("rollout_prefill", "rollout.enforce_eager", of="baseline", actual=False)
    comparison = with_numbers(judged(), "PASS")
    (change,) = comparison.coupled_changes
    assert (change["path"], change["side"], change["tier"]) == ("rollout.enforce_eager", "rollout", "RECORDED")
    assert comparison.undeclared_differences == ()


def test_a_semantic_difference_counts_as_an_identical_one(setting, judged, case):
    facts(case, "rollout.enforce_eager", tier=Tier.SEMANTIC)
    setting("rollout_prefill", "rollout.enforce_eager", of="baseline", actual=False)
    with_numbers(judged(), "NOT_COMPARABLE")


def test_an_undeclared_difference_does_not_hide_a_worse_status(setting, fault, judged, case):
    setting("training", "training.compute_dtype", of="baseline", actual="bfloat16")
    values = case.scores["training"]["selected_logprob"].copy()
    values[4] = np.nan
    scores(case, "training", values)
    assert judged().comparison.status == "INVALID_ARTIFACT"
    case.requested = evolve(case.requested, strict=False)
    fault("training", "batch.size", "fallback")
    comparison = judged().comparison
    assert comparison.status == "FALLBACK"
    assert comparison.undeclared_differences


def test_a_case_without_a_scored_baseline_says_that_nothing_was_held_against_it(judged, case):
    case.actual = evolve(case.actual, baseline={})
    comparison = with_numbers(judged(), "NOT_COMPARABLE")
    assert "no score of training and rollout_prefill" in comparison.reason
    changes = comparison.coupled_changes
    assert [(item["path"], item["arm"]) for item in changes] == [("*", "training"), ("*", "rollout_prefill")]
    case.actual = evolve(case.actual, baseline={"training": case.actual.applications["training"]})
    assert "no score of rollout_prefill that" in with_numbers(judged(), "NOT_COMPARABLE").reason


def summing(case, arm, policy, padded=512, real=500):
    """Let every rank of `arm` say over which columns of the vocabulary it summed."""
    vocabulary = {"policy": policy, "real": real, "padded": padded}
    found = tuple(evolve(item, mechanism={"vocabulary": vocabulary}) for item in case.identity.reports[arm])
    case.identity = evolve(case.identity, reports={**case.identity.reports, arm: found})


@pytest.mark.parametrize("other", [None, ("mask", 512), ("include", 768)])
def test_padded_columns_on_one_side_are_not_comparable_and_keep_their_numbers(other, judged, case):
    """If this fails, a padded vocabulary that enters every sum of one side is taken for drift."""
    summing(case, "training", "include")
    if other is not None:
        summing(case, "rollout_prefill", *other)
    comparison = with_numbers(judged(), "NOT_COMPARABLE")
    assert "training sums over padded columns, 512 for 500" in comparison.reason
    (difference,) = comparison.undeclared_differences
    assert (difference["path"], difference["tier"]) == ("mechanism.vocabulary", "SEMANTIC")


@pytest.mark.parametrize(
    ("one", "other"),
    [(("include", 512), ("include", 512)), (("mask", 768), ("mask", 512)), (("include", 500), ("mask", 500))],
)
def test_sides_that_sum_over_the_same_columns_are_comparable(one, other, judged, case):
    """If this fails, a difference that changes no sum costs the case its verdict."""
    summing(case, "training", *one)
    summing(case, "rollout_prefill", *other)
    assert with_numbers(judged(), "PASS").undeclared_differences == ()


@pytest.mark.parametrize(("policy", "padded"), [("sums over [300] columns", 500), ("Mask", 512), (None, 512)])
def test_a_policy_that_is_not_mask_counts_as_other_columns(policy, padded, judged, case):
    """If this fails, a side that says anything unforeseen of its sums is taken to sum the real columns alone."""
    summing(case, "training", policy, padded)
    comparison = with_numbers(judged(), "NOT_COMPARABLE")
    (difference,) = comparison.undeclared_differences
    assert (difference["path"], difference["rollout"]) == ("mechanism.vocabulary", "real columns")


@pytest.mark.parametrize("path", ["training.vocab_padding_policy", "logprob.vocab_padding_policy@training"])
def test_a_knob_that_declares_the_vocabulary_policy_makes_it_a_measurement(path, judged, case):
    """If this fails, the axis of the vocabulary's padding cannot be measured at all."""
    summing(case, "training", "include")
    case.requested = evolve(case.requested, knobs={**case.requested.knobs, path: "include"})
    assert with_numbers(judged(), "PASS").undeclared_differences == ()


def test_a_knob_of_one_side_declares_no_padded_column_of_the_other(judged, case):
    """If this fails, a policy named for the training side hides that the rollout sums over padding."""
    summing(case, "rollout_prefill", "include")
    knobs = {**case.requested.knobs, "training.vocab_padding_policy": "mask"}
    case.requested = evolve(case.requested, knobs=knobs)
    comparison = with_numbers(judged(), "NOT_COMPARABLE")
    assert "rollout sums over padded columns" in comparison.reason
    case.requested = evolve(case.requested, knobs={**knobs, "logprob.vocab_padding_policy@rollout": "include"})
    assert with_numbers(judged(), "PASS").undeclared_differences == ()


def flags(case, arm, **changed):
    """Let every rank of `arm` report torch's switch on and its libraries, with `changed` flags."""
    on = {"deterministic_algorithms": True, "deterministic_warn_only": False}
    said = {"flags": {**on, **changed}, "libraries": ["torch", "nccl"]}
    found = tuple(evolve(item, mechanism={"determinism": said}) for item in case.identity.reports[arm])
    case.identity = evolve(case.identity, reports={**case.identity.reports, arm: found})


def test_a_case_that_claims_determinism_is_held_to_the_flags_that_its_workers_read(judged, case):
    """If this fails, two differently configured processes are compared as if only arithmetic could differ."""
    nccl = {"NCCL_ALGO": "Tree", "NCCL_PROTO": "unset"}
    flags(case, "training", **nccl)
    flags(case, "rollout_prefill", **{**nccl, "NCCL_ALGO": "Ring"})
    assert with_numbers(judged(), "PASS").undeclared_differences == (), "the case claims nothing"
    claim = {side: {"deterministic_algorithms": True} for side in ("training", "rollout")}
    case.requested = evolve(case.requested, runtime_options=claim)
    comparison = with_numbers(judged(), "NOT_COMPARABLE")
    (difference,) = comparison.undeclared_differences
    assert (difference["path"], difference["rollout"]) == ("mechanism.determinism.NCCL_ALGO", "Ring")
    assert "runtime_options.training.deterministic_algorithms" in comparison.reason
    assert "training has 'Tree' (read in the worker of rank 0), rollout has 'Ring'" in comparison.reason
    flags(case, "rollout_prefill", **{**nccl, "NCCL_ALGO": "allreduce:tree"})
    assert with_numbers(judged(), "PASS").undeclared_differences == ()
    case.identity = evolve(case.identity, reports={**case.identity.reports, "training": ()})
    assert judged().comparison.status != "PASS"


@pytest.mark.parametrize("side", ["training", "rollout"])
def test_an_operator_path_declares_the_backend_of_its_side_only(side, setting, judged, case):
    facts(case, "logp.backend", tier=Tier.IDENTICAL)
    case.requested = evolve(case.requested, delta={**case.requested.delta, f"operators.selected_logprob.{side}": "x"})
    arms = {"training": "training", "rollout": "rollout_prefill"}
    setting(arms[side], "logp.backend", of="baseline", actual="another")
    comparison = with_numbers(judged(), "PASS")
    assert comparison.coupled_changes == ()
    other = "rollout" if side == "training" else "training"
    setting(arms[other], "logp.backend", of="baseline", actual="another")
    comparison = with_numbers(judged(), "NOT_COMPARABLE")
    assert [(item["path"], item["side"]) for item in comparison.coupled_changes] == [("logp.backend", other)]


def test_an_attention_operator_declares_the_attention_backend_that_it_replaces(setting, judged, case):
    """Failing means that a case which swaps attention is held not to be comparable with its baseline."""
    facts(case, "training.attention_backend", tier=Tier.IDENTICAL)
    setting("training", "training.attention_backend", of="baseline", actual="another")
    with_numbers(judged(), "NOT_COMPARABLE")
    for side, status in (("rollout", "NOT_COMPARABLE"), ("training", "PASS")):
        case.requested = evolve(case.requested, delta={f"operators.attention.{side}": "x"})
        with_numbers(judged(), status)


def test_an_operator_of_the_head_declares_the_log_probability_that_it_replaces(setting, judged, case):
    """Failing means that a case which swaps head and log probability in one is held not to be comparable."""
    facts(case, "logp.backend", tier=Tier.IDENTICAL)
    setting("training", "logp.backend", of="baseline", actual="another")
    with_numbers(judged(), "NOT_COMPARABLE")
    for side, status in (("rollout", "NOT_COMPARABLE"), ("training", "PASS")):
        case.requested = evolve(case.requested, delta={f"operators.linear_selected_logprob.{side}": "x"})
        with_numbers(judged(), status)


@pytest.mark.parametrize("path", ["operators.gemm.training", "operators.selected_logprob", "operators", "logp.other"])
def test_another_operator_declares_no_backend(path, setting, judged, case):
    facts(case, "logp.backend", tier=Tier.IDENTICAL)
    case.requested = evolve(case.requested, delta={**case.requested.delta, path: "x"})
    setting("training", "logp.backend", of="baseline", actual="another")
    with_numbers(judged(), "NOT_COMPARABLE")


def test_a_knob_the_plan_does_not_know_is_shown_when_it_changes(judged, case):
    """An engine may report more than was asked: such a change is coupled, and its own fault ends nothing."""
    (template, *_) = case.actual.applications["training"]
    extra = evolve(template, path="engine.extra", actual=2, status=Applied.FALLBACK)
    applications = {**case.actual.applications, "training": (*case.actual.applications["training"], extra)}
    case.actual = evolve(case.actual, applications=applications)
    (change,) = with_numbers(judged(), "PASS").coupled_changes
    assert (change["path"], change["baseline"], change["case"]) == ("engine.extra", "not reported", 2)


def test_replica_disagreements_are_carried_with_their_arm_and_change_no_status(judged, case):
    finding = {"rank": 1, "tokens": 2, "max_abs": None}
    case.actual = evolve(case.actual, replica_disagreements={"training": (finding, {**finding, "rank": 3})})
    found = with_numbers(judged(), "PASS").replica_disagreements
    assert found == ({"arm": "training", **finding}, {"arm": "training", **finding, "rank": 3})


# --- the precision budget -------------------------------------------------------------------------------------

PLAIN = ("plain_eager_float64", "plain_eager_float32", "plain_sdpa_float32")


@pytest.fixture
def budget(case):
    """Plain scores that round each token by about a thousandth; the reference is the training score itself."""
    for number, name in enumerate(PLAIN):
        columns = dict(case.scores["training"])
        noise = np.array([1, -1, 1, -1, 1, -1] * 2) * 1e-3 * number
        columns["selected_logprob"] = columns["selected_logprob"].astype(np.float64) + noise
        case.scores[name] = columns
        dtype = name.rpartition("_")[2]
        case.actual = evolve(case.actual, compute_dtypes={**case.actual.compute_dtypes, name: dtype})
        builds = tuple(
            evolve(item, weights=evolve(item.weights, dtype=dtype)) for item in case.identity.builds["training"]
        )
        case.identity = evolve(
            case.identity,
            builds={**case.identity.builds, name: builds},
            reports={**case.identity.reports, name: case.identity.reports["training"]},
            expected_weights={"float32": {}, "float64": {}},
        )
    return case


def test_a_budget_stands_beside_the_verdict(budget, judged):
    comparison = with_numbers(judged(), "PASS")
    assert comparison.assessment.assessment == "EXPLAINED_BY_PRECISION"
    assert (comparison.assessment.tokens, comparison.assessment.reference_dtype) == (6, "float64")
    assert {"training_vs_reference", "rollout_prefill_vs_reference"} <= set(comparison.edges)


@pytest.mark.parametrize("table", PLAIN)
def test_a_plain_score_that_fails_the_gate_costs_the_budget_and_nothing_else(table, budget, judged):
    report(budget, table, fold_after="00000001")
    comparison = with_numbers(judged(), "PASS")
    assert comparison.assessment.assessment == "NO_REFERENCE"
    assert comparison.assessment.reason.startswith(f"{table} did not pass the identity gate: {table}: ")
    assert comparison.identity_errors == ()


@pytest.mark.parametrize("table", PLAIN)
def test_a_plain_score_in_another_dtype_than_its_name_is_none(table, budget, judged):
    dtypes = {**budget.actual.compute_dtypes, table: "bfloat16"}
    budget.actual = evolve(budget.actual, compute_dtypes=dtypes)
    weights(budget, table, dtype="bfloat16")
    budget.identity = evolve(budget.identity, expected_weights={**budget.identity.expected_weights, "bfloat16": {}})
    assert with_numbers(judged(), "PASS").assessment.assessment == "NO_REFERENCE"


def test_a_plain_score_under_another_attention_is_none(budget, judged):
    (template, *_) = budget.actual.applications["training"]
    fell = evolve(template, path="training.attention_backend", status=Applied.FALLBACK)
    applications = {**budget.actual.applications, "plain_sdpa_float32": (fell,)}
    budget.actual = evolve(budget.actual, applications=applications)
    comparison = with_numbers(judged(), "PASS")
    assert comparison.assessment.assessment == "NO_REFERENCE"
    assert "training.attention_backend is fallback" in comparison.assessment.reason


def test_definitions_travel_with_the_case(case):
    """A third party judges without the plugins: tier and criticality of every knob lie in requested.json."""
    paths = {key.partition("@")[0] for key in case.requested.knobs}
    assert set(case.requested.definitions) == paths
    assert all(isinstance(item, KnobFacts) for item in case.requested.definitions.values())


def test_judging_changes_none_of_its_arguments(case):
    columns = {arm: {name: array.copy() for name, array in table.items()} for arm, table in case.scores.items()}
    judge(case.requested, case.actual, case.identity, case.scores, case.rollout, case.contract)
    for arm, table in columns.items():
        for name, array in table.items():
            assert np.array_equal(case.scores[arm][name], array, equal_nan=array.dtype.kind == "f")
