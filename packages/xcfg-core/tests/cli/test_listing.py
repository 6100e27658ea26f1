"""`plugins`, `knobs`, `ops`, `schema`: documents match their published schemas, text is readable."""

from __future__ import annotations

import json

import msgspec
import pytest
from xcfg.cli.cmd_schema import documents

PROVIDES = ["knobs", "operators", "renderers", "runtimes"]


def document(call, *words, kinds=()):
    code, out, err = call(*words, "--json", kinds=kinds)
    assert (code, err) == (0, ""), (out, err)
    return json.loads(out)


def decodes(found, name):
    version, kind = documents()[name]
    assert found["schema_version"] == version
    again = json.loads(msgspec.json.encode(msgspec.convert(found, kind)))
    assert again == found  # no field that the published type does not have


def test_plugins_list_is_exactly_the_published_document(call):
    found = document(call, "plugins", "list", kinds=("good", "raises_on_import"))
    assert set(found) == {"schema_version", "plugins"}
    entries = {entry["name"]: entry for entry in found["plugins"]}
    for entry in entries.values():
        assert set(entry) == {"name", "distribution", "version", "status", "reason", "provides"}
        assert sorted(entry["provides"]) == PROVIDES
        assert entry["status"] in {"active", "blocked", "conflict", "incompatible", "broken"}
    assert found["plugins"][0]["name"] == "core"
    assert entries["kit-good"] == {
        "name": "kit-good",
        "distribution": "kit-good",
        "version": "1.0",
        "status": "active",
        "reason": "planned: runtime kit-later (its adapter is not written); "
        "planned: command kit-later (it is not written); "
        "runtime kit-engine needs xcfg-kit-engine>=2 | xcfg-kit-engine-cpu>=2 (not installed): "
        "pip install 'kit-good[engine]'",
        "provides": {
            "knobs": ["kit.switch"],
            "operators": ["kit_operation/kit.backend"],
            "runtimes": ["kit-runtime", "kit-engine"],
            "renderers": ["kit-text"],
        },
    }
    assert entries["kit-raises"] == {
        "name": "kit-raises",
        "distribution": "kit-raises",
        "version": "1.0",
        "status": "broken",
        "reason": "kit_raises cannot be loaded: ValueError: several lines of trouble",
        "provides": {noun: [] for noun in PROVIDES},
    }
    decodes(found, "plugins")


def test_plugins_list_as_text_says_what_is_missing(call):
    code, out, _ = call("plugins", "list", kinds=("good", "missing_module"))
    assert code == 0
    assert out.splitlines()[0].split("  ")[0] == "plugin"
    good = next(line for line in out.splitlines() if line.startswith("kit-good"))
    assert "planned: runtime kit-later" in good
    assert "1 knob" in good
    assert "broken" in next(line for line in out.splitlines() if line.startswith("kit-missing"))


def test_plugins_show_lists_everything(call):
    found = document(call, "plugins", "show", "kit-good", kinds=("good",))
    decodes(found, "plugin")
    assert found["offers"]["commands"] == ["kit-hello", "kit-lost", "kit-exit"]
    code, out, _ = call("plugins", "show", "KIT_GOOD", kinds=("good",))
    assert code == 0
    assert "kit_operation/kit.backend" in out


def test_plugins_check_passes_with_blocked_ones(call):
    code, _, err = call("plugins", "check", kinds=("raises_on_import",))
    assert code == 2
    assert "kit-raises is broken: kit_raises cannot be loaded" in err
    code, out, _ = call("plugins", "check", "--json", "--no-plugin", "*", kinds=("raises_on_import",))
    assert code == 0
    decodes(json.loads(out), "plugins")


def test_knobs(call):
    found = document(call, "knobs", "list", kinds=("good",))
    decodes(found, "knobs")
    lines = {line["knob"]["name"]: line for line in found["knobs"]}
    assert list(lines) == sorted(lines)
    assert lines["batch.size"]["plugin"] == "core"
    assert lines["kit.switch"]["distribution"] == "kit-good"
    one = document(call, "knobs", "show", "kit.switch")
    decodes(one, "knobs")
    assert one["knobs"] == [lines["kit.switch"]]
    _, out, _ = call("knobs", "show", "kit.switch")
    for text in ("kit-good 1.0", "a, b", "first = a", "not alignable", "request"):
        assert text in out
    _, out, _ = call("knobs", "list")
    assert out.splitlines()[0].split() == ["knob", "lifecycle", "side", "plugin", "default", "values"]


def test_knobs_list_says_the_default_or_that_the_baseline_needs_a_value(call):
    """Failing means that nobody learns before MISSING_BASELINE_VALUE which knobs have no default."""
    _, out, _ = call("knobs", "list", kinds=("good",))
    rows = {line.split()[0]: line for line in out.splitlines() if line}
    assert "  8  " in rows["batch.size"] and "needs baseline" not in rows["batch.size"]
    assert "needs baseline" in rows["kit.switch"]
    assert "gives the value in its baseline" in out.splitlines()[-1]
    assert "none: the baseline names a value" in call("knobs", "show", "kit.switch")[1]


def test_knobs_show_refuses_an_unknown_path_with_the_nearest(call):
    code, _, err = call("knobs", "show", "batch.sise")
    assert code == 2
    assert "'batch.size'" in err


def test_ops_list_and_show(call):
    found = document(call, "ops", "list", kinds=("good",))
    decodes(found, "operators")
    assert "kit.backend" in [line["operator"]["backend_id"] for line in found["operators"]]
    for name in ("kit.backend", "kit", "kit_operation/kit.backend"):
        shown = document(call, "ops", "show", name)
        decodes(shown, "operators")
        assert [line["operator"]["backend_id"] for line in shown["operators"]] == ["kit.backend"]
    _, out, _ = call("ops", "show", "kit")
    assert "kit_good:build" in out
    code, _, err = call("ops", "show", "kit.backends")
    assert code == 2
    assert "'kit.backend'" in err


def test_ops_list_without_any(call):
    code, out, _ = call("ops", "list", "--no-plugin", "*")
    assert code == 0
    assert "no active plugin provides an operator backend" in out


@pytest.mark.parametrize(("asked", "ok"), [("kit.backend", True), ("production", True), ("kit", True)])
def test_ops_resolve_prints_every_decision(call, asked, ok):
    words = (
        "ops",
        "resolve",
        "kit_operation",
        "--side",
        "training",
        "--runtime",
        "kit-runtime",
        "--backend",
        asked,
    )
    found = document(call, *words, kinds=("good",))
    decodes(found, "operator_resolution")
    assert found["ok"] is ok
    assert found["binding"]["backend_id"] == "kit.backend"
    assert found["trace"]
    _, out, _ = call(*words)
    assert f"kit_operation on training: {asked} is kit.backend" in out


def test_ops_resolve_of_a_refused_backend_exits_2_with_the_trace(call):
    words = (
        "ops",
        "resolve",
        "kit_operation",
        "--side",
        "training",
        "--runtime",
        "kit-runtime",
        "--backend",
        "kit",
    )
    code, out, _ = call(*words, "--dtype", "float8_e4m3fn", "--json", kinds=("good",))
    assert code == 2
    found = json.loads(out)
    decodes(found, "operator_resolution")
    assert (found["ok"], found["binding"]) == (False, None)
    assert [step["check"] for step in found["trace"] if not step["ok"]] == ["dtype"]
    _, out, _ = call(*words, "--dtype", "float8_e4m3fn")
    assert "kit is refused" in out


def test_ops_resolve_refuses_what_the_runtime_does_not_inject(call):
    """Failing means that a backend is called usable which the engine will never be handed."""
    words = ("ops", "resolve", "kit_operation", "--side", "training", "--runtime", "external", "--backend")
    code, out, _ = call(*words, "kit", "--json", kinds=("good",))
    found = json.loads(out)
    decodes(found, "operator_resolution")
    assert (code, found["ok"], found["binding"]) == (2, False, None)
    (refused,) = [step for step in found["trace"] if not step["ok"]]
    assert refused["check"] == "injection" and "'external' does not inject kit_operation" in refused["detail"]
    assert len(found["trace"]) > 1, "the other decisions are still shown"
    code, out, _ = call(*words, "native")
    assert code == 0 and "what the engine runs by itself" in out
    code, _, err = call(*("kit_operatoin" if word == "kit_operation" else word for word in words), "native")
    assert code == 2 and "Did you mean 'kit_operation'?" in err


@pytest.mark.parametrize("runtime", ["kit-later", "kit-engine", "nowhere"])
def test_ops_resolve_refuses_a_runtime_that_cannot_be_used(call, runtime):
    words = (
        "ops",
        "resolve",
        "kit_operation",
        "--side",
        "training",
        "--runtime",
        runtime,
        "--backend",
        "kit",
    )
    code, _, err = call(*words, kinds=("good",))
    assert code == 2
    assert runtime in err


def test_schema_lists_and_prints_each(call):
    listed = document(call, "schema")
    decodes(listed, "schemas")
    assert set(listed["schemas"]) == set(documents())
    for name, version in listed["schemas"].items():
        code, out, _ = call("schema", name)
        found = json.loads(out)
        definition = found["$defs"][found["$ref"].rpartition("/")[2]]
        assert code == 0
        assert found == document(call, "schema", version or name)
        if version:
            assert definition["properties"]["schema_version"] == {"const": version}
    code, out, _ = call("schema")
    assert "cross_config.experiment_config.v2" in out


def test_schema_of_an_experiment_refuses_unknown_fields(call):
    found = document(call, "schema", "experiment.v1")
    definition = found["$defs"]["ExperimentV1"]
    assert definition["additionalProperties"] is False
    assert "baseline" in definition["required"]


def test_schema_of_nothing(call):
    code, _, err = call("schema", "experimnt.v1")
    assert code == 2
    assert "'experiment.v1'" in err


def test_text_tables_carry_no_control_characters():
    from xcfg.cli._output import fields, table

    assert table(("a", "b"), [("x\x1b[31m", "y\n")]) == "a       b\nx [31m  y"
    assert fields([("name", "a\tb"), ("empty", "")]) == "name  a b"


@pytest.mark.parametrize(
    ("bounds", "text"),
    [
        ({}, "finite number"),
        ({"minimum": 0.0}, "finite number from 0"),
        ({"maximum": -0.5}, "finite number to -0.5"),
        ({"minimum": 1e-6, "maximum": 2.0}, "finite number from 1e-06 to 2"),
    ],
)
def test_a_range_of_floats_in_words(bounds, text):
    from xcfg.cli.cmd_knobs import domain
    from xcfg.schema.knobs import FloatRange

    assert domain(FloatRange(**bounds)) == text


def test_the_schema_of_knobs_has_the_range_of_floats(call):
    shape = document(call, "schema", "knobs")["$defs"]["FloatRange"]
    assert shape["properties"]["kind"] == {"enum": ["float"]}
