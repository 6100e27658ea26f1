"""The runtime contract passes on the good adapter and fails, on the right test, on each bad one."""

from __future__ import annotations

pytest_plugins = ["pytester"]

BAD = {
    "CopiesRequest": "test_sabotage_is_noticed",
    "AcceptsAnyDtype": "test_a_refused_value_is_never_applied",
    "RanOtherDtype": "test_applied_means_that_the_actual_value_is_the_requested_one",
    "WrongRequested": "test_requested_is_what_was_asked",
    "SilentKnob": "test_every_claimed_knob_is_reported",
    "ConfigEvidence": "test_applied_has_evidence",
    "ReportsTwice": "test_every_claimed_knob_is_reported",
    "ShortMemory": "test_a_score_depends_on_its_past_only",
    "FalselyInherent": "test_applied_has_evidence",
    "NoProvenance": "test_build_report",
    "AttestsPadding": "test_attestations",
    "AttestsFirstRollout": "test_attestations_follow_the_rollout",
    "ExtraColumn": "test_columns",
    "LowPrecisionColumn": "test_columns",
    "FillsZeros": "test_scores_stand_exactly_where_tokens_are_active",
    "AllActive": "test_scores_stand_exactly_where_tokens_are_active",
    "WrongShift": "test_logits_stand_before_their_token",
    "SeesTheFuture": "test_a_score_depends_on_its_past_only",
    "ForgetsRanges": "test_rank_record",
    "Trains": "test_scoring_changes_nothing",
    "TrainsInSecret": "test_scoring_changes_nothing",
    "Noisy": "test_repeats",
    "DecodesByPrefill": "test_decode_is_decode",
    "UntaggedDecode": "test_decode_is_decode",
    "IgnoresOperator": "test_the_injected_operator_runs",
    "RaisesOnClose": "test_close_after_a_failed_build",
    "Leaks": "test_scoring_changes_nothing",
    "AnswersOldShape": "test_generate_answers_every_prompt",
    "HidesTransforms": "test_generate_answers_every_prompt",
    "RunsPastStop": "test_a_stop_id_ends_a_sequence",
    "CannotSample": "test_generate_answers_every_prompt",
}
HEAD = """
import contextlib
import torch
from xcfg_testkit import RuntimeContract
from xcfg_testkit.fakes import runtimes as fakes

class Base(RuntimeContract):
    knobs = fakes.KNOBS
    run_to_run = True

    def tensors(self, adapter):
        return adapter.tables.items()

    def sabotage(self, side):
        @contextlib.contextmanager
        def other_dtype():
            kept = fakes.GoodAdapter.dtype_of
            fakes.GoodAdapter.dtype_of = lambda self, name: torch.bfloat16
            try:
                yield fakes.DTYPE_KNOB[side]
            finally:
                fakes.GoodAdapter.dtype_of = kept
        return other_dtype()

"""


def test_good_passes_and_each_bad_one_fails(outcomes, failed):
    """If this fails, an adapter that lies passes the kit, or an honest one does not."""
    classes = "".join(
        f"class Test{name}(Base):\n    descriptor = fakes.descriptor('{name}')\n\n" for name in ("GoodAdapter", *BAD)
    )
    found = outcomes(HEAD + classes, {f"Test{name}": test for name, test in BAD.items()})
    assert failed(found["TestGoodAdapter"]) == set()
    for test in ("test_decode_is_decode", "test_generate_answers_every_prompt", "test_a_stop_id_ends_a_sequence"):
        assert "passed" in found["TestGoodAdapter"][test]
    for name, test in BAD.items():
        assert test in failed(found[f"Test{name}"]), f"{name} passes {test}: it fails {failed(found[f'Test{name}'])}"


def test_abilities_that_are_not_claimed_are_not_demanded(outcomes, failed):
    """If this fails, an engine with noise, or one that injects nothing, cannot be offered honestly."""
    found = outcomes(
        HEAD
        + """
class TestNoisy(Base):
    descriptor = fakes.descriptor('Noisy')
    run_to_run = False

class TestOwnOperator(Base):
    descriptor = fakes.descriptor('IgnoresOperator', operators=())

class TestNoSampling(Base):
    descriptor = fakes.descriptor('CannotSample', generates=False)

class TestConfig(Base):
    descriptor = fakes.descriptor('ConfigEvidence')
    config_is_what_runs = {
        'rollout.dtype': 'x', 'training.compute_dtype': 'x', 'batch.size': 'x', 'rollout.enforce_eager': 'x',
    }
"""
    )
    assert failed(found["TestNoisy"]) == set()
    assert found["TestOwnOperator"]["test_the_injected_operator_runs"] == {"skipped"}
    assert failed(found["TestConfig"]) == set()
    assert failed(found["TestNoSampling"]) == set()
    assert found["TestNoSampling"]["test_generate_answers_every_prompt"] == {"skipped"}


def test_wrong_descriptors(outcomes, failed):
    """If this fails, a claim about arms or knobs is not checked against anything."""
    found = outcomes(
        HEAD
        + """
class TestArm(Base):
    descriptor = fakes.descriptor('GoodAdapter', arms={'training': ('rollout_decode',)})

class TestReplay(Base):
    descriptor = fakes.descriptor('GoodAdapter', arms={'rollout': ('rollout_prefill',)})

class TestSamplesNowhere(Base):
    descriptor = fakes.descriptor('GoodAdapter', arms={'training': ('training',)}, forced_replay=False)

class TestKnobNotGiven(Base):
    descriptor = fakes.descriptor('GoodAdapter')
    knobs = {'rollout': fakes.KNOBS['rollout'], 'training': {'training.compute_dtype': 'float32'}}
"""
    )
    assert "test_descriptor" in failed(found["TestArm"])
    assert failed(found["TestReplay"]) == {"test_descriptor"}
    assert "test_generates_means_that_there_is_a_generator" in failed(found["TestSamplesNowhere"])
    assert "test_every_claimed_knob_is_given_here" in failed(found["TestKnobNotGiven"])
