"""The conformance kit for authors of xcfg plugins: subclass a contract, give it your descriptor, run pytest.

    from xcfg_testkit import SelectedLogprobContract
    from my_kernel.plugin import BACKEND

    class TestMyKernel(SelectedLogprobContract):
        descriptor = BACKEND

Pin the version of the kit: a new version brings new tests.
"""

from __future__ import annotations

from xcfg_testkit.contract.dump_reader import DumpReaderContract
from xcfg_testkit.contract.knob import KnobContract
from xcfg_testkit.contract.linear_logprob import LinearSelectedLogprobContract
from xcfg_testkit.contract.logprob import SelectedLogprobContract
from xcfg_testkit.contract.operator import OperatorContract
from xcfg_testkit.contract.plugin import PluginContract
from xcfg_testkit.contract.renderer import RendererContract
from xcfg_testkit.contract.runtime import RuntimeContract

__all__ = [
    "DumpReaderContract",
    "KnobContract",
    "LinearSelectedLogprobContract",
    "OperatorContract",
    "PluginContract",
    "RendererContract",
    "RuntimeContract",
    "SelectedLogprobContract",
]
