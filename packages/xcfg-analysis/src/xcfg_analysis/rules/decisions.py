"""The six decision rules: the first branch of the debugging tree, before drift is filed as an algorithm's fault."""

from __future__ import annotations

from xcfg.schema.rules import Conclusion

from xcfg_analysis.cube.rows import Row
from xcfg_analysis.rules.downstream import Series, adverse_changes, changes, collapse
from xcfg_analysis.rules.ladder import NO_IDENTITY
from xcfg_analysis.rules.points import Outcome, Points

POLICY = ("kl", "clip_fraction", "ratio")
"""Series that logprob plumbing moves."""
UPDATE = ("grad_norm", "update_norm")
NO_SERIES = "No downstream series was given."


def decide(points: Points, series: Series | None = None) -> tuple[Conclusion, ...]:
    """Return the conclusions of rules 1 to 6, in the order in which they are to be read."""
    return (
        infrastructure(points),
        still_infrastructure(points, series),
        policy_first(series),
        update_first(series),
        some_ranks(points),
        reward_falls(points, series),
    )


def infrastructure(points: Points) -> Conclusion:
    """Rule 1: log probabilities differ under one identity before any update."""
    row = points.production
    if row is not None and row.status in NO_IDENTITY:
        text = f"The comparison is invalid, not noisy: {row.reason or row.status}. Nothing can be said of drift."
        return _conclusion(1, None, text, row)
    outcome = points.outcome(row)
    if outcome is Outcome.UNMEASURED:
        return _conclusion(1, None, "The production point was not measured.", row)
    if outcome is Outcome.PASSES:
        return _conclusion(1, False, "Selected log probabilities match under the contract before any update.", row)
    text = (
        "Selected log probabilities differ under one checkpoint, one set of tokens and one mask: infrastructure, "
        "precision, mask, tokenizer or serving path. Do not file it as an algorithm's or a reward's fault."
    )
    return _conclusion(1, True, text, row)


def still_infrastructure(points: Points, series: Series | None) -> Conclusion:
    """Rule 2: over the threshold and healthy in a short run: still infrastructure."""
    outcome = points.outcome(points.production)
    if series is None or outcome is Outcome.UNMEASURED:
        return _conclusion(2, None, NO_SERIES if series is None else "The production point was not measured.")
    if outcome is Outcome.PASSES:
        return _conclusion(2, False, "Production is within the threshold.", points.production)
    told = changes(series.of_production())
    if not told:
        return _conclusion(2, None, "No downstream series has enough steps to be called healthy.", points.production)
    bad = adverse_changes(told)
    if bad:
        named = ", ".join(f"{item.metric} at step {item.step}" for item in bad)
        return _conclusion(2, False, f"Downstream metrics change for the worse: {named}.", points.production)
    text = (
        "Over the threshold while the downstream series look healthy: it stays infrastructure drift. Health over "
        f"{series.of_production().length} steps does not prove that the drift is safe."
    )
    return _conclusion(2, True, text, points.production)


def policy_first(series: Series | None) -> Conclusion:
    """Rule 3: KL or ratio move before the gradient norm: likely infrastructure."""
    return _order(3, series, POLICY, UPDATE, "likely infrastructure, or log probability plumbing")


def update_first(series: Series | None) -> Conclusion:
    """Rule 4: the gradient norm moves first and KL later: more likely tuning."""
    after = "more likely tuning: learning rate, KL coefficient, reward scale, or outliers among the advantages"
    return _order(4, series, UPDATE, POLICY, after)


def _order(number: int, series: Series | None, first: tuple[str, ...], second: tuple[str, ...], so: str) -> Conclusion:
    if series is None:
        return _conclusion(number, None, NO_SERIES)
    told = changes(series.of_production())
    groups = [[item for item in told if item.metric in names] for names in (first, second)]
    if not all(groups):
        lacking = first if not groups[0] else second
        return _conclusion(number, None, f"The series has none of {', '.join(lacking)}, or too few steps.")
    early, late = (min((i for i in g if i.moves), key=lambda i: i.step, default=None) for g in groups)
    if early is None:
        return _conclusion(number, False, f"None of {', '.join(item.metric for item in groups[0])} moves.")
    where = f"{early.metric} moves at step {early.step} (p {early.p:.3g})"
    if late is not None and late.step <= early.step:
        return _conclusion(number, False, f"{late.metric} moves at step {late.step}, not after: {where}.")
    then = f"before {late.metric} at step {late.step}" if late is not None else f"and no {' or '.join(second)} does"
    return _conclusion(number, True, f"{where}, {then}: {so}.")


def some_ranks(points: Points) -> Conclusion:
    """Rule 5: only some ranks drift: distributed infrastructure until the usual suspects are ruled out."""
    row = points.production
    edge = row.edges.get(row.verdict_edge) if row is not None else None
    ranks = [item for item in edge.by_rank if item.active_tokens] if edge is not None else []
    if row is None or len(ranks) < 2:
        return _conclusion(5, None, "Fewer than two ranks report tokens of their own.", row)
    bad = [item.group for item in ranks if item.mismatches]
    if not bad or len(bad) == len(ranks):
        return _conclusion(5, False, f"{len(bad)} of {len(ranks)} ranks are over the threshold: not some of them.", row)
    text = (
        f"Only {', '.join(bad)} of {len(ranks)} ranks are over the threshold: distributed infrastructure, until rank "
        "placement, shard boundaries, collectives, active tokens per rank, masks and cache positions are ruled out."
    )
    return _conclusion(5, True, text, row)


def reward_falls(points: Points, series: Series | None) -> Conclusion:
    """Rule 6: reward rises and then collapses while alignment is clean."""
    outcome = points.outcome(points.production)
    if series is None or outcome is Outcome.UNMEASURED:
        return _conclusion(6, None, NO_SERIES if series is None else "The production point was not measured.")
    fallen = collapse(series.of_production())
    if fallen is None:
        return _conclusion(6, None, "The series has no reward, or too few steps.")
    if not fallen or outcome is Outcome.FAILS:
        reason = "alignment is not clean" if outcome is Outcome.FAILS else "the reward does not rise and then collapse"
        return _conclusion(6, False, f"Does not apply: {reason}.", points.production)
    text = (
        f"The reward rises until step {fallen.step} and then collapses while alignment is clean: more likely "
        "algorithmic, reward hacking, data, or too little KL constraint."
    )
    return _conclusion(6, True, text, points.production)


def _conclusion(number: int, holds: bool | None, text: str, *rows: Row | None) -> Conclusion:
    ids = tuple(row.case_id for row in rows if row is not None)
    return Conclusion(rule=f"decision {number}", holds=holds, text=text, evidence=ids)
