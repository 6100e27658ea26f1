"""Select cases of a plan: a named slice, a filter expression, a subset of the axes.

--filter "rollout.dtype==float32 and batch.size in [1, 4]"
--filter "role==case and label==*attention*"
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from xcfg.errors import NothingSelectedError, UnknownNameError, UsageError, did_you_mean
from xcfg.planning.effective import read_case
from xcfg.planning.normalise import OPERATORS, normalise_value, same, show, split_key
from xcfg.plugin.builtin.knobs import POLICY_ALIASES
from xcfg.schema.experiment import Experiment
from xcfg.schema.knobs import KnobDefinition
from xcfg.schema.plan import ExperimentCase, ExperimentPlan, PlanIssue

GLOBS = ("label", "case_id", "role")
_TERM = re.compile(r"\s*(?P<name>[A-Za-z_][\w.@-]*)\s*(?P<op>==|!=|=|\bin\b)\s*")
_VALUE = re.compile(r"""\s*(?:"(?P<double>[^"]*)"|'(?P<single>[^']*)'|(?P<bare>[^\s,\[\]"']+))\s*""")
_AND = re.compile(r"\s*\band\b")
_HELP = "Write path==value, path!=value or path in [a, b], joined by `and`; quote values with spaces."


@dataclass(frozen=True)
class Term:
    """One condition: the case's value of `name` is (or, negated, is not) among `values`."""

    name: str
    values: tuple[Any, ...]
    negated: bool = False


def select_cases(
    plan: ExperimentPlan,
    *,
    experiment: Experiment | None = None,
    knobs: Mapping[str, KnobDefinition] | None = None,
    slice_name: str = "",
    filter_expression: str = "",
    axes: Sequence[str] = (),
) -> tuple[ExperimentCase, ...]:
    """Return the cases of `plan` that satisfy all that is given, in plan order.

    experiment: where the slices are. knobs: for aliases and domains. axes: keep cases that differ from the
    baseline in these keys only (the baseline and its controls among them).
    Raises UsageError for a malformed expression or value, UnknownNameError for a slice, path or axis that
    does not exist, NothingSelectedError when no case is left.
    """
    terms = [*parse_filter(filter_expression), *_slice_terms(experiment, slice_name)]
    checked = [_checked(term, plan, knobs or {}) for term in terms]
    _check_axes(plan, axes)
    chosen = tuple(
        case
        for case in plan.cases
        if all(_holds(term, case) for term in checked) and (not axes or set(case.delta) <= set(axes))
    )
    if not chosen:
        asked = [f"--slice {slice_name}"] * bool(slice_name) + [f"--filter {filter_expression!r}"] * bool(
            filter_expression
        )
        asked += [f"--axis {axis}" for axis in axes]
        raise NothingSelectedError(
            f"no case of {plan.experiment_id!r} is left by {' '.join(asked) or 'the plan'}",
            hint=f"The plan has {len(plan.cases)} cases; `xcfg plan` lists them.",
        )
    return chosen


def slice_issues(
    plan: ExperimentPlan, experiment: Experiment, knobs: Mapping[str, KnobDefinition]
) -> tuple[PlanIssue, ...]:
    """Return which slices of the file could not be run: they are looked at here, not when a night run asks for one."""
    found: list[PlanIssue] = []
    for name in experiment.slices:
        try:
            select_cases(plan, experiment=experiment, knobs=knobs, slice_name=name)
        except NothingSelectedError:
            message = f"no case of the plan belongs to the slice {name!r}"
            found.append(PlanIssue(code="EMPTY_SLICE", message=message, path=f"$.slices.{name}"))
        except UsageError as error:
            message = f"the slice {name!r} cannot be run: {error.message}" + (f". {error.hint}" if error.hint else "")
            found.append(PlanIssue(code="UNUSABLE_SLICE", message=message, path=f"$.slices.{name}"))
    return tuple(found)


def parse_filter(expression: str) -> list[Term]:
    """Return the terms of a filter expression; empty text has none. Raises UsageError."""
    terms: list[Term] = []
    position = 0
    while expression[position:].strip():
        if terms:
            match = _AND.match(expression, position)
            if match is None:
                raise _malformed(expression, position)
            position = match.end()
        match = _TERM.match(expression, position)
        if match is None:
            raise _malformed(expression, position)
        values, position = _values(expression, match.end(), is_list=match["op"] == "in")
        terms.append(Term(match["name"], tuple(values), match["op"] == "!="))
    return terms


def _values(expression: str, position: int, *, is_list: bool) -> tuple[list[Any], int]:
    if not is_list:
        value, position = _value(expression, position)
        return [value], position
    if expression[position : position + 1] != "[":
        raise _malformed(expression, position)
    values: list[Any] = []
    mark = "["
    while mark != "]":
        value, position = _value(expression, position + 1)
        values.append(value)
        mark = expression[position : position + 1]
        if mark not in (",", "]") or not mark:
            raise _malformed(expression, position)
    return values, position + 1


def _value(expression: str, position: int) -> tuple[Any, int]:
    match = _VALUE.match(expression, position)
    if match is None:
        raise _malformed(expression, position)
    bare = match["bare"]
    if bare is None:
        return match["double"] if match["double"] is not None else match["single"], match.end()
    try:
        value = json.loads(bare)
    except ValueError:
        value = bare
    return value, match.end()


def _malformed(expression: str, position: int) -> UsageError:
    return UsageError(f"the filter {expression!r} cannot be read at {expression[position:]!r}", hint=_HELP)


def _slice_terms(experiment: Experiment | None, name: str) -> list[Term]:
    if not name:
        return []
    slices = experiment.slices if experiment else {}
    if name not in slices:
        hint = did_you_mean(name, slices) or "The experiment declares no slices."
        raise UnknownNameError(f"the experiment has no slice {name!r}", hint=hint)
    return [Term(path, values) for path, values in sorted(slices[name].items())]


def _checked(term: Term, plan: ExperimentPlan, knobs: Mapping[str, KnobDefinition]) -> Term:
    """Return the term with canonical values; what could never match is an error, not silence."""
    if term.name in GLOBS:
        return Term(term.name, tuple(show(value) for value in term.values), term.negated)
    path, side = split_key(term.name)
    operators = [
        f"{OPERATORS}{operation}.{side_name}"
        for operation, sides in plan.cases[0].operators.items()
        for side_name in sides
    ]
    if term.name in operators:
        return Term(term.name, tuple(POLICY_ALIASES.get(show(v), show(v)) for v in term.values), term.negated)
    known = [key for key in plan.cases[0].knobs if "@" not in key]
    if path not in known or side not in (None, "rollout", "training"):
        hint = did_you_mean(term.name, [*known, *operators, *GLOBS])
        raise UnknownNameError(f"the plan has no path {term.name!r}", hint=hint)
    if path not in knobs:
        return term
    values = tuple(normalise_value(knobs[path], value, where=term.name) for value in term.values)
    return Term(term.name, values, term.negated)


def _holds(term: Term, case: ExperimentCase) -> bool:
    if term.name in GLOBS:
        held = getattr(case, term.name)
        return any(fnmatchcase(held, pattern) for pattern in term.values) != term.negated
    values = read_case(case).value(term.name) or ()
    return all(any(same(value, item) for item in term.values) for value in values) != term.negated


def _check_axes(plan: ExperimentPlan, axes: Iterable[str]) -> None:
    known = {key for case in plan.cases for key in case.delta}
    for axis in axes:
        if axis not in known:
            hint = did_you_mean(axis, known) or "The plan varies nothing."
            raise UnknownNameError(f"no case varies {axis!r}", hint=hint)
