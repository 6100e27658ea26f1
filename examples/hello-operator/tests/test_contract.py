"""All that an author writes: the kit does the rest."""

from __future__ import annotations

from hello_operator.plugin import BACKEND
from xcfg_testkit import PluginContract, SelectedLogprobContract


class TestPlugin(PluginContract):
    """The module, its hook and its records."""

    module = "hello_operator.plugin"


class TestOnlineLogsumexp(SelectedLogprobContract):
    """The numbers, for every declared dtype and claim."""

    descriptor = BACKEND


class TestSmallBlocks(SelectedLogprobContract):
    """The same with a block that divides nothing."""

    descriptor = BACKEND
    options = {"block": 7}
    long_vocabulary = 4099
    cost_shape = (8, 1024)
