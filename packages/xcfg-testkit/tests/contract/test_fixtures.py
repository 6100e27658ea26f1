"""The pytest plugin: markers, fixtures, the leak guard."""

from __future__ import annotations

import subprocess
import sys

import pytest
from xcfg_testkit import leaks

pytest_plugins = ["pytester"]

LEAKS = {
    "deterministic": "torch.use_deterministic_algorithms(True)",
    "cudnn": "torch.backends.cudnn.benchmark = not torch.backends.cudnn.benchmark",
    "precision": "torch.set_float32_matmul_precision('medium')",
    "dtype": "torch.set_default_dtype(torch.float64)",
    "threads": "torch.set_num_threads(torch.get_num_threads() + 1)",
    "grad": "torch.set_grad_enabled(False)",
    "torch_rng": "torch.rand(1)",
    "python_rng": "random.random()",
    "numpy_rng": "numpy.random.rand()",
    "set_env": "os.environ['XCFG_TESTKIT_X'] = '1'",
    "change_env": "os.environ['HOME'] = '/'",
    "unset_env": "del os.environ['HOME']",
}


def test_tiny_rollout(tiny_rollout):
    """If this fails, the contract tests score nothing."""
    assert tiny_rollout.sequence_count == 3
    assert tiny_rollout.active.sum() == 9
    assert not tiny_rollout.active[tiny_rollout.offsets[:-1]].any()


def test_empty_plugin_manager(empty_plugin_manager):
    """If this fails, a plugin is tested beside others."""
    assert empty_plugin_manager.get_plugins() == set()
    assert empty_plugin_manager.hook.xcfg_knobs() == []


def test_each_leak_is_named_and_repaired(reports):
    """If this fails, one test changes the numbers of the next."""
    source = "import os, random, numpy, pytest, torch\npytestmark = pytest.mark.usefixtures('xcfg_leak_guard')\n"
    source += "def test_clean():\n    pass\n"
    source += "".join(f"def test_{name}():\n    {code}\n" for name, code in LEAKS.items())
    before = leaks.snapshot()
    errors = {
        report.nodeid.split("::")[1].removeprefix("test_")
        for report in reports(source)
        if report.when == "teardown" and report.failed
    }
    assert errors == set(LEAKS)
    assert leaks.changes(before, leaks.snapshot()) == []


def test_gpu_tests_are_skipped_without_a_gpu(pytester, monkeypatch):
    """If this fails, the suite is red on a laptop."""
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    pytester.makepyfile("import pytest\n@pytest.mark.gpu\ndef test_x():\n    assert False\n")
    pytester.inline_run("-p", "no:cacheprovider", "--strict-markers").assertoutcome(skipped=1)


@pytest.mark.parametrize("marker", ["gpu", "slow", "engine"])
def test_markers_are_registered(pytestconfig, marker):
    """If this fails, authors cannot run with --strict-markers."""
    assert any(line.startswith(f"{marker}:") for line in pytestconfig.getini("markers"))


def test_loading_the_plugin_is_light():
    """If this fails, every pytest run in the environment imports torch."""
    code = "import xcfg_testkit.fixtures, sys; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
