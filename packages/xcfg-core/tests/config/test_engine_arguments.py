"""Engine arguments as people paste them: what is read, under which name, and what is refused without a traceback."""

from __future__ import annotations

import json
import os

import pytest
from xcfg.config.engine_arguments import MAX_SETTINGS, MAX_TEXT, flag_name, read_arguments
from xcfg.errors import ConfigError


def read(text):
    return read_arguments(text, source="--rollout-args")


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("", {}),
        ("--dtype bfloat16", {"dtype": "bfloat16"}),
        ("--dtype=bfloat16", {"dtype": "bfloat16"}),
        ("--kv_cache_dtype fp8", {"kv-cache-dtype": "fp8"}),
        ("--enforce-eager", {"enforce-eager": True}),
        ("--no-enable-prefix-caching", {"enable-prefix-caching": False}),
        ("--enforce-eager=false", {"enforce-eager": False}),
        ("--top-k -1 --temperature 0.7", {"top-k": -1, "temperature": 0.7}),
        ('--hf-overrides \'{"rope_scaling": {"type": "x"}}\'', {"hf-overrides.rope-scaling.type": "x"}),
        ('--compilation-config \'{"custom_ops": ["none"]}\'', {"compilation-config.custom-ops": ["none"]}),
        ("--cuda-graph-sizes 1 2 4", {"cuda-graph-sizes": [1, 2, 4]}),
        ("VLLM_USE_V2_MODEL_RUNNER=1 --dtype half", {"VLLM_USE_V2_MODEL_RUNNER": "1", "dtype": "half"}),
        ("--tail ''", {"tail": ""}),
        (f"--seed {2**53} --low {2**53 - 1}", {"seed": str(2**53), "low": 2**53 - 1}),
    ],
)
def test_a_command_line_is_flags_and_values(text, settings):
    """Failing means that doctor judges another value than the engine would get."""
    assert read(text).settings == settings


def test_a_pasted_command_keeps_its_words():
    """Failing means that a word vanishes unseen, or that a model name is taken for a value."""
    given = read("VLLM_X=a vllm serve org/model --dtype half")
    assert given.words == ("vllm", "serve", "org/model")
    assert given.settings == {"VLLM_X": "a", "dtype": "half"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("torchrun --nproc_per_node=8 train.py", ("torchrun", "--nproc_per_node=8", "train.py")),
        ("A=1 torchrun --nproc_per_node 8 x/train.py", ("torchrun", "--nproc_per_node", "8", "x/train.py")),
        ("/bin/python3.12 -u -m a.server", ("/bin/python3.12", "-u", "-m", "a.server")),
        ("torchrun --module a.train", ("torchrun", "--module", "a.train")),
        ("python train.py", ("python", "train.py")),
    ],
)
def test_the_options_of_a_launcher_are_not_the_engines(text, words):
    """Failing means that a pasted training command is refused, or that an option of the launcher is judged."""
    given = read(f"{text} --bf16 --config x.py")
    assert given.words == words
    assert {name: value for name, value in given.settings.items() if name != "A"} == {"bf16": True, "config": "x.py"}


def test_only_a_launcher_takes_options_away():
    """Failing means that flags before a file name vanish from the judgement."""
    assert read("vllm serve m --dtype half --middleware x.py").settings == {"dtype": "half", "middleware": "x.py"}
    assert read("torchrun --bf16").settings == {"bf16": True}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("--dtype 'bf16", "cannot be split"),
        ("'", "cannot be split"),
        ("--dtype half -tp 2", "no long option"),
        ("--dtype half --dtype float", "stands twice"),
        ("--kv-cache-dtype fp8 --kv_cache_dtype auto", "stands twice"),
        ("A=1 A=2", "stands twice"),
        ('--x \'{"a": ' * 2001, "cannot be split"),
        ("--x " + "1" * (MAX_TEXT + 1), "no command line"),
        ("--x '{" + ", ".join(f'"k{index}": 1' for index in range(MAX_SETTINGS + 1)) + "}'", "more than"),
        ("--x '" + '{"a":' * 80 + "1" + "}" * 80 + "'", "nested too deeply"),
        ("--x \udcff", "not valid Unicode"),
        ("@", "no file name"),
        ("@nothing.json", "cannot be read"),
        ("@nothing.toml", "neither .json"),
        ("@a\0b.json", "no file name"),
    ],
)
def test_what_cannot_be_read_is_said(text, told):
    """Failing means that bad input is guessed at, or ends in a traceback."""
    with pytest.raises(ConfigError, match=told):
        read(text)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("{", "not JSON"),
        ("[1]", "not a mapping"),
        ('{"a": 1, "a": 2}', "stands twice"),
        ('{"a": NaN}', "not JSON"),
        ('{"kv_cache_dtype": 1, "kv-cache-dtype": 2}', "stands twice"),
        ('{"a": "\\ud800"}', "lone surrogate"),
    ],
)
def test_a_json_file_is_strict(tmp_path, content, told):
    """Failing means that one of two values of a key is dropped without a word."""
    file = tmp_path / "engine.json"
    file.write_text(content)
    with pytest.raises(ConfigError, match=told):
        read(f"@{file}")


def test_a_json_file_is_flattened(tmp_path):
    file = tmp_path / "engine.json"
    file.write_text(json.dumps({"rollout": {"tensor_parallel_size": 2}, "empty": {}, "atol": 1, "none": None}))
    settings = {"rollout.tensor-parallel-size": 2, "empty": {}, "atol": 1, "none": None}
    assert read(f"@{file}").settings == settings


def test_a_folder_and_a_pipe_are_no_files(tmp_path):
    folder, pipe = tmp_path / "a.json", tmp_path / "b.json"
    folder.mkdir()
    os.mkfifo(pipe)
    for name in (folder, pipe):
        with pytest.raises(ConfigError):
            read(f"@{name}")


def test_a_yaml_file_is_plain_values(tmp_path):
    """Failing means that a user's own YAML is read as another configuration."""
    pytest.importorskip("yaml")
    file = tmp_path / "engine.yaml"
    file.write_text("dtype: bfloat16\nrollout:\n  enforce_eager: false\nday: 2026-01-02\nbig: .inf\n1: one\n")
    assert read(f"@{file}").settings == {
        "dtype": "bfloat16",
        "rollout.enforce-eager": False,
        "day": "2026-01-02",
        "big": "inf",
        "1": "one",
    }


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("a: &x [1]\nb: *x\n", "alias"),
        ("a: 1\na: 2\n", "stands twice"),
        ("1: a\n'1': b\n", "same text|stands twice"),
        ("a: !!python/object/apply:os.system ['true']\n", "not YAML"),
        ("a: [1\n", "not YAML"),
        ("- 1\n", "not a mapping"),
        ("a: 2026-13-45\n", "not YAML"),
        ("[" * 5000, "not YAML|nested"),
    ],
)
def test_yaml_makes_no_objects_and_hides_nothing(tmp_path, content, told):
    """Failing means that a file runs code, grows without bound, or loses a key."""
    pytest.importorskip("yaml")
    file = tmp_path / "engine.yml"
    file.write_text(content)
    with pytest.raises(ConfigError, match=told):
        read(f"@{file}")


def test_variables_keep_their_underscores():
    assert flag_name("VLLM_BATCH_INVARIANT") == "VLLM_BATCH_INVARIANT"
    assert flag_name("--kv_cache_dtype") == "kv-cache-dtype"
