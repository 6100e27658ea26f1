"""The rules that hold, and the severity of each case downstream, as sentences."""

from __future__ import annotations

from collections.abc import Iterator

from xcfg.schema.rules import Findings, Severity


def level_sentence(rules: Findings) -> str:
    """Return the level at which to stop, why, and what to do there."""
    action = rules.level.action
    return f"{rules.level.level or 'no level'}: {rules.level.text} {action[:1].upper()}{action[1:]}."


def sentences(rules: Findings) -> Iterator[str]:
    """Yield every rule that holds, then the cases by severity, then what the series lack."""
    yield from (f"{item.rule}: {item.text}" for item in rules.held)
    yield from (f"severity {at}: {severity(item)}" for at, item in enumerate(rules.severity, start=1))
    yield from rules.remarks


def severity(item: Severity) -> str:
    """Return one sentence on a metric of a case."""
    size = "" if item.effect is None else f", {item.effect:.3g} standard deviations for the worse"
    word = "worse than A0" if item.worse else "not worse than A0"
    tested = f"Wilcoxon p {item.p:.3g}, by Holm {item.adjusted:.3g}"
    return f"{item.metric} of {item.case} is {word}: shift {item.shift:.4g}{size}; {tested}. No status changes for it."
