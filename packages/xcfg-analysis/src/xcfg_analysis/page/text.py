"""The page of a run for a person who is tired: what happened, why, what it was not, what to change, what to do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from xcfg.schema.analysis import Analysis, Cause, SignatureFinding
from xcfg.schema.minimization import Minimization
from xcfg.schema.names import Assessment, Status
from xcfg.schema.result import BUDGET_PAGE, AssessmentResult
from xcfg.schema.rules import Level

from xcfg_analysis.effects.effect import NOT_COMPARABLE
from xcfg_analysis.minimize.objective import Outcome
from xcfg_analysis.page.causes import EXCESS
from xcfg_analysis.page.smallest import EXPLAINED, REDUCTION, VERDICT
from xcfg_analysis.page.tables import case_table, floor_table, gradient_table, interaction_lines, swap_lines
from xcfg_analysis.rules.ladder import ACTIONS
from xcfg_analysis.rules.sentences import sentences
from xcfg_analysis.show import fixed_lines, number, wrapped

LISTS = (
    ("exonerated", "exercised, and without an effect on the gap"),
    ("unresolved", "moved its side; no change of the gap was shown"),
    ("below_resolution", "no larger than what repeating the baseline gives"),
    ("not_exercised", "the run gave it nothing to do, or nobody knows"),
    ("not_measured", "did not run as asked, or in other surroundings"),
    ("not_comparable", "ran, and cannot be held against the baseline"),
)
PRODUCTION = "production"
ENDED = {Status.INVALID_IDENTITY.value: "identity differs", Status.INVALID_ARTIFACT.value: "no log probabilities"}
OPEN = Outcome.UNRESOLVED.value
MEANINGS = {
    EXPLAINED: "honest rounding explains what is left of the gap",
    VERDICT: "no token is over the threshold",
    REDUCTION: "nine tenths of mean d^2 go away",
}


def text(found: Analysis) -> str:
    """Return the page for a terminal."""
    blocks = (
        _head(found),
        _section("LIKELY CAUSE", _causes(found)),
        _section("WHAT IT LOOKS LIKE", _looks(found)),
        _section("WHAT IT IS NOT", _lists(found)),
        _section("SMALLEST CHANGE", _smallest(found)),
        _section("RULES THAT HOLD", () if found.rules is None else _bullets(tuple(sentences(found.rules)))),
        _section("EVIDENCE", _evidence(found)),
        _section("NEXT", _next(found)),
    )
    return "\n\n".join(block for block in blocks if block)


def _section(name: str, lines: Iterator[str] | Sequence[str]) -> str:
    told = list(lines)
    return "\n".join([name, *told]) if told else ""


def _head(found: Analysis) -> str:
    judged = "not judged" if found.threshold is None else f"{found.mismatches} over {number(found.threshold)} nats"
    lines = [
        *wrapped("", f"{found.experiment_id}: {found.recognised}", indent=0),
        f"VERDICT    {found.status}; {found.tokens} tokens in {found.sequences} sequences, {judged}",
        f"ASSESSMENT {found.assessment}{_ratios(found.assessed)}",
        *wrapped("", found.conclusion, indent=0),
    ]
    return "\n".join(lines)


def _ratios(assessed: AssessmentResult | None) -> str:
    if assessed is None or assessed.r_gap is None:
        return f": {assessed.reason}" if assessed is not None and assessed.reason else ""
    named = (("training", assessed.r_training), ("rollout", assessed.r_rollout), ("gap", assessed.r_gap))
    shown = ", ".join(f"{name} {item.value:.2f} ({item.low:.2f} to {item.high:.2f})" for name, item in named if item)
    return f"; error over rounding budget ({BUDGET_PAGE}): {shown}"


def _causes(found: Analysis) -> Iterator[str]:
    """Yield what narrows the gap as causes and what opens it as effects; in a run of profiles it is the other way."""
    makes = "widens" if PRODUCTION in found.evidence else "narrows"
    named = [cause for cause in found.causes if cause.direction == makes and cause.diagnosis]
    if not named:
        yield from wrapped("", _no_cause(found))
    for cause in named:
        yield from _cause("CAUSE", cause)
    for item in found.outside:
        yield from wrapped("OUTSIDE", f"the declared knobs: {item}")
    for item in found.findings:
        yield from wrapped("FINDING", item)
    for cause in found.causes:
        if cause not in named:
            yield from _cause("EFFECT", cause)


def _no_cause(found: Analysis) -> str:
    if found.assessment == Assessment.EXPLAINED_BY_PRECISION.value:
        return "none: honest rounding explains the gap, and nothing is to blame"
    if found.status == Status.PASS.value:
        return "none is looked for: production is within the threshold"
    return "none found: no change that was run is shown to narrow the gap"


def _cause(word: str, cause: Cause) -> Iterator[str]:
    said = cause.diagnosis or f"{cause.direction} the gap"
    yield from wrapped(word, f"{cause.knob} ({cause.side or 'either side'}): {said}")
    yield from wrapped("", f"what: {cause.says}", indent=13)
    yield from wrapped("", f"evidence: {', '.join(cause.evidence)}", indent=13)
    if word == "CAUSE":
        yield from wrapped("", f"refuted by: {cause.refuted_by}", indent=13)


def _looks(found: Analysis) -> Iterator[str]:
    for item in found.signatures:
        yield from wrapped("SIGNATURE", f"{item.name}: {_sized(item)}")
        yield from wrapped("", f"what: {item.says}; {item.where}", indent=13)
        yield from wrapped("", f"fix: {item.fix}", indent=13)
        yield from wrapped("", f"refuted by: {item.refuted_by}", indent=13)
    if found.fitted_tokens and not found.signatures:
        yield f"  no known fault: no signature fits the {found.fitted_tokens} tokens"
    if found.insufficient_data:
        names = "; ".join(f"{item.name} ({item.reason})" for item in found.insufficient_data)
        stored = "; `xcfg run --columns` stores columns of scores" if found.experiment_id else ""
        yield from wrapped("", f"insufficient data: {names}{stored}")


def _sized(item: SignatureFinding) -> str:
    share = "" if item.explained is None else f", {item.explained:.0%} of the squared drift"
    effect = item.effect
    size = (
        "" if effect is None else f", {number(effect.value)} nats rms ({number(effect.low)} to {number(effect.high)})"
    )
    return f"confidence {item.confidence:.4f}{share}{size}"


def _lists(found: Analysis) -> Iterator[str]:
    for name, meaning in LISTS:
        knobs = getattr(found, name)
        if knobs:
            named = [f"{knob}{_ended(found, knob) if name == 'not_comparable' else ''}" for knob in knobs]
            yield from wrapped("", f"{name.replace('_', ' ')} ({meaning}): {', '.join(named)}")
    if found.not_varied:
        meaning = "the sides differ in it, and no case changes it"
        yield from wrapped("", f"not varied ({meaning}): {', '.join(found.not_varied)}")
    for item in fixed_lines(found.not_alignable):
        yield from wrapped("", item)


def _ended(found: Analysis, knob: str) -> str:
    """Return the statuses that the cases of a knob ended with, which say what is not the same."""
    cases = [item for item in found.effects if item.knobs == (knob,) and item.outcome == NOT_COMPARABLE]
    ended = dict.fromkeys(item.reason.partition(":")[0] for item in cases)
    return f" ({', '.join(f'{name}: {ENDED[name]}' if name in ENDED else name for name in ended)})" if ended else ""


def _smallest(found: Analysis) -> Iterator[str]:
    """Yield what is enough by the objective that the case calls for, then what the threshold alone says, then to do."""
    if found.rules is None:
        return
    level, ran = found.rules.level, found.minimization
    if ran is not None:
        yield from _enough(ran, found)
    other = ran is not None and ran.objective != VERDICT
    every = " By this every single token has to lie under it." if other and level.level not in ("", "L0", "L1") else ""
    yield from wrapped("threshold" if other else "level", f"{level.level or 'none'}: {level.text}{every}")
    yield from wrapped("do", _to_do(found, level, ran))
    if ran is not None and ran.sets:
        yield from wrapped("claim", ran.claim)


def _to_do(found: Analysis, level: Level, ran: Minimization | None) -> str:
    """Return what to change, by name where a set of changes is known to be enough."""
    if ran is not None and ran.sets and ran.sets[0].align:
        own = f" ({ran.level or 'no level'} for {ran.objective!r})" if ran.level != level.level else ""
        return f"set {' + '.join(ran.sets[0].align)}: {ACTIONS[ran.level]}{own}"
    if found.outside and not found.causes and found.assessment in EXCESS:
        return "look outside the declared knobs first, where the excess comes from; none that was tried narrows it"
    return level.action


def _enough(ran: Minimization, found: Analysis) -> Iterator[str]:
    yield from wrapped("asked", f"{ran.objective!r}: {MEANINGS[ran.objective]}")
    yield from wrapped("enough", f"{ran.says}{_doubt(ran, found)}")
    for item in ran.sets[1:]:
        yield from wrapped("or", " + ".join(item.align))
    if ran.sets:
        yield from wrapped("may differ", ", ".join(ran.left_enabled) or "nothing else that is declared")
    if not ran.complete:
        yield from wrapped("open", f"other sets may be enough as well: {_open(ran)}")


def _doubt(ran: Minimization, found: Analysis) -> str:
    """Return what weakens the claim for the first set: what changed with it, or that its gap is not shown to."""
    case = next((item for item in ran.trials if ran.sets and item.align == ran.sets[0].align), None)
    effect = next((item for item in found.effects if case is not None and item.case_id == case.case_id), None)
    told = f" With it changed {', '.join(case.coupled)}." if case is not None and case.coupled else ""
    if effect is not None and effect.direction != "narrows":
        told += " No change of its gap is shown, so it may be enough by luck."
    return told


def _open(ran: Minimization) -> str:
    unresolved = [f"{' + '.join(item.align)} ({item.reason})" for item in ran.trials if item.outcome == OPEN]
    missing = 2 ** len(ran.atoms) - len(ran.trials)
    told = [f"{missing} of {2 ** len(ran.atoms)} were not run"] if missing else []
    return "; ".join([*told, *(f"UNRESOLVED is {item}" for item in unresolved)])


def _bullets(items: Sequence[str]) -> Iterator[str]:
    for item in items:
        yield from wrapped("", item)


def _evidence(found: Analysis) -> Iterator[str]:
    for block in (
        case_table(found.effects, "A0" if PRODUCTION in found.evidence else "the baseline"),
        interaction_lines(found.interactions),
        swap_lines(found.swaps),
        gradient_table(found.gradients),
        floor_table(found.floors),
    ):
        if block:
            yield block


def _next(found: Analysis) -> Iterator[str]:
    if found.next_step:
        yield from wrapped("", found.next_step)
    if found.next_command:
        yield f"  {found.next_command}"
