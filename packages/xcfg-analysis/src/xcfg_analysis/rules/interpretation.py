"""The five interpretation rules of an ablation: each gives one written conclusion."""

from __future__ import annotations

from xcfg.schema.rules import Conclusion, Severity

from xcfg_analysis.cube.rows import Row
from xcfg_analysis.rules.downstream import Series, collapse
from xcfg_analysis.rules.points import Outcome, Points

NO_PROFILE = "the run has no cases in which one class alone differs; `xcfg run --profile A0-A5` makes them"


def interpret(
    points: Points, series: Series | None = None, severity: tuple[Severity, ...] = ()
) -> tuple[Conclusion, ...]:
    """Return the conclusions of rules 1 to 5."""
    return (
        aligned_fails(points),
        single_suffices(points),
        interaction(points),
        sensitive(points, severity),
        clean_and_collapses(points, series),
    )


def aligned_fails(points: Points) -> Conclusion:
    """Rule 1: if the fully aligned reference fails, this is no cross-config mismatch yet."""
    outcome = points.outcome(points.aligned)
    if points.aligned is None or outcome is Outcome.UNMEASURED:
        return _conclusion(1, None, "The fully aligned reference was not measured.", points.aligned)
    if outcome is Outcome.PASSES:
        return _conclusion(1, False, "The fully aligned reference passes: the base scoring path holds.", points.aligned)
    text = (
        "The fully aligned reference fails: not a mismatch of configurations yet. First debug the scoring path, masks, "
        "tokenizer, positions, checkpoint identity and the implementation."
    )
    return _conclusion(1, True, text, points.aligned)


def single_suffices(points: Points) -> Conclusion:
    """Rule 2: a class that fails alone is sufficient to create the drift."""
    failing = {of: row for of, row in points.singles.items() if points.outcome(row) is Outcome.FAILS}
    if points.outcome(points.aligned) is Outcome.FAILS:
        return _conclusion(2, None, "The aligned reference fails as well, so no class can be told from the base path.")
    if failing:
        named = ", ".join(f"{of} (max |d| {_max(row):.4g})" for of, row in failing.items())
        text = f"Sufficient alone under this workload: {named}. Dominant source candidates, not proven root causes."
        return _conclusion(2, True, text, *failing.values())
    unknown = [of for of, row in points.singles.items() if points.outcome(row) is Outcome.UNMEASURED]
    unknown += [name for name in points.absent if "+" not in name]
    if not points.profiles or unknown:
        return _conclusion(2, None, f"Not measured alone: {', '.join(unknown)}." if unknown else _sentence(NO_PROFILE))
    return _conclusion(2, False, "No class of differences fails alone.", *points.singles.values())


def interaction(points: Points) -> Conclusion:
    """Rule 3: every class passes alone and the whole fails: an interaction; the smallest failing pair is named."""
    single = single_suffices(points)
    production = points.outcome(points.production)
    if single.holds is None or production is Outcome.UNMEASURED:
        reason = single.text if single.holds is None else "The production point was not measured."
        return _conclusion(3, None, reason)
    failing = {pair: row for pair, row in points.pairs.items() if points.outcome(row) is Outcome.FAILS}
    if single.holds or (production is Outcome.PASSES and not failing):
        reason = "a class fails alone" if single.holds else "neither production nor a pair fails"
        return _conclusion(3, False, f"No interaction has to be assumed: {reason}.", points.production)
    if failing:
        (pair, row) = min(failing.items(), key=lambda item: (len(item[1].delta), item[0]))
        text = f"Every class passes alone: an interaction. The smallest failing pair is {pair[0]} + {pair[1]}."
        return _conclusion(3, True, text, row, points.production)
    lacking = [name for name in points.absent if "+" in name]
    lacking += [" + ".join(p) for p, row in points.pairs.items() if points.outcome(row) is Outcome.UNMEASURED]
    if lacking:
        more = f"Not measured: {', '.join(lacking)}; run --profile A4 before one subsystem is blamed."
    else:
        more = "No pair of classes fails: more than two classes are involved, or the layout of the batch."
    return _conclusion(
        3, True, f"Every class passes alone and production fails: an interaction. {more}", points.production
    )


def sensitive(points: Points, severity: tuple[Severity, ...]) -> Conclusion:
    """Rule 4: a class within the contract whose downstream effect is materially worse."""
    if not severity:
        return _conclusion(4, None, "No downstream series of several cases was given.")
    names = {name: row for of, row in points.singles.items() for name in (_profile(of), row.label, row.case_id)}
    names |= {row.label: row for row in points.cases if len(row.delta) == 1}
    found = [
        (item, names[item.case])
        for item in severity
        if item.worse and item.case in names and points.outcome(names[item.case]) is Outcome.PASSES
    ]
    if not found:
        return _conclusion(4, False, "No class that passes the contract is worse downstream.")
    told = ", ".join(f"{item.case} ({item.metric}, adjusted p {item.adjusted:.3g})" for item, _ in found)
    text = f"Behaviourally sensitive although within the contract: {told}. The status stays what it is."
    return _conclusion(4, True, text, *(row for _, row in found))


def clean_and_collapses(points: Points, series: Series | None) -> Conclusion:
    """Rule 5: alignment is clean and training still collapses: more likely algorithm, reward, data, KL control."""
    outcome = points.outcome(points.production)
    if series is None or outcome is Outcome.UNMEASURED:
        lacking = "No downstream series was given." if series is None else "The production point was not measured."
        return _conclusion(5, None, lacking)
    fallen = collapse(series.of_production())
    if fallen is None:
        return _conclusion(5, None, "The downstream series has no reward, or too few steps, to tell a collapse.")
    if outcome is Outcome.PASSES and fallen:
        text = (
            f"Pre-update alignment is clean and the reward collapses after step {fallen.step}: more likely "
            "algorithmic, reward-related, data-related, or KL control than numerical drift."
        )
        return _conclusion(5, True, text, points.production)
    reason = "alignment is not clean" if outcome is Outcome.FAILS else "the reward does not collapse"
    return _conclusion(5, False, f"Does not apply: {reason}.", points.production)


def _profile(of: str) -> str:
    return {"arithmetic": "A1", "reduction": "A2", "representation": "A3"}[of]


def _max(row: Row) -> float:
    return row.edges[row.verdict_edge].max_abs or 0.0


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + "."


def _conclusion(number: int, holds: bool | None, text: str, *rows: Row | None) -> Conclusion:
    ids = tuple(dict.fromkeys(row.case_id for row in rows if row is not None))
    return Conclusion(rule=f"interpretation {number}", holds=holds, text=text, evidence=ids)
