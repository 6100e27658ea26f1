"""`xcfg doctor` where only core is installed, and what it answers to wrong input."""

from __future__ import annotations

import json
import re

import msgspec
import pytest
from xcfg.cli.cmd_schema import documents
from xcfg.schema.doctor import DoctorSummary

CORE_ONLY = """
import os, sys
os.environ["XCFG_DISABLE_PLUGINS"] = "*"
class Without:
    def __init__(self, finder):
        self.finder = finder
    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in {blocked!r} else self.finder.find_spec(name, path, target)
    def __getattr__(self, name):
        return getattr(self.finder, name)
sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]
from xcfg.cli.main import main
sys.exit(main({words!r}))
"""
"""Run xcfg where these packages cannot be found, as in an environment that lacks them."""
ENGINES = ("torch", "vllm", "megatron", "transformers", "numpy", "yaml", "safetensors")


def core_only(process, *words):
    return process("-c", CORE_ONLY.format(blocked=ENGINES, words=list(words)))


def test_the_blocker_blocks(process):
    """Failing means that the tests below prove nothing."""
    program = CORE_ONLY.partition("from xcfg")[0].format(blocked=ENGINES)
    done = process("-c", program + "import importlib.util as u; print([u.find_spec(n) for n in ('torch', 'numpy')])")
    assert done.stdout == "[None, None]\n"


def test_core_alone_says_that_nothing_is_usable(process):
    """Failing means that doctor needs what it is there to miss, or calls an installation without engines usable."""
    done = core_only(process, "doctor", "--json")
    assert (done.returncode, done.stderr) == (2, "")
    found = json.loads(done.stdout)
    assert found["schema_version"] == documents()["doctor"][0] == "xcfg.doctor.v1"
    assert found["exit_code"] == 2 and found["arguments"] is None
    assert found["machine"]["torch"] == ""
    assert json.loads(msgspec.json.encode(msgspec.convert(found, DoctorSummary))) == found
    assert [item["name"] for item in found["runtimes"] if item["engines"]] == []


def test_core_alone_as_text(process):
    done = core_only(process, "doctor")
    assert (done.returncode, done.stderr) == (2, "")
    assert re.search(r"^torch +not installed$", done.stdout, re.MULTILINE)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("doctor", "--rollout", "vllm"), "no installed plugin provides the runtime 'vllm'"),
        (("doctor", "--rollout-args", ""), "no installed plugin provides the runtime 'vllm'"),
        (
            ("doctor", "--training-args", "", "--training", "nobody"),
            "no installed plugin provides the runtime 'nobody'",
        ),
        (("doctor", "--rollout-args", "--a 'b"), "--rollout-args: the command line cannot be split"),
        (("doctor", "--rollout-args", "@nothing.json"), "cannot be read"),
        (("doctor", "--platform", "tpu"), "no platform 'tpu' is known"),
        (("doctor", "extra"), "unexpected extra argument"),
    ],
)
def test_wrong_input_ends_with_2_and_one_document(process, words, told):
    """Failing means that a script cannot tell bad input from traps, or that people see a traceback."""
    done = core_only(process, *words, "--json")
    found = json.loads(done.stdout)
    assert (done.returncode, found["exit_code"]) == (2, 2)
    assert told in found["message"]


def test_a_runtime_whose_engine_is_missing_is_not_usable(call):
    code, out, _ = call("doctor", "--rollout", "kit-engine", "--json", kinds=("good",))
    found = {item["name"]: item for item in json.loads(out)["runtimes"]}["kit-engine"]
    assert code == 2
    assert (found["usable"], found["cure"]) == (False, "pip install 'kit-good[engine]'")
    assert found["missing"] == ["xcfg-kit-engine>=2 | xcfg-kit-engine-cpu>=2 (not installed)"]


@pytest.mark.parametrize(
    ("side", "told"), [("rollout", "has no rollout side"), ("training", "has no table of arguments")]
)
def test_a_runtime_that_cannot_be_asked_says_why(call, side, told):
    words = (f"--{side}", "kit-runtime", f"--{side}-args", "--a 1")
    code, out, _ = call("doctor", *words, "--json", kinds=("good",))
    assert code == 2
    assert told in json.loads(out)["message"]
