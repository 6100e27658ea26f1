"""The conformance kit on this package: the same tests that a third party runs."""

from __future__ import annotations

import pytest
from xcfg_ops_gemm.backends import BACKENDS
from xcfg_testkit import OperatorContract, PluginContract


class TestPlugin(PluginContract):
    module = "xcfg_ops_gemm.plugin"
    entry_point = "ops-gemm"


class TestBackends(OperatorContract):
    descriptor = BACKENDS[0]

    @pytest.fixture(params=BACKENDS, ids=lambda item: item.backend_id, autouse=True)
    def each_backend(self, request, monkeypatch):
        monkeypatch.setattr(type(self), "descriptor", request.param)
