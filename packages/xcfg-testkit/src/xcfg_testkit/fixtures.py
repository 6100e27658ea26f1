"""The pytest plugin of the kit: markers and fixtures. Loading it changes nothing about other tests.

| fixture | gives |
|---|---|
| tiny_rollout | a frozen rollout of three short sequences |
| empty_plugin_manager | a pluggy manager that knows xcfg's hook specifications and no plugin |
| xcfg_leak_guard | fails the test at its end when global state was changed, and puts it back |
| xcfg_state_restored | puts global state back at the end of the test, whatever changed it |

Tests marked `gpu` are skipped where torch sees no CUDA device.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import pluggy
    from xcfg.identity.rollout import Rollout

MARKERS = (
    "gpu: needs a CUDA device; skipped where there is none",
    "slow: takes more than a few seconds",
    "engine: starts a real engine (vLLM, Megatron-core, Hugging Face) and needs it installed",
)


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers, so that authors can run with --strict-markers."""
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test marked gpu where there is no device."""
    if item.get_closest_marker("gpu") is None:
        return
    import torch

    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")


@pytest.fixture
def tiny_rollout() -> Rollout:
    """Return the small frozen rollout of the contract tests."""
    from xcfg_testkit.rollouts import tiny_rollout as make

    return make()


@pytest.fixture
def empty_plugin_manager() -> pluggy.PluginManager:
    """Return a manager with xcfg's hook specifications and no plugin registered."""
    import pluggy
    from xcfg.plugin import PROJECT, spec

    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(spec)
    return manager


@pytest.fixture
def xcfg_leak_guard() -> Iterator[None]:
    """Fail the test at its end when torch flags, generators or the environment were left changed; restore them."""
    from xcfg_testkit import leaks

    before, back = leaks.snapshot(), leaks.restore()
    yield
    found = leaks.changes(before, leaks.snapshot())
    if found:
        back()
        pytest.fail("the code under test left global state changed: " + "; ".join(found), pytrace=False)


@pytest.fixture
def xcfg_state_restored() -> Iterator[None]:
    """Put torch flags, generators and the environment back at the end of the test."""
    from xcfg_testkit import leaks

    back = leaks.restore()
    yield
    back()
