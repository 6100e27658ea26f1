"""Which signatures are named: the fits compete for the drift, round by round.

In each round every signature is fitted to what is left. A fit stands when its own test is clear (p value, times the
number of signatures, below ALPHA) and it removes clearly more of the squared drift than its form ever removed from
clean drift. Exact forms (tier 0) are taken first, whatever they explain: they are facts about the values. Of the
others, those within NEAR of the one that explains most compete, and the lowest tier wins, so that a named group or a
column's form goes before a generic one. What is taken is subtracted before the next round; hence two faults are both
named, and an effect that another one implies is not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from xcfg.plugin import SignatureDescriptor
from xcfg.plugin.signature import InsufficientData, Signature, SignatureFit

from xcfg_analysis.null import rarity
from xcfg_analysis.stats import bootstrap_effect
from xcfg_analysis.tokens import Bool, Tokens, left_over

ALPHA = 1e-3
LEAST = 0.05
"""Share of the squared drift that is left which a form has to remove."""
LEAST_TOTAL = 0.02
"""Share of the whole squared drift, for everything after the first."""
MARGIN = 1.5
"""Over the largest share among clean draws."""
NEAR = 0.8
UNRELATED = 0.7
"""Where d varies more than this share of what log p varies by, the sides are hardly related: exact forms only."""
ROUNDS = 4

Candidate = tuple[SignatureDescriptor, Signature]


@dataclass(frozen=True)
class Named:
    """A signature that was taken. effect: (value, low, high) nats. explained: share of the whole squared drift.

    row: int64, rows of the table that are concerned. size: |form| of these tokens, nats, to choose evidence by.
    """

    descriptor: SignatureDescriptor
    fit: SignatureFit
    confidence: float
    effect: tuple[float, float, float]
    explained: float
    row: np.ndarray
    size: np.ndarray


@dataclass(frozen=True)
class Recognised:
    """What was named, in order; which signatures lacked data (name -> reason); the share that stays unexplained.

    related: whether what is left of d varies less than log p itself; if not, only exact forms were tried.
    """

    named: tuple[Named, ...]
    insufficient: Mapping[str, str]
    unexplained: float
    related: bool = True


@dataclass(frozen=True)
class _Standing:
    descriptor: SignatureDescriptor
    fit: SignatureFit
    share: float
    chance: float


def recognise(tokens: Tokens, candidates: Sequence[Candidate]) -> Recognised:
    """Return the signatures that explain `tokens`; candidates in the order in which a tie is decided."""
    insufficient: dict[str, str] = {}
    remaining = []
    for descriptor, signature in candidates:
        lacking = [name for name in descriptor.needs if not _has(tokens, name)]
        if lacking:
            insufficient[descriptor.name] = f"it needs the column {', '.join(lacking)}"
        else:
            remaining.append((descriptor, signature))
    whole = _energy(tokens)
    named: list[Named] = []
    related = True
    for _ in range(ROUNDS):
        if whole == 0 or len(tokens.d) < 2:
            break
        standing = []
        related = float(tokens.d.std()) < UNRELATED * float(tokens.training.std())
        for descriptor, signature in remaining:
            if descriptor.tier > 0 and not related:
                continue
            found = signature.fit(tokens)
            if isinstance(found, InsufficientData):
                insufficient.setdefault(descriptor.name, found.reason)
            elif found is not None and (judged := _judge(descriptor, found, tokens, len(candidates), whole)):
                standing.append(judged)
        if not standing:
            break
        best = _best(standing)
        named.append(_named(best, tokens, whole))
        remaining = [item for item in remaining if item[0].name != best.descriptor.name]
        tokens = left_over(tokens, best.fit.rest)
    return Recognised(tuple(named), insufficient, _energy(tokens) / whole if whole else 0.0, related)


def _has(tokens: Tokens, column: str) -> bool:
    if column in ("rank", "weight_version"):
        return getattr(tokens, column) is not None
    return column in tokens.columns


def _energy(tokens: Tokens) -> float:
    return float(np.square(tokens.d).sum())


def share_removed(tokens: Tokens, fit: SignatureFit) -> float:
    """Return the share of the squared drift that the form takes away."""
    before = _energy(tokens)
    kept = fit.rest[np.isfinite(fit.rest)]
    return 1.0 - float(np.square(kept).sum()) / before if before else 0.0


def _judge(
    descriptor: SignatureDescriptor, fit: SignatureFit, tokens: Tokens, tried: int, whole: float
) -> _Standing | None:
    share = share_removed(tokens, fit)
    p_value = min(1.0, fit.p_value * tried)
    if p_value > ALPHA or not fit.concerned.any():
        return None
    if descriptor.tier == 0:
        return _Standing(descriptor, fit, share, p_value)
    clean = rarity(descriptor.name, share)
    if share < max(LEAST, MARGIN * clean.largest) or share * _energy(tokens) < LEAST_TOTAL * whole:
        return None
    return _Standing(descriptor, fit, share, max(p_value, clean.chance))


def _best(standing: Sequence[_Standing]) -> _Standing:
    exact = [item for item in standing if item.descriptor.tier == 0]
    if exact:
        return max(exact, key=lambda item: item.share)
    top = max(item.share for item in standing)
    near = [item for item in standing if item.share >= NEAR * top]
    return min(near, key=lambda item: (item.descriptor.tier, -item.share))


def _named(best: _Standing, tokens: Tokens, whole: float) -> Named:
    rest = np.nan_to_num(best.fit.rest, nan=0.0)
    concerned: Bool = best.fit.concerned
    removed = np.square(tokens.d) - np.square(rest)
    return Named(
        descriptor=best.descriptor,
        fit=best.fit,
        confidence=1.0 - best.chance,
        effect=bootstrap_effect(removed, concerned, tokens.cluster),
        explained=best.share * _energy(tokens) / whole,
        row=tokens.row[concerned],
        size=np.abs(tokens.d - rest)[concerned],
    )
