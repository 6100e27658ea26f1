"""The conclusion of a run in a few sentences that can be read alone."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from xcfg.schema.analysis import Cause, SignatureFinding
from xcfg.schema.names import Assessment

from xcfg_analysis.cube.rows import Row
from xcfg_analysis.page.causes import Said, is_excess
from xcfg_analysis.rules.points import MEASURED

SHOWN = 3
EXPLAINED = Assessment.EXPLAINED_BY_PRECISION.value


def conclusion(
    judged: Row,
    said: Said,
    *,
    family: int,
    outside: Sequence[str],
    tested: int = 0,
    looks: Sequence[SignatureFinding] = (),
    profiles: bool = False,
) -> str:
    """Return what a run says. judged: the row whose verdict it is; family: tests of the gap, in `tested` cases.

    profiles: the cases put production's values into the aligned reference, so what widens the gap is what makes it.
    """
    return " ".join(_sentences(judged, said, (family, tested), outside, looks, profiles))


def _sentences(
    judged: Row,
    said: Said,
    tests: tuple[int, int],
    outside: Sequence[str],
    looks: Sequence[SignatureFinding],
    profiles: bool,
) -> Iterator[str]:
    word = judged.assessment.assessment if judged.assessment is not None else Assessment.NO_REFERENCE.value
    yield f"{judged.status}{_over(judged)}, {word}."
    if judged.status not in MEASURED and judged.threshold is not None and judged.reason:
        yield f"{judged.reason[0].upper()}{judged.reason[1:]}."
    narrowing = [cause for cause in said.causes if cause.direction == "narrows"]
    widening = [cause for cause in said.causes if cause.direction != "narrows"]
    if word == EXPLAINED:
        yield "Honest rounding explains the gap."
    if narrowing:
        if word == EXPLAINED or profiles:
            yield f"What narrows it: {_named(narrowing)}."
        else:
            names = list(dict.fromkeys(_in_production(cause.knob, judged) for cause in narrowing))
            yield f"Likely cause: {_few(names)}; narrower with {_named(narrowing)}."
    elif outside and is_excess(judged) and not profiles:
        yield "The cause lies outside the declared knobs that were varied."
    if widening:
        yield f"{'What opens the gap' if profiles else 'What opens the gap further'}: {_named(widening)}."
    if looks:
        yield f"Of the signatures that could be tried it looks like {', '.join(_shared(item) for item in looks)}."
    family, tested = tests
    if not said.causes and family:
        cases = "the one case that was tested" if tested == 1 else f"the {tested} cases that were tested"
        yield f"No change of the gap stands among {cases} ({family} tests, one for each figure of the gap)."


def _shared(item: SignatureFinding) -> str:
    return item.name if item.explained is None else f"{item.name} ({item.explained:.0%} of the squared drift)"


def _over(row: Row) -> str:
    edge = row.edges.get(row.verdict_edge)
    if edge is None or row.threshold is None or edge.rms is None:
        return f" ({row.reason})" if row.reason else ""
    return f" ({edge.mismatches} of {edge.active_tokens} tokens over {row.threshold:g} nats)"


def _named(causes: Sequence[Cause]) -> str:
    """Return the changes by the labels of their cases, which stand before the colon of what is said of each."""
    return _few([cause.says.partition(": ")[0] or cause.knob for cause in causes])


def _in_production(knob: str, judged: Row) -> str:
    """Return a knob, or several joined by ` + `, with production's value: the one that is to blame."""
    return " + ".join(_with_value(name, judged) for name in knob.split(" + "))


def _with_value(name: str, judged: Row) -> str:
    cell = judged.axes.get(name)
    value = None if cell is None else cell.actual if cell.requested is None else cell.requested
    return name if value is None else f"{name}={value if isinstance(value, str) else json.dumps(value)}"


def _few(names: Sequence[str]) -> str:
    more = f", and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
