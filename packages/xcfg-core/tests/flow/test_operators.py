"""Operators that nobody provides are one and the same error of `plan` and `run`, at the place in the file.

Failing means that a misspelt backend passes `xcfg plan` and ends a run that has started, or is found nowhere.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from xcfg.config.load import parse_experiment
from xcfg.errors import UnknownNameError
from xcfg.flow.operators import check_operators
from xcfg.flow.options import RunOptions
from xcfg.flow.plan import plan
from xcfg.flow.run import run
from xcfg.plugin.manager import PluginManager
from xcfg.schema.codec import read_strict
from xcfg.schema.operators import OperatorBackendDescriptor

KIT = Path(__file__).parents[1] / "plugin" / "data" / "good"


@pytest.fixture
def kit(monkeypatch) -> PluginManager:
    """Core and one plugin: the operation kit_operation with the backend kit.backend, alias kit."""
    monkeypatch.syspath_prepend(KIT)
    return PluginManager.load(path=[str(KIT)], environ={})


@pytest.fixture
def document(golden):
    """document(**fields): an experiment v2 as plain JSON that asks for no operator."""

    def make(**fields):
        base = read_strict(golden("experiment_v1")) | {"schema_version": "cross_config.experiment_config.v2"}
        baseline = base["baseline"] | {"logp": {"backend": "native"}}
        return base | {"operators": {}, "baseline": baseline} | fields

    return make


def refusal(document, manager, **more) -> UnknownNameError:
    with pytest.raises(UnknownNameError) as error:
        check_operators(parse_experiment(document, source="x.json", base_dir="."), manager, **more)
    return error.value


AXIS = {"path": "operators.kit_operation.rollout", "values": ["kit", "kit.bakend"]}
PLACES = {
    "$.operators.kit_operation.training": {"operators": {"kit_operation": {"training": "kit.bakend"}}},
    "$.fixed.operators.kit_operation.training": {"fixed": {"operators.kit_operation.training": "kit.bakend"}},
    "$.interventions[0].values[1]": {"interventions": [AXIS]},
}


@pytest.mark.parametrize("place", PLACES)
def test_an_unknown_backend_is_named_with_its_place(place, document, kit):
    error = refusal(document(**PLACES[place]), kit)
    assert error.message.startswith(f"x.json: {place}: no active plugin provides the backend 'kit.bakend'")
    assert "Did you mean 'kit.backend'?" in error.hint
    assert "Available: deterministic, kit, kit.backend, native, production, reference." in error.hint
    assert error.exit_code == 2


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"operators": {"kit_operatoin": {"rollout": "native"}}}, "$.operators.kit_operatoin"),
        ({"interventions": [AXIS | {"path": "operators.kit_operatoin.rollout"}]}, "$.interventions[0].path"),
    ],
)
def test_a_misspelt_operation_is_named_with_its_place(fields, place, document, kit):
    error = refusal(document(**fields), kit)
    assert error.message == f"x.json: {place}: no active plugin knows the operation 'kit_operatoin'"
    assert "Did you mean 'kit_operation'?" in error.hint and "Available: kit_operation, selected_logprob." in error.hint


def test_logp_backend_is_a_backend_of_selected_logprob(document, kit):
    baseline = document()["baseline"] | {"logp": {"backend": "nobodys"}}
    error = refusal(document(baseline=baseline), kit)
    assert error.message.startswith("x.json: $.baseline.logp.backend: no active plugin provides the backend 'nobodys'")
    assert "The package 'xcfg-ops-logp' would provide backends." in error.hint
    axis = {"path": "logp.backend", "values": ["default", "nobodys"]}
    assert "$.interventions[0].values[1]" in refusal(document(interventions=[axis]), kit).message


def test_an_option_that_a_backend_does_not_have_is_named_with_its_place(document, kit):
    choice = {"backend": "kit", "options": {"chunk": 3}}
    error = refusal(document(operators={"kit_operation": {"rollout": choice}}), kit)
    assert "$.operators.kit_operation.rollout.options.chunk" in error.message and "not declared" in error.message


def test_a_smoke_backend_is_known_and_refused_under_another_runtime(document, kit):
    """Failing means that a smoke operator is one of every runtime, or that `plan` refuses what cpu-smoke may run."""
    smoke = OperatorBackendDescriptor(
        operation="kit_operation",
        backend_id="kit.smoke",
        summary="",
        factory="kit_good:build",
        smoke_only=True,
        runtimes=("kit-smoke",),
    )
    offered = SimpleNamespace(record=smoke, distribution="kit", version="1")
    manager = SimpleNamespace(operator_backends=lambda: (*kit.operator_backends(), offered), runtimes=kit.runtimes)
    asked = document(operators={"kit_operation": {"training": "kit.smoke"}})
    read = parse_experiment(asked, source="x.json", base_dir=".")
    check_operators(read, manager)
    check_operators(read, manager, runtimes={"rollout": "torch", "training": "kit-smoke"})
    error = refusal(asked, manager, runtimes={"rollout": "kit-smoke", "training": "torch"})
    assert error.message.startswith("x.json: $.operators.kit_operation.training: 'kit.smoke' is a smoke backend")
    assert "only with the runtime 'kit-smoke'" in error.hint


def test_policies_and_what_exists_are_accepted(document, kit):
    asked = {"kit_operation": {"rollout": "kit", "training": "production"}, "attention": {"rollout": "native"}}
    check_operators(parse_experiment(document(operators=asked), source="x.json", base_dir="."), kit)


def test_plan_and_run_say_the_same_and_nothing_is_written(document, kit, tmp_path):
    file = tmp_path / "x.json"
    file.write_text(json.dumps(document(**PLACES["$.operators.kit_operation.training"])))
    told = []
    for journey in (lambda: plan(file, kit), lambda: run(file, kit, RunOptions(output_root=tmp_path / "runs"))):
        with pytest.raises(UnknownNameError) as error:
            journey()
        told.append(str(error.value))
    assert told[0] == told[1] and not (tmp_path / "runs").exists()
