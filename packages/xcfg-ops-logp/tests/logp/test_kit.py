"""The conformance kit on this package: the same tests that a third party runs."""

from __future__ import annotations

from xcfg_ops_logp.plugin import REFERENCE
from xcfg_testkit import PluginContract, SelectedLogprobContract


class TestPlugin(PluginContract):
    """The module, its hook and its records."""

    module = "xcfg_ops_logp.plugin"
    entry_point = "ops-logp"


class TestReference(SelectedLogprobContract):
    """Every declared dtype and claim of the reference, bounded by the precision of float64."""

    descriptor = REFERENCE
    compute_dtype = "float64"
