"""No standard test is lost without a reason, and no contract runs without what it needs."""

from __future__ import annotations

import pytest
from xcfg_testkit import KnobContract, PluginContract, SelectedLogprobContract
from xcfg_testkit.contract.guard import WeakenedContractError, standard_tests
from xcfg_testkit.fakes.operators import descriptor


def test_deleting_a_test_is_refused():
    """If this fails, an inconvenient test is set to None and nobody sees it."""
    with pytest.raises(WeakenedContractError, match="test_run_to_run"):
        type("TestX", (SelectedLogprobContract,), {"descriptor": descriptor("good"), "test_run_to_run": None})


def test_overriding_without_a_reason_is_refused():
    """If this fails, a test is replaced by one that passes."""
    for mark in (None, pytest.mark.xfail(), pytest.mark.slow):

        def override(self):
            pass

        body = override if mark is None else mark(override)
        with pytest.raises(WeakenedContractError, match="test_no_rows"):
            type("TestX", (SelectedLogprobContract,), {"descriptor": descriptor("good"), "test_no_rows": body})


def test_overriding_with_a_reason_is_allowed():
    """If this fails, a known fault cannot be written down."""

    @pytest.mark.xfail(reason="issue 5")
    def override(self):
        pass

    type("TestX", (SelectedLogprobContract,), {"descriptor": descriptor("good"), "test_no_rows": override})


def test_a_mixin_in_front_is_noticed():
    """If this fails, the override hides in another class."""
    mixin = type("Mixin", (), {"test_no_rows": lambda self: None})
    with pytest.raises(WeakenedContractError, match="test_no_rows"):
        type("TestX", (mixin, SelectedLogprobContract), {"descriptor": descriptor("good")})


def test_missing_attributes_are_named():
    """If this fails, a contract without its subject fails somewhere inside."""
    with pytest.raises(WeakenedContractError, match="must set knobs"):
        type("TestX", (KnobContract,), {})
    type("MyBase", (KnobContract,), {})


def test_own_tests_may_be_added():
    """If this fails, an author cannot extend a contract."""
    type("TestX", (PluginContract,), {"module": "x", "test_mine": lambda self: None})


@pytest.mark.parametrize("name", __import__("xcfg_testkit").__all__)
def test_every_standard_test_says_what_failing_means(name):
    """If this fails, an author sees a red test and no cure."""
    contract = getattr(__import__("xcfg_testkit"), name)
    names = standard_tests(contract)
    assert len(names) >= 6
    for test in names:
        text = getattr(contract, test).__doc__ or ""
        assert text.startswith(("Failing means", "Never fails")), test
        assert len(text.split()) > 10, test
