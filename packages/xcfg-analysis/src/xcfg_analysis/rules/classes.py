"""The three classes of numerical difference, and which knob belongs to which."""

from __future__ import annotations

import itertools

from xcfg.schema.names import SourceClass

ARITHMETIC, REDUCTION, REPRESENTATION = "arithmetic", "reduction", "representation"
CLASSES = (ARITHMETIC, REDUCTION, REPRESENTATION)
LAYOUT = "layout"
"""How a batch is laid out: the logical problem stays the same, so no single-class profile varies it; A5 does."""
OF_SOURCE = {
    SourceClass.ARITHMETIC.value: ARITHMETIC,
    SourceClass.EXECUTION.value: ARITHMETIC,
    SourceClass.REDUCTION.value: REDUCTION,
    SourceClass.REPRESENTATION.value: REPRESENTATION,
    SourceClass.LOGICAL_LAYOUT.value: LAYOUT,
}
"""Source class of a knob -> class of the profiles. Compilers, graphs and caches reorder arithmetic: execution is it."""
SINGLE = {"A1": ARITHMETIC, "A2": REDUCTION, "A3": REPRESENTATION}
ALIGNED, PRODUCTION = "A0", "A5"
PAIRS = tuple(itertools.combinations(CLASSES, 2))


def pair_slice(pair: tuple[str, str]) -> str:
    """Return the name of the slice of a pair of classes, `A4.arithmetic+reduction`."""
    return "A4." + "+".join(pair)
