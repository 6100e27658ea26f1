"""The operator contract passes on the good fake and fails, on the right test, on each bad one."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]

BAD = {
    "wrong_value": "test_values_and_form",
    "low_precision": "test_values_and_form",
    "low_precision_result": "test_values_and_form",
    "column_result": "test_values_and_form",
    "drops_the_tail": "test_odd_shapes",
    "needs_rows": "test_no_rows",
    "overflows": "test_large_and_tiny_logits",
    "clamps_masked": "test_masked_logits",
    "counts_ties_once": "test_signed_zeros_and_ties",
    "hides_nan": "test_rows_without_a_distribution",
    "clamps_ids": "test_ids_outside_the_vocabulary_are_refused",
    "writes_logits": "test_inputs_are_left_alone",
    "ignores_strides": "test_strided_inputs",
    "drifts_between_runs": "test_run_to_run",
    "depends_on_rows": "test_batch_invariant",
    "leaks_state": "test_values_and_form",
    "shared": "test_two_instances_are_independent",
    "takes_anything": "test_unknown_options_are_refused",
    "no_callable": "test_factory_builds_a_callable",
}
ROWS = (
    "options=(OptionDefinition(name='rows', domain=IntRange(minimum=1, maximum={maximum}), default={default}),), "
    "factory='xcfg_testkit.fakes.operators:narrow'"
)
DESCRIPTORS = {
    "Targets": ("targets=('both',)", "test_descriptor_speaks_the_vocabulary"),
    "Dtypes": ("dtypes=('bf16',)", "test_descriptor_speaks_the_vocabulary"),
    "Devices": ("devices=('cpu:0',)", "test_descriptor_speaks_the_vocabulary"),
    "Properties": ("properties=('deterministic',)", "test_descriptor_speaks_the_vocabulary"),
    "Fallback": ("fallback='maybe'", "test_descriptor_speaks_the_vocabulary"),
    "Alias": ("aliases=('native',)", "test_names_are_its_own"),
    "Twice": ("aliases=('fake.good',)", "test_names_are_its_own"),
    "Smoke": ("smoke_only=True", "test_smoke_backends_name_their_runtime"),
    "Factory": ("factory='xcfg_testkit.fakes.operators:absent'", "test_factory_builds_a_callable"),
    "Tp": ("properties=('tp-invariant',)", "test_tp_invariant_claims_are_proved"),
    "Peer": ("properties=('bitwise-equal-to:other',)", "test_bitwise_equal_to"),
    "Default": (
        ROWS.format(maximum=None, default=0),
        "test_option_defaults_lie_in_their_domains",
    ),
    "Domain": (
        ROWS.format(maximum=9, default=1),
        "test_every_option_value_is_accepted",
    ),
}
HEAD = """
from xcfg.schema.knobs import IntRange
from xcfg.schema.operators import OptionDefinition
from xcfg_testkit import SelectedLogprobContract
from xcfg_testkit.fakes.operators import descriptor
"""


def test_good_passes_and_each_bad_one_fails(outcomes, failed):
    """If this fails, a backend that breaks a rule passes the kit, or an honest one does not."""
    classes = "".join(
        f"class Test_{name}(SelectedLogprobContract):\n    descriptor = descriptor('{name}')\n"
        "    cost_shape, long_vocabulary = (4, 64), 4096\n\n"
        for name in ("good", *BAD)
    )
    found = outcomes(HEAD + classes, {f"Test_{name}": test for name, test in BAD.items()})
    assert failed(found["Test_good"]) == set()
    assert found["Test_good"]["test_batch_invariant"] == {"passed"}
    for name, test in BAD.items():
        assert test in failed(found[f"Test_{name}"]), f"{name} passes {test}"


def test_each_wrong_descriptor_fails(outcomes, failed):
    """If this fails, a word that xcfg will never match stays unnoticed."""
    classes = "".join(
        f"class Test{name}(SelectedLogprobContract):\n"
        f"    descriptor = descriptor('good', **dict({fields}))\n    cost_shape, long_vocabulary = (4, 64), 4096\n\n"
        for name, (fields, _) in DESCRIPTORS.items()
    )
    found = outcomes(HEAD + classes, {f"Test{name}": test for name, (_, test) in DESCRIPTORS.items()})
    for name, (_, test) in DESCRIPTORS.items():
        assert test in failed(found[f"Test{name}"]), f"{name} passes {test}"


def test_what_is_not_claimed_is_not_demanded_but_reported(outcomes):
    """If this fails, a backend must claim what it cannot do, or its abilities are not measured."""
    found = outcomes(
        HEAD + "class TestModest(SelectedLogprobContract):\n"
        "    descriptor = descriptor('depends_on_rows', properties=())\n"
        "    cost_shape, long_vocabulary = (4, 64), 4096\n"
    )
    assert found["TestModest"]["test_batch_invariant"] == {"skipped"}
    assert found["TestModest"]["test_run_to_run"] == {"skipped"}
    assert found["TestModest"]["test_tp_invariant_claims_are_proved"] == {"skipped"}


def test_bitwise_equality_with_a_peer(outcomes, failed):
    """If this fails, equality of bits is claimed without being compared."""
    found = outcomes(
        HEAD
        + """
class TestTrue(SelectedLogprobContract):
    descriptor = descriptor('good', properties=('bitwise-equal-to:other',))
    cost_shape, long_vocabulary = (4, 64), 4096
    peers = {'other': 'xcfg_testkit.fakes.operators:shared'}

class TestFalse(SelectedLogprobContract):
    descriptor = descriptor('good', properties=('bitwise-equal-to:other',))
    cost_shape, long_vocabulary = (4, 64), 4096
    peers = {'other': 'xcfg_testkit.fakes.operators:overflows'}
"""
    )
    assert found["TestTrue"]["test_bitwise_equal_to"] == {"passed"}
    assert "test_bitwise_equal_to" in failed(found["TestFalse"])


def test_coarse_precision_can_be_declared(outcomes, failed):
    """If this fails, a bfloat16 backend cannot be offered honestly."""
    found = outcomes(
        HEAD + "class TestCoarse(SelectedLogprobContract):\n"
        "    descriptor = descriptor('low_precision', properties=('run-to-run',))\n"
        "    compute_dtype, long_vocabulary = 'bfloat16', 4096\n",
        {"TestCoarse": "test_values_and_form"},
    )
    assert found["TestCoarse"]["test_values_and_form"] == {"passed"}


def test_cost_is_reported(reports):
    """If this fails, nobody sees what a backend costs beside production."""
    found = reports(
        HEAD + "class TestGood(SelectedLogprobContract):\n    descriptor = descriptor('good')\n",
        {"TestGood": "test_cost_against_production"},
    )
    (report,) = [item for item in found if item.when == "call"]
    properties = dict(report.user_properties)
    assert properties["seconds"] > 0
    assert properties["production_seconds"] > 0
    rows, vocabulary = properties["shape"]
    assert rows * vocabulary * 8 <= properties["peak_bytes"] <= rows * vocabulary * 8 * 6
    assert rows * vocabulary * 8 <= properties["production_peak_bytes"] <= rows * vocabulary * 8 * 2


@pytest.mark.slow
def test_each_claim_is_held_over_real_ranks(outcomes, failed):
    """If this fails, a sharded backend whose claims hold on one rank alone passes the kit."""
    liars = {
        "adds_ranks": "test_tp_invariant_claims_are_proved",
        "drifts_over_ranks": "test_claims_hold_over_ranks",
        "counts_rows_over_ranks": "test_claims_hold_over_ranks",
    }
    head = HEAD.replace("fakes.operators", "fakes.sharded")
    classes = "".join(
        f"class Test_{name}(SelectedLogprobContract):\n    descriptor = descriptor('{name}')\n"
        "    cost_shape, long_vocabulary = (4, 64), 4096\n\n"
        for name in ("gathered", *liars)
    )
    found = outcomes(head + classes)
    assert failed(found["Test_gathered"]) == set()
    assert found["Test_gathered"]["test_tp_invariant_claims_are_proved"] == {"passed"}
    assert failed(found["Test_adds_ranks"]) == {"test_tp_invariant_claims_are_proved"}
    for name in ("drifts_over_ranks", "counts_rows_over_ranks"):
        assert liars[name] in failed(found[f"Test_{name}"])
        assert not failed(found[f"Test_{name}"]) & {"test_run_to_run", "test_batch_invariant"}, "one rank shows nothing"
