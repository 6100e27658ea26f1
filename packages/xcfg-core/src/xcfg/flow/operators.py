"""What an experiment file asks of operators, held against what is installed: every name, before anything starts.

`xcfg plan` and `xcfg run` call this alike. Whether a backend can serve on the machine, dtype and topology of a case
is another question, which its resolution answers; a case whose backend cannot is UNSUPPORTED.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from xcfg.errors import UnknownNameError, did_you_mean
from xcfg.operators import CatalogEntry, SemanticOperatorCatalog
from xcfg.operators.checks import POLICIES
from xcfg.operators.options import option_faults
from xcfg.planning.normalise import OPERATORS, SIDES, as_choice, split_key
from xcfg.plugin.builtin.knobs import LOGP_BACKEND, POLICY_ALIASES
from xcfg.plugin.known import package_for
from xcfg.plugin.manager import PluginManager
from xcfg.schema.experiment import Axis, Experiment
from xcfg.schema.operators import OperatorChoice

SELECTED_LOGPROB = "selected_logprob"
NAMED_POLICIES = frozenset({*POLICIES, "native"})


class Asked(NamedTuple):
    """One choice as the file has it. operation_at, choice_at: JSON paths of the two names."""

    operation: str
    side: str
    choice: OperatorChoice
    operation_at: str
    choice_at: str


def check_operators(experiment: Experiment, manager: PluginManager, runtimes: Mapping[str, str] | None = None) -> None:
    """Raise UnknownNameError, with the JSON path, for an operation, a backend or an option that nobody provides.

    runtimes: side -> the runtime that will score it; with it, a smoke backend of another runtime is refused too.
    """
    backends = manager.operator_backends()
    everywhere = {name for item in backends for name in item.record.runtimes}
    injected = {name for item in manager.runtimes() for name in item.record.operators}
    catalogues = {
        side: SemanticOperatorCatalog.from_provided(backends, runtimes=(runtimes[side],) if runtimes else everywhere)
        for side in SIDES
    }
    for asked in _asked(experiment):
        catalogue = catalogues[asked.side]
        known = {*catalogue.operations, *injected}
        if asked.operation not in known and not package_for("operator backend", asked.operation):
            told = f"no active plugin knows the operation {asked.operation!r}"
            raise _unknown(experiment, asked.operation_at, told, asked.operation, known)
        if asked.choice.backend in NAMED_POLICIES:
            continue
        entry = catalogue.find(asked.operation, asked.choice.backend)
        if entry is None:
            raise _no_backend(experiment, asked, catalogue)
        _check_options(experiment, asked, entry)


def _asked(experiment: Experiment) -> Iterator[Asked]:
    for operation, sides in experiment.operators.items():
        for side, choice in sides.items():
            at = f"$.operators.{operation}"
            yield Asked(operation, side, as_choice(choice), at, f"{at}.{side}")
    for table, values in (("baseline", experiment.baseline), ("fixed", experiment.fixed)):
        for key, value in values.items():
            at = f"$.{table}.{key}"
            if key.startswith(OPERATORS):
                _, operation, side = key.split(".")
                yield Asked(operation, side, as_choice(value), at, at)
            elif split_key(key)[0] == LOGP_BACKEND:
                yield from _both(value, split_key(key)[1], at)
    for position, axis in enumerate(experiment.interventions):
        yield from _of_axis(axis, f"$.interventions[{position}]")


def _of_axis(axis: Axis, at: str) -> Iterator[Asked]:
    for index, value in enumerate(axis.values):
        where = f"{at}.values[{index}]"
        if axis.path.startswith(OPERATORS):
            _, operation, side = axis.path.split(".")
            yield Asked(operation, side, as_choice(value), f"{at}.path", where)
        elif axis.path == LOGP_BACKEND:
            yield from _both(value, axis.side, where)


def _both(value: object, side: str | None, at: str) -> Iterator[Asked]:
    """Yield logp.backend as what it stands for: the backend of selected_logprob on one side or both."""
    choice = as_choice(POLICY_ALIASES.get(str(value), str(value)))
    for one in SIDES if side is None else (side,):
        yield Asked(SELECTED_LOGPROB, one, choice, at, at)


def _no_backend(experiment: Experiment, asked: Asked, catalogue: SemanticOperatorCatalog) -> UnknownNameError:
    name, operation = asked.choice.backend, asked.operation
    for descriptor in catalogue.withheld:
        if descriptor.operation == operation and name in (descriptor.backend_id, *descriptor.aliases):
            told = f"{name!r} is a smoke backend of {operation!r} and is not provided on the {asked.side} side"
            only = " or ".join(map(repr, descriptor.runtimes)) or "of a test"
            hint = f"It exists only with the runtime {only} and the flag --allow-smoke-operators."
            return UnknownNameError(f"{experiment.source}: {asked.choice_at}: {told}", hint=hint)
    told = f"no active plugin provides the backend {name!r} of {operation!r}"
    names = {*catalogue.by_name.get(operation, {}), *NAMED_POLICIES}
    brought = "" if catalogue.entries(operation) else package_for("operator backend", operation)
    return _unknown(experiment, asked.choice_at, told, name, names, brought)


def _check_options(experiment: Experiment, asked: Asked, entry: CatalogEntry) -> None:
    for name, value in asked.choice.options.items():
        for fault in option_faults(entry.descriptor.options, {name: value}):
            told = f"{entry.descriptor.backend_id!r} of {asked.operation!r}: {fault}"
            hint = f"`xcfg ops show {entry.descriptor.backend_id}` lists its options."
            raise UnknownNameError(f"{experiment.source}: {asked.choice_at}.options.{name}: {told}", hint=hint)


def _unknown(
    experiment: Experiment, at: str, told: str, name: str, names: Collection[str], brought: str = ""
) -> UnknownNameError:
    near = did_you_mean(name, names)
    listed = f"Available: {', '.join(sorted(names))}."
    hints = [
        near if near.startswith("Did") else "",
        listed,
        f"The package {brought!r} would provide backends." if brought else "`xcfg ops list` shows them all.",
    ]
    return UnknownNameError(f"{experiment.source}: {at}: {told}", hint=" ".join(part for part in hints if part))
