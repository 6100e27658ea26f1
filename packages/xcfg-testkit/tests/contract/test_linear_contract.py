"""The contract of head and log probability in one passes on good fakes and fails, on the right test, on bad ones."""

from __future__ import annotations

pytest_plugins = ["pytester"]

BAD = {
    "wrong_value": "test_values_and_form",
    "drops_depth": "test_odd_shapes",
    "needs_rows": "test_no_rows",
    "overflows": "test_large_logits",
    "hides_nan": "test_rows_without_a_distribution",
    "clamps_ids": "test_ids_outside_the_vocabulary_are_refused",
    "writes_hidden": "test_inputs_are_left_alone",
    "ignores_strides": "test_strided_inputs",
    "drifts_between_runs": "test_run_to_run",
    "depends_on_rows": "test_batch_invariant",
}
HEAD = """
from xcfg_testkit import LinearSelectedLogprobContract
from xcfg_testkit.fakes.linear import descriptor

class Small(LinearSelectedLogprobContract):
    __test__ = False
    long_shape, cost_shape = (257, 8), (4, 64, 8)

"""


def test_good_passes_and_each_bad_one_fails(outcomes, failed):
    """If this fails, a backend that breaks a rule passes the kit, or an honest one does not."""
    classes = "".join(
        f"class Test_{name}(Small):\n    __test__ = True\n    descriptor = descriptor('{name}')\n\n"
        for name in ("good", *BAD)
    )
    classes += "class Test_exact(Small):\n    __test__ = True\n    descriptor = descriptor('exact')\n"
    classes += "    rounds_logits = False\n"
    found = outcomes(HEAD + classes, {f"Test_{name}": test for name, test in BAD.items()})
    assert failed(found["Test_good"]) == failed(found["Test_exact"]) == set()
    assert found["Test_good"]["test_batch_invariant"] == {"passed"}
    for name, test in BAD.items():
        assert test in failed(found[f"Test_{name}"]), f"{name} passes {test}"


def test_rounding_is_allowed_only_where_it_is_declared(outcomes, failed):
    """If this fails, a backend that says it keeps logits in float32 may round them."""
    found = outcomes(
        HEAD + "class TestRounds(Small):\n    __test__ = True\n    descriptor = descriptor('good')\n"
        "    rounds_logits = False\n",
        {"TestRounds": "test_values_and_form"},
    )
    assert "test_values_and_form" in failed(found["TestRounds"])


def test_what_is_not_claimed_is_reported_and_a_false_peer_is_seen(outcomes, failed):
    """If this fails, a backend must claim what it cannot do, or equality of bits is not compared."""
    found = outcomes(
        HEAD
        + """
class TestModest(Small):
    __test__ = True
    descriptor = descriptor('depends_on_rows', properties=())

class TestFalse(Small):
    __test__ = True
    descriptor = descriptor('good', properties=('bitwise-equal-to:other',))
    peers = {'other': 'xcfg_testkit.fakes.linear:exact'}

class TestTp(Small):
    __test__ = True
    descriptor = descriptor('good', properties=('tp-invariant',))
"""
    )
    assert found["TestModest"]["test_batch_invariant"] == {"skipped"}
    assert failed(found["TestTp"]) == {"test_tp_invariant_claims_are_proved"}
    assert "test_bitwise_equal_to" in failed(found["TestFalse"])
