"""The baseline of an experiment: knob values complete and canonical, operators on both sides."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from xcfg.errors import ConfigError
from xcfg.planning.effective import Effective, Pair
from xcfg.planning.normalise import OPERATORS, SIDES, Catalogue, as_choice, normalise_choice, split_key
from xcfg.plugin.builtin.knobs import LOGP_BACKEND, V1_PATHS
from xcfg.schema._base import Value
from xcfg.schema.experiment import V1, Experiment
from xcfg.schema.operators import OperatorChoice

SELECTED_LOGPROB = "selected_logprob"
NATIVE = OperatorChoice(backend="native")


@dataclass(frozen=True)
class Baseline:
    """effective: what the baseline asks for. plain: each path's own value, without sides.

    explicit: the sides whose `selected_logprob` the file maps itself; logp.backend does not derive those.
    """

    effective: Effective
    plain: dict[str, Value]
    explicit: frozenset[str]


def mentioned(experiment: Experiment, catalogue: Catalogue) -> set[str]:
    """Return the knob paths that cases of this experiment hold: the ten of v1 and every other that it names.

    A knob that the file does not name is asked of no engine and is in no id, so plugins change no id.
    """
    paths = {path for path in V1_PATHS if path in catalogue.knobs}
    for key in (*experiment.baseline, *experiment.fixed):
        if not key.startswith(OPERATORS):
            paths.add(split_key(key)[0])
    paths.update(axis.path for axis in experiment.interventions if not axis.path.startswith(OPERATORS))
    return paths


def build_baseline(experiment: Experiment, catalogue: Catalogue, paths: Collection[str]) -> Baseline:
    """Return the baseline over `paths`. Raises ConfigError or UnknownNameError with the JSON path."""
    written = _normalise(experiment.baseline, "$.baseline", catalogue)
    fixed = _normalise(experiment.fixed, "$.fixed", catalogue)
    written = {key: value for key, value in written.items() if split_key(key)[0] not in fixed} | fixed
    mapping = _mapping(experiment)
    choices = mapping[SELECTED_LOGPROB]
    explicit = frozenset(choices)
    if LOGP_BACKEND not in written and "rollout" in choices and experiment.schema_version != V1:
        written[LOGP_BACKEND] = choices["rollout"].backend
    plain = {path: _plain(path, written, experiment, catalogue) for path in sorted(paths)}
    knobs: dict[str, Pair] = {
        path: (written.get(f"{path}@rollout", value), written.get(f"{path}@training", value))
        for path, value in plain.items()
    }
    if explicit:
        _check_logp(experiment, catalogue, knobs[LOGP_BACKEND], choices)
    derived = {side: OperatorChoice(backend=str(value)) for side, value in zip(SIDES, knobs[LOGP_BACKEND], strict=True)}
    operators = {
        operation: {side: sides.get(side, derived[side] if operation == SELECTED_LOGPROB else NATIVE) for side in SIDES}
        for operation, sides in sorted(mapping.items())
    }
    return Baseline(Effective(knobs=knobs, operators=operators), plain, explicit)


def _normalise(values: dict[str, Any], where: str, catalogue: Catalogue) -> dict[str, Value]:
    written: dict[str, Value] = {}
    for key in sorted(values):
        if key.startswith(OPERATORS) and where == "$.fixed":
            continue
        knob, side = catalogue.keyed(key, f"{where}.{key}")
        written[knob.name if side is None else f"{knob.name}@{side}"] = catalogue.value(
            knob, values[key], f"{where}.{key}"
        )
    return written


def _plain(path: str, written: dict[str, Value], experiment: Experiment, catalogue: Catalogue) -> Value:
    if path in written:
        return written[path]
    knob = catalogue.knob(path, f"$.baseline.{path}")
    if experiment.schema_version == V1 or knob.default is None:
        why = "a v1 baseline names all ten knobs" if path in V1_PATHS else "the knob has no default"
        raise ConfigError(
            f"MISSING_BASELINE_VALUE: the baseline has no {path!r}, and {why}",
            source=catalogue.source,
            path=f"$.baseline.{path}",
            hint=f"Add it to the baseline. {knob.summary}",
        )
    return catalogue.value(knob, knob.default, f"$.baseline.{path}")


def _mapping(experiment: Experiment) -> dict[str, dict[str, OperatorChoice]]:
    """Return the explicit mapping: `operators`, overridden by `fixed`; no side for what is only varied."""
    mapping: dict[str, dict[str, OperatorChoice]] = {SELECTED_LOGPROB: {}}
    mapping |= {
        operation: {side: normalise_choice(choice) for side, choice in sides.items()}
        for operation, sides in experiment.operators.items()
    }
    for key, value in sorted(experiment.fixed.items()):
        if key.startswith(OPERATORS):
            _, operation, side = key.split(".")
            mapping.setdefault(operation, {})[side] = as_choice(value)
    for axis in experiment.interventions:
        if axis.path.startswith(OPERATORS):
            mapping.setdefault(axis.path.split(".")[1], {})
    return mapping


def _check_logp(experiment: Experiment, catalogue: Catalogue, pair: Pair, choices: dict[str, OperatorChoice]) -> None:
    """Refuse logp.backend where it would say something that the explicit mapping does not do."""
    for index, axis in enumerate(experiment.interventions):
        if axis.path == LOGP_BACKEND:
            raise ConfigError(
                f"{LOGP_BACKEND!r} is varied beside an explicit mapping of {SELECTED_LOGPROB!r}",
                source=catalogue.source,
                path=f"$.interventions[{index}].path",
                hint=f"Remove the mapping, or (v2) vary operators.{SELECTED_LOGPROB}.rollout and .training.",
            )
    for index, entry in enumerate(experiment.align):
        if entry.path == LOGP_BACKEND:
            raise ConfigError(
                f"{LOGP_BACKEND!r} is aligned beside an explicit mapping of {SELECTED_LOGPROB!r}",
                source=catalogue.source,
                path=f"$.align[{index}].path",
                hint=f"Remove the mapping, or vary operators.{SELECTED_LOGPROB}.<side>.",
            )
    # The shortcut names one backend for both sides; where it is one, it stands for the rollout side's.
    one = pair[0] == pair[1]
    for side, held in zip(SIDES, pair, strict=True):
        if side in choices and held != choices[side].backend and not (one and side == "training"):
            raise ConfigError(
                f"{LOGP_BACKEND!r} is {held!r}, but {SELECTED_LOGPROB!r} is mapped to "
                f"{choices[side].backend!r} on the {side} side",
                source=catalogue.source,
                path=f"$.baseline.{LOGP_BACKEND}",
                hint="Make them equal, or (v2) leave logp.backend out of the baseline.",
            )
