from __future__ import annotations

import pytest
from xcfg.config.options import parse_command_line
from xcfg.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("--dtype bfloat16 --max-num-seqs 8", {"dtype": "bfloat16", "max_num_seqs": 8}),
        ("--enforce-eager", {"enforce_eager": True}),
        ("--no-enable-prefix-caching --seed=-1", {"enable_prefix_caching": False, "seed": -1}),
        ("--gpu-memory-utilization 0.5", {"gpu_memory_utilization": 0.5}),
        ("--sizes 1 2 4 --last", {"sizes": [1, 2, 4], "last": True}),
        ("--override '{\"a\": [1]}'", {"override": {"a": [1]}}),
        ("--name 'two words'", {"name": "two words"}),
        ("--empty=", {"empty": ""}),
        ("--bias -0.5", {"bias": -0.5}),
        ("--value NaN", {"value": "NaN"}),
        ("--flag True --other false", {"flag": True, "other": False}),
        ("", {}),
    ],
)
def test_a_command_line_becomes_arguments(text, options):
    assert parse_command_line(text, source="e", path="$") == options


@pytest.mark.parametrize("text", ["vllm serve", "-tp 2", "--a 1 --a 2", "--x 'open", "--", "--1", "--no-a --a"])
def test_what_is_no_command_line_is_refused(text):
    with pytest.raises(ConfigError):
        parse_command_line(text, source="e", path="$")


def options(v2, side):
    return v2 | {"runtime_options": {"rollout": side}}


def test_inline_arguments_are_verbatim(v2, parse):
    assert parse(options(v2, {"a": {"b": [None, 1.5]}})).runtime_options == {"rollout": {"a": {"b": [None, 1.5]}}}


@pytest.mark.parametrize("key", ["file", "from"])
def test_a_json_file_lies_beside_the_experiment(key, v2, parse, tmp_path):
    (tmp_path / "x.json").write_text('{"seed": 1}')
    assert parse(options(v2, {key: "x.json"})).runtime_options["rollout"] == {"seed": 1}


@pytest.mark.parametrize("key", ["command_line", "from"])
def test_a_command_line_stands_for_its_arguments(key, v2, parse):
    assert parse(options(v2, {key: "--seed 1"})).runtime_options["rollout"] == {"seed": 1}


def test_the_same_arguments_are_the_same_however_they_are_given(v2, parse, tmp_path):
    (tmp_path / "x.json").write_text('{"max_num_seqs": 8}')
    forms = [{"max_num_seqs": 8}, {"file": "x.json"}, {"command_line": "--max-num-seqs 8"}]
    assert len({str(parse(options(v2, form)).runtime_options) for form in forms}) == 1


def test_yaml_is_refused_and_the_hint_says_json(v2, parse):
    with pytest.raises(ConfigError, match="YAML") as error:
        parse(options(v2, {"file": "engine.yaml"}))
    assert "JSON" in error.value.hint


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("none.json", None),
        ("list.json", "[]"),
        ("bad.json", "{"),
        ("twice.json", '{"a": 1, "a": 2}'),
        ("nan.json", '{"a": NaN}'),
        ("tol.json", '{"a": {"atol": 1}}'),
        (".", None),
        ("/dev/zero", None),
        ("a\0b", None),
    ],
)
def test_a_file_is_as_strict_as_the_experiment(name, content, v2, parse, tmp_path):
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(ConfigError):
        parse(options(v2, {"file": name}))


def test_a_tolerance_cannot_hide_in_a_command_line(v2, parse):
    with pytest.raises(ConfigError, match="atol"):
        parse(options(v2, {"command_line": "--atol 1"}))


@pytest.mark.parametrize("side", [{"file": "x.json", "seed": 1}, {"file": 3}, {"command_line": ""}, {"from": {}}])
def test_a_reference_stands_alone(side, v2, parse):
    with pytest.raises(ConfigError, match="stands alone"):
        parse(options(v2, side))
