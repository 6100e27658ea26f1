from __future__ import annotations

import json
from pathlib import Path

import pytest
from xcfg.config import load_experiment
from xcfg.errors import ConfigError
from xcfg.schema.experiment import Axis, FrozenIdentity, InlineIdentity
from xcfg.schema.operators import OperatorChoice

SCENARIOS = Path(__file__).parents[4] / "examples" / "scenarios"


def test_v1_takes_the_seeds_fields_and_their_defaults(v1, parse):
    experiment = parse(v1)
    assert experiment.baseline["rollout.dtype"] == "bfloat16"
    assert len(experiment.baseline) == 10
    assert (experiment.contract.source, experiment.contract.version, experiment.contract.digest) == (
        "ws1",
        "current",
        "",
    )
    assert experiment.strategy == "one_at_a_time"
    assert experiment.strict_fallback is True
    assert experiment.max_cases == 256
    assert isinstance(experiment.identity, InlineIdentity)
    assert experiment.interventions == (Axis(path="batch.size", values=(1,)),)


def test_nested_and_dotted_baselines_are_one(v1, parse):
    flat = dict(v1, baseline={})
    for group, knobs in v1["baseline"].items():
        for name, value in knobs.items():
            flat["baseline"][f"{group}.{name}"] = value
    assert parse(flat).baseline == parse(v1).baseline


@pytest.mark.parametrize("name", ["s0", "s1", "s2", "s3"])
def test_the_shipped_scenarios_load(name):
    assert load_experiment(SCENARIOS / f"{name}.json").schema_version.endswith("v1")


def test_s0_is_the_smoke_fixture():
    identity = load_experiment(SCENARIOS / "s0.json").identity
    assert isinstance(identity, InlineIdentity)
    assert identity.token_ids == [[11, 12, 13, 21, 22, 23], [31, 32, 33, 41, 42, 43]]
    assert identity.active_mask == [[False] * 3 + [True] * 3] * 2
    assert identity.checkpoint_id == "cpu-smoke:synthetic"


def test_v2_takes_everything(v2, parse, tmp_path):
    (tmp_path / "engine.json").write_text('{"max_num_seqs": 8}')
    v2 |= {
        "identity": {"rollout": {"path": "frozen/r1", "sha256": "0" * 64}},
        "strategy": "product",
        "interventions": [
            {"path": "batch.size", "side": "rollout", "values": [1]},
            {
                "path": "operators.selected_logprob.rollout",
                "values": ["reference", {"backend": "x", "options": {"chunk": 4}}],
            },
        ],
        "operators": {"attention": {"training": {"backend": "reference"}}},
        "align": [{"path": "rollout.dtype", "to": "training"}],
        "fixed": {"rollout": {"enforce_eager": True}, "operators": {"gemm": {"rollout": "tree"}}},
        "constraints": [{"code": "C", "when": {"batch.size": [1]}, "require": {"rollout.dtype": ["bf16"]}}],
        "slices": {"ci": {"batch.size": [8]}},
        "controls": {"repeats": 2},
        "limits": {"max_cases": 4096},
        "runtime_options": {
            "rollout": {"file": "engine.json"},
            "training": {"command_line": "--max-seqs 8 --flag"},
        },
        "requires": ["xcfg-vllm"],
    }
    experiment = parse(v2)
    assert isinstance(experiment.identity, FrozenIdentity)
    assert experiment.interventions[0].key == "batch.size@rollout"
    assert experiment.interventions[1].values == ("reference", {"backend": "x", "options": {"chunk": 4}})
    assert experiment.operators["attention"]["training"] == OperatorChoice(backend="reference")
    assert experiment.fixed["operators.gemm.rollout"] == OperatorChoice(backend="tree")
    assert experiment.runtime_options == {
        "rollout": {"max_num_seqs": 8},
        "training": {"max_seqs": 8, "flag": True},
    }
    assert experiment.controls.repeats == 2
    assert experiment.max_cases == 4096


def test_duplicate_keys_are_refused(v1, write):
    text = json.dumps(v1).replace('"experiment_id": "exp-1"', '"experiment_id": "a", "experiment_id": "b"')
    with pytest.raises(ConfigError, match="experiment_id") as error:
        load_experiment(write(text))
    assert error.value.exit_code == 2


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_non_finite_numbers_are_refused(number, v1, write):
    text = json.dumps(dict(v1, scenario={"x": "@"})).replace('"@"', number)
    with pytest.raises(ConfigError):
        load_experiment(write(text))


@pytest.mark.parametrize("text", ["", "[]", "null", "{", "3", '{"schema_version": }', '"x"'])
def test_what_is_no_object_is_refused(text, write):
    with pytest.raises(ConfigError):
        load_experiment(write(text))


def test_a_missing_file_is_a_config_error(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        load_experiment(tmp_path / "none.json")


@pytest.mark.parametrize("version", [None, 1, "v1", "cross_config.experiment_config.v3", {}, ["x"]])
def test_an_unknown_version_names_both_known_ones(version, v1, parse):
    with pytest.raises(ConfigError) as error:
        parse(dict(v1, schema_version=version))
    assert "experiment_config.v1" in error.value.hint
    assert "experiment_config.v2" in error.value.hint
    assert error.value.path == "$.schema_version"


ID_CASES = ["", ".", "..", ".hidden", "a/b", "a\\b", "a b", "-x", "ä", "a\n", "a\0", "x" * 129, "a:b", "~"]


@pytest.mark.parametrize("name", ID_CASES)
def test_an_unsafe_experiment_id_is_refused(name, v1, parse):
    with pytest.raises(ConfigError) as error:
        parse(dict(v1, experiment_id=name))
    assert error.value.path == "$.experiment_id"


@pytest.mark.parametrize("name", ["a", "A-1_b.c", "x" * 128, "0"])
def test_a_safe_experiment_id_is_kept(name, v1, parse):
    assert parse(dict(v1, experiment_id=name)).experiment_id == name


V2_ONLY = [
    ("align", []),
    ("fixed", {}),
    ("constraints", []),
    ("slices", {}),
    ("controls", {}),
    ("limits", {}),
    ("runtime_options", {}),
    ("requires", []),
]


@pytest.mark.parametrize(("field", "value"), V2_ONLY)
def test_v2_fields_in_v1_are_refused_and_the_hint_says_v2(field, value, v1, parse):
    with pytest.raises(ConfigError, match=f"unknown field '{field}'") as error:
        parse(v1 | {field: value})
    assert "v2" in error.value.hint


def test_an_unknown_field_gets_the_nearest_name(v1, parse):
    with pytest.raises(ConfigError) as error:
        parse(v1 | {"intervention": []})
    assert "'interventions'" in error.value.hint


REFUSED = [
    ("$.strategy", {"strategy": "product"}),
    ("$.strict_fallback", {"strict_fallback": 1}),
    ("$.baseline", {"baseline": []}),
    ("$.baseline.batch.size", {"baseline": {"batch": {"size": None}}}),
    ("$.baseline.batch.size", {"baseline": {"batch": {"size": [1]}}}),
    ("$.baseline.batch.size", {"baseline": {"batch": {"size": 1}, "batch.size": 1}}),
    ("$.baseline.batch", {"baseline": {"batch": {}}}),
    ("$.interventions[0].values[0]", {"interventions": [{"path": "batch.size", "values": [None]}]}),
    ("$.interventions[0].values[0]", {"interventions": [{"path": "batch.size", "values": [[1]]}]}),
    ("$.interventions[0]", {"interventions": [{"path": "batch.size"}]}),
    ("$.interventions[0]", {"interventions": [{"path": "batch.size", "values": [1], "sid": "rollout"}]}),
    ("$.interventions[0].path", {"interventions": [{"path": " ", "values": [1]}]}),
    ("$.pairwise_paths[0]", {"pairwise_paths": [["a"]]}),
    ("$.scenario", {"scenario": []}),
    ("$.scenario_id", {"scenario_id": ""}),
    ("$.operators.selected_logprob", {"operators": {"selected_logprob": {}}}),
    ("$.operators.selected_logprob.reference", {"operators": {"selected_logprob": {"reference": "x"}}}),
    ("$.operators.selected_logprob.rollout", {"operators": {"selected_logprob": {"rollout": 3}}}),
    ("$.operators.selected_logprob.rollout.backend", {"operators": {"selected_logprob": {"rollout": {}}}}),
    (
        "$.operators.selected_logprob.rollout.opts",
        {"operators": {"selected_logprob": {"rollout": {"backend": "x", "opts": {}}}}},
    ),
    ("$.operators.selected_logprob.rollout", {"operators": {"selected_logprob": {"rollout": "a b"}}}),
]


@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize(("path", "change"), REFUSED)
def test_a_malformed_part_is_refused_with_its_path(version, path, change, request, parse):
    document = request.getfixturevalue(version)
    if version == "v2" and change == {"strategy": "product"}:
        change = {"strategy": "all"}
    with pytest.raises(ConfigError) as error:
        parse(document | change)
    assert error.value.path == path
    assert error.value.source == "e.json"
    assert str(error.value).startswith(f"e.json: {path}: ")


V2_REFUSED = [
    ("$.align[0].to", {"align": [{"path": "x", "to": "both"}]}),
    ("$.align[1]", {"align": [{"path": "x", "to": "rollout"}] * 2}),
    ("$.fixed.batch.size", {"fixed": {"batch": {"size": None}}}),
    ("$.fixed.operators.a", {"fixed": {"operators.a": "x"}}),
    ("$.fixed.operators.a.b.c", {"fixed": {"operators.a.b.c": "x"}}),
    ("$.fixed.operators.a.reference", {"fixed": {"operators.a.reference": "x"}}),
    ("$.constraints[0].when", {"constraints": [{"code": "C", "when": {}}]}),
    ("$.constraints[0].when.x", {"constraints": [{"code": "C", "when": {"x": []}}]}),
    ("$.constraints[0].code", {"constraints": [{"code": "", "when": {"x": [1]}}]}),
    ("$.slices.ci.x", {"slices": {"ci": {"x": []}}}),
    ("$.controls.repeats", {"controls": {"repeats": -1}}),
    ("$.controls.repeats", {"controls": {"repeats": True}}),
    ("$.limits.max_cases", {"limits": {"max_cases": 0}}),
    ("$.limits.max_cases", {"limits": {"max_cases": 4097}}),
    ("$.interventions[0].side", {"interventions": [{"path": "batch.size", "values": [1], "side": "left"}]}),
    (
        "$.interventions[0].side",
        {"interventions": [{"path": "operators.a.rollout", "values": ["x"], "side": "rollout"}]},
    ),
    ("$.interventions[0].path", {"interventions": [{"path": "operators.a", "values": ["x"]}]}),
    ("$.interventions[0].path", {"interventions": [{"path": "operators.a.reference", "values": ["x"]}]}),
    ("$.interventions[0].values[0]", {"interventions": [{"path": "operators.a.rollout", "values": [1]}]}),
    ("$.runtime_options.both", {"runtime_options": {"both": {}}}),
    ("$.runtime_options.rollout", {"runtime_options": {"rollout": []}}),
]


@pytest.mark.parametrize(("path", "change"), V2_REFUSED)
def test_a_malformed_v2_part_is_refused_with_its_path(path, change, v2, parse):
    with pytest.raises(ConfigError) as error:
        parse(v2 | change)
    assert error.value.path == path


def test_v1_knows_one_operator_and_says_where_others_are(v1, parse):
    with pytest.raises(ConfigError, match="attention") as error:
        parse(v1 | {"operators": {"attention": {"rollout": "x"}}})
    assert "v2" in error.value.hint


GOOD = {"code": "C", "when": {"a": [1]}}
INSIDE_MAPPINGS = [
    (
        "$.constraints[1].when.rollout.dtype[0]",
        "constraints",
        [GOOD, {"code": "C", "when": {"a": [1], "rollout.dtype": [[]]}}],
    ),
    ("$.slices.ci.batch.size", "slices", {"ok": {"x": [1]}, "ci": {"y": [2], "batch.size": 3}}),
    ("$.slices.ci", "slices", {"ok": {}, "ci": []}),
    ("$.operators.b", "operators", {"a": {"rollout": "x"}, "b": []}),
]


@pytest.mark.parametrize(("path", "field", "value"), INSIDE_MAPPINGS)
def test_a_fault_inside_a_mapping_names_the_very_member(path, field, value, v2, parse):
    with pytest.raises(ConfigError) as error:
        parse(v2 | {field: value})
    assert error.value.path == path
    assert "[...]" not in str(error.value)
    assert error.value.hint


@pytest.mark.parametrize(
    ("field", "value", "hint"),
    [
        ("strategy", "all", "product"),
        ("strict_fallback", "yes", "true or false"),
        ("baseline", [], "object"),
        ("interventions", {}, "list"),
        ("limits", {"max_cases": True}, "whole number"),
        ("scenario_id", 3, "quotes"),
        ("controls", {"repeat": 1}, "correct its name"),
    ],
)
def test_a_wrong_type_says_what_to_write(field, value, hint, v2, parse):
    with pytest.raises(ConfigError) as error:
        parse(v2 | {field: value})
    assert hint in error.value.hint


def test_a_side_in_the_name_of_an_operator_is_shown_where_it_belongs(v2, parse):
    """Failing means that whoever writes the key as `interventions` spell it is told to look for another operator."""
    with pytest.raises(ConfigError, match="holds a side") as refused:
        parse(v2 | {"operators": {"selected_logprob.training": {"backend": "x"}}})
    assert refused.value.hint == 'Write "selected_logprob": {"training": "<backend id>"}.'
