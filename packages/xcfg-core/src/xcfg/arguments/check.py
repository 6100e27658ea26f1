"""All findings about two sides: of each argument alone, then of the pairs that should agree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from xcfg.arguments.alone import Place, findings_of, word_finding
from xcfg.arguments.conflicts import conflict_findings
from xcfg.arguments.pairs import pair_findings
from xcfg.arguments.settings import SideArguments
from xcfg.schema.doctor import COUNTED, ArgumentCheck, Finding, Verdict
from xcfg.schema.knobs import KnobDefinition

_ORDER = {verdict: index for index, verdict in enumerate(Verdict)}


def check_sides(
    rollout: SideArguments,
    training: SideArguments,
    *,
    platform: str,
    knobs: Mapping[str, KnobDefinition],
    command: str = "xcfg run experiment.json",
) -> ArgumentCheck:
    """Return what is known on `platform` (cpu or cuda), gravest first.

    knobs: those that an experiment may name. command: how one is run for this pair, to which a case adds its axis.

    Every argument and every word that was given is in at least one finding.
    """
    place = Place(platform=platform, command=command, knobs=knobs)
    found: list[Finding] = []
    for side in (rollout, training):
        for setting in side.settings:
            found += findings_of(side, setting, place)
        found += [word_finding(side, word) for word in side.words]
        found += conflict_findings(side)
    found += pair_findings(rollout, training, place)
    found.sort(key=lambda item: _ORDER[item.verdict])
    counted = Counter(item.verdict.value for item in found)
    counts = {verdict.value: counted[verdict.value] for verdict in Verdict if counted[verdict.value]}
    return ArgumentCheck(
        rollout=rollout.runtime, training=training.runtime, platform=platform, findings=tuple(found), counts=counts
    )


def has_traps(check: ArgumentCheck) -> bool:
    """Whether anything was found that makes the command end with 1."""
    return any(item.verdict in COUNTED for item in check.findings)
