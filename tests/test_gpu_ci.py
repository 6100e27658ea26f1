"""The GPU slice of hosted CI: who starts it and where, that its commands exist, and which code it ends with."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest
import yaml
from xcfg.cli.main import Session, cli, main

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / ".ci" / "gpu"
WORKFLOW = ROOT / ".github" / "workflows" / "gpu.yml"
STAND_IN = """#!/usr/bin/env bash
printf '%s\\n' "$*" >>"$FAKE_LOG"
[[ $1 == run ]] && echo '{}'
for ((at = 1; at < $#; at++)); do
  case ${!at} in --output | --junit | --summary | --metrics | --write-baseline) next=$((at + 1)); : >"${!next}" ;; esac
done
name=FAKE_${1^^}
exit "${!name:-0}"
"""


@pytest.fixture(scope="module")
def workflow():
    """The workflow as GitHub reads it; YAML takes the key `on` for true."""
    document = yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))
    return {("on" if key is True else key): value for key, value in document.items()}


@pytest.fixture(scope="module")
def job(workflow):
    (found,) = workflow["jobs"].values()
    return found


def test_it_runs_for_a_label_or_by_hand_on_a_gpu_runner_only(workflow, job):
    """Failing means that code nobody looked at reaches a runner of one's own, or that every push asks for a GPU."""
    assert set(workflow["on"]) == {"workflow_dispatch", "pull_request"}
    assert workflow["on"]["pull_request"] == {"types": ["labeled"]}
    assert job["if"] == "github.event_name == 'workflow_dispatch' || github.event.label.name == 'gpu'"
    assert {"self-hosted", "gpu"} <= set(job["runs-on"])
    assert workflow["permissions"] == {"contents": "read"} and job["timeout-minutes"] > 0


def test_it_calls_the_script_that_people_call_and_keeps_what_that_writes(job):
    """Failing means that a red job cannot be told apart or reproduced, or that its cube is lost."""
    steps = re.search(r'^STEPS="([^"]+)"$', SCRIPT.read_text(), re.MULTILINE)[1].split()
    called = [step["run"].split() for step in job["steps"] if "run" in step]
    assert [words[:2] for words in called] == [[".ci/gpu", step] for step in steps]
    assert {words[2] for words in called if words[1] != "install"} == {"build/gpu"}
    (kept,) = [step for step in job["steps"] if step.get("uses", "").startswith("actions/upload-artifact@")]
    assert (kept["if"], kept["with"]["path"]) == ("always()", "build/gpu")
    for name in ("kernels", "slice"):
        (step,) = [step for step in job["steps"] if f" {name} " in step.get("run", "")]
        assert step["if"] == "success() || failure()", f"{name}: measured although a check before it failed"


def commands() -> list[list[str]]:
    """Every `xcfg ...` command line of the script, variables filled in."""
    text = SCRIPT.read_text().replace("\\\n", " ").replace('${held[@]+"${held[@]}"}', "--baseline base.json")
    lines = [line.strip() for line in text.splitlines() if line.strip().startswith("xcfg ")]
    return [
        shlex.split(re.sub(r">.*", "", line).replace("$OUT", "out").replace("$DEVICES", "cuda:0")) for line in lines
    ]


@pytest.mark.parametrize("words", commands(), ids=lambda words: words[1])
def test_its_commands_are_commands_of_xcfg(words, monkeypatch):
    """Failing means that the job ends with a usage error on the day somebody needs it."""
    monkeypatch.chdir(ROOT)
    with click.Context(cli, obj=Session.from_arguments(words[1:])) as context:
        command = cli.get_command(context, words[1])
        assert command is not None, words
        command.make_context(words[1], words[2:], parent=context)


def test_the_script_asks_for_every_part_of_the_path():
    assert [words[1] for words in commands()] == ["run", "cube", "analyze", "verify", "gate"]


def test_the_slice_is_one_of_the_experiment_that_a_cpu_runs(capsys):
    """Failing means that GPUs get a second, handwritten matrix, or a slice without production or without a class."""
    file = ROOT / "examples/s2/drift.json"
    (run,) = [words for words in commands() if words[1] == "run"]
    assert (run[2], run[run.index("--slice") + 1]) == (str(file.relative_to(ROOT)), "gpu")
    assert main(["plan", str(file), "--slice", "gpu", "--json"]) == 0
    planned = {case["label"] for case in json.loads(capsys.readouterr().out)["cases"]}
    assert planned > {"baseline", "rollout.kv_cache_dtype=auto", "training.bias_activation_fusion=false"}
    assert any("tensor_parallel_size" in label for label in planned)


@pytest.mark.parametrize(
    ("gate", "verify", "code", "title"),
    [
        (0, 0, 0, None),
        (1, 0, 1, "numerical"),
        (3, 0, 3, "not measured"),
        (4, 0, 4, "engine"),
        (2, 0, 2, "usage"),
        (0, 3, 3, "not measured"),
        (1, 3, 1, "numerical"),
    ],
)
def test_the_kinds_of_failure_are_told_apart(gate, verify, code, title, tmp_path):
    """Failing means that a job is green on damaged evidence, or that drift and a dead engine look the same."""
    home = tmp_path / "env" / "bin"
    home.mkdir(parents=True)
    (home / "xcfg").write_text(STAND_IN)
    (home / "xcfg").chmod(0o755)
    out, log = tmp_path / "out", tmp_path / "log"
    environment = {
        "PATH": os.environ["PATH"],
        "FAKE_LOG": str(log),
        "FAKE_RUN": "1",
        "FAKE_GATE": str(gate),
        "FAKE_VERIFY": str(verify),
        "XCFG_GPU_ENV": str(home.parent),
        "GITHUB_ACTIONS": "true",
    }
    words = [str(SCRIPT), "slice", str(out)]
    done = subprocess.run(words, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == code, done.stderr
    assert re.findall(r"^::error title=([^:]+)::", done.stdout, re.MULTILINE) == ([title] if title else [])
    assert {"run.json", "cube.parquet", "junit.xml", "gate.md", "gate.json", "known.json"} <= set(os.listdir(out))
    assert [line.split()[0] for line in log.read_text().splitlines()] == ["run", "cube", "analyze", "verify", "gate"]


PYTHON = """#!/usr/bin/env bash
[[ $1 == -c ]] && exit "$FAKE_NO_CARD"
printf '%s\\n' "$*" >>"$FAKE_LOG"
exit "$FAKE_TESTS"
"""


@pytest.mark.parametrize(
    ("no_card", "tests", "code", "title"),
    [
        (0, 0, 0, None),
        (0, 1, 1, "numerical"),
        (0, 5, 3, "not measured"),
        (0, 4, 2, "usage"),
        (1, 0, 3, "not measured"),
    ],
)
def test_kernels_that_were_not_tested_are_no_pass(no_card, tests, code, title, tmp_path):
    """Failing means that a runner without a card, where every test is skipped, is green."""
    home, log = tmp_path / "env" / "bin", tmp_path / "log"
    home.mkdir(parents=True)
    for name, text in (("xcfg", STAND_IN), ("python", PYTHON)):
        (home / name).write_text(text)
        (home / name).chmod(0o755)
    environment = {
        "PATH": os.environ["PATH"],
        "FAKE_LOG": str(log),
        "FAKE_NO_CARD": str(no_card),
        "FAKE_TESTS": str(tests),
        "XCFG_GPU_ENV": str(home.parent),
        "GITHUB_ACTIONS": "true",
    }
    words = [str(SCRIPT), "kernels", str(tmp_path / "out")]
    done = subprocess.run(words, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == code, done.stderr
    assert re.findall(r"^::error title=([^:]+)::", done.stdout, re.MULTILINE) == ([title] if title else [])
    called = log.read_text().split() if log.exists() else []
    assert bool(called) == (not no_card)
    if called:
        assert called[called.index("-m", 2) + 1] == "gpu" and called[-1] == "packages/xcfg-ops-logp"


def test_the_kit_on_cuda_is_among_the_tests_of_the_kernels():
    """Failing means that `-m gpu` leaves out what the kit holds a backend to on a card."""
    words = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-m", "gpu", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*words, "packages/xcfg-ops-logp"], cwd=ROOT, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stdout[-2000:]
    for name in (
        "test_kit.py::TestTree::test_batch_invariant[bfloat16-cuda]",
        "test_kernels_gpu.py::TestTiles::test_values",
    ):
        assert name in done.stdout, name


@pytest.mark.parametrize("words", [[], ["slice"], ["nothing", "out"], ["-h"]])
def test_a_wrong_call_says_what_there_is(words, tmp_path):
    done = subprocess.run([str(SCRIPT), *words], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2 and "steps: install conformance kernels slice" in done.stderr


def test_without_its_environment_it_says_how_to_get_one(tmp_path):
    environment = {"PATH": os.environ["PATH"], "XCFG_GPU_ENV": str(tmp_path / "none")}
    words = [str(SCRIPT), "slice", str(tmp_path / "out")]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2 and ".ci/gpu install" in done.stderr
