"""The isolation validator: a case may differ from the baseline in what it declares, and in nothing else."""

from __future__ import annotations

from collections.abc import Collection

from xcfg.errors import ConfigError
from xcfg.planning.effective import read_case
from xcfg.planning.normalise import SIDES, same, same_choice
from xcfg.plugin.builtin.knobs import LOGP_BACKEND
from xcfg.schema.plan import ExperimentCase

_SHORTCUT = "operators.selected_logprob."


def changes(baseline: ExperimentCase, case: ExperimentCase) -> list[str]:
    """Return what differs, as `path@side`, `operators.<op>.<side>` or `runtime_options.<side>`."""
    first, second = read_case(baseline), read_case(case)
    found = []
    for path in sorted({*first.knobs, *second.knobs}):
        before, after = first.knobs.get(path), second.knobs.get(path)
        for index, side in enumerate(SIDES):
            if before is None or after is None or not same(before[index], after[index]):
                found.append(f"{path}@{side}")
    for operation in sorted({*first.operators, *second.operators}):
        for side in SIDES:
            old = first.operators.get(operation, {}).get(side)
            new = second.operators.get(operation, {}).get(side)
            if not same_choice(old, new):
                found.append(f"operators.{operation}.{side}")
    for side in SIDES:
        old_options, new_options = baseline.runtime_options.get(side), case.runtime_options.get(side)
        if not same_choice(old_options, new_options):
            found.append(f"runtime_options.{side}")
    return found


def undeclared_changes(baseline: ExperimentCase, case: ExperimentCase, declared: Collection[str]) -> list[str]:
    """Return the changes that no declared key covers; a path covers both of its sides."""
    return [change for change in changes(baseline, case) if not _covered(change, declared)]


def check_isolation(
    baseline: ExperimentCase, case: ExperimentCase, declared: Collection[str], *, source: str = ""
) -> None:
    """Raise ConfigError when `case` changes what it does not declare, or lacks what its delta says."""
    extra = undeclared_changes(baseline, case, declared)
    if extra:
        raise ConfigError(
            f"UNDECLARED_CHANGE: the case {case.label!r} also changes {', '.join(map(repr, extra))}",
            source=source,
            hint="Declare each change as an intervention, so that an effect has one cause.",
        )
    effective = read_case(case)
    for key, value in case.delta.items():
        held = effective.value(key) or ()
        wanted = value["backend"] if isinstance(value, dict) else value
        # Where a path and one of its sides are both declared, the side has the last word.
        if not any(same(item, wanted) for item in held):
            raise ConfigError(
                f"MISSING_CHANGE: the case {case.label!r} declares {key!r} = {wanted!r} and holds {held!r}",
                source=source,
                hint="Declare each value once.",
            )


def _covered(change: str, declared: Collection[str]) -> bool:
    if change in declared or change.partition("@")[0] in declared:
        return True
    side = change.removeprefix(_SHORTCUT)
    return side != change and (LOGP_BACKEND in declared or f"{LOGP_BACKEND}@{side}" in declared)
