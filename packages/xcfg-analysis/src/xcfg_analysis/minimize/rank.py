"""Which of several minimal sets to prefer: the five keys of the alignment principle, compared in their order.

1. semantic scope changed: the largest `AlignSpec.scope` among the set's knobs
2. number of aligned knobs
3. measured time: scoring seconds over those of the production point, in steps of a tenth, so that the noise of a clock
   does not decide before the keys that follow. Memory is not recorded with a score and decides nothing.
4. intrusion into an engine: the sum over the set
5. maintenance: the sum over the set
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from xcfg_analysis.minimize.atoms import Atom
from xcfg_analysis.minimize.search import MinimalSet, Subset


@dataclass(frozen=True)
class Ranked:
    """A minimal set with its keys. time: seconds over the production point's; None where they were not measured."""

    found: MinimalSet
    scope: int
    knobs: int
    time: float | None
    intrusion: int
    maintenance: int

    @property
    def keys(self) -> tuple[float, ...]:
        """The five keys; smaller is better."""
        time = 1.0 if self.time is None else round(self.time, 1)
        return (self.scope, self.knobs, time, self.intrusion, self.maintenance)


def rank(
    sets: Sequence[MinimalSet], atoms: Sequence[Atom], seconds: Mapping[Subset, float], production: float
) -> tuple[Ranked, ...]:
    """Return the sets, best first; equal ones keep their order. seconds: of scoring each set; production: likewise."""
    ranked = [_keyed(item, atoms, seconds.get(item.subset), production) for item in sets]
    return tuple(sorted(ranked, key=lambda item: item.keys))


def _keyed(found: MinimalSet, atoms: Sequence[Atom], spent: float | None, production: float) -> Ranked:
    chosen = [atoms[index] for index in sorted(found.subset)]
    return Ranked(
        found=found,
        scope=max((atom.scope for atom in chosen), default=0),
        knobs=len({knob for atom in chosen for knob in atom.knobs}),
        time=spent / production if spent and production > 0 else None,
        intrusion=sum(atom.intrusion for atom in chosen),
        maintenance=sum(atom.maintenance for atom in chosen),
    )
