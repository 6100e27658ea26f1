"""The comparator: identity gate, the one rule, figures that explain, the precision budget."""

from __future__ import annotations

from xcfg.comparison.assessment import no_reference
from xcfg.comparison.compare import CompareOutcome, compare
from xcfg.comparison.coupled import coupled_changes
from xcfg.comparison.decode_gate import decode_errors
from xcfg.comparison.determinism_gate import determinism_differences
from xcfg.comparison.identity_gate import identity_errors, transform_errors
from xcfg.comparison.recheck import same_comparison
from xcfg.comparison.tables import ScoreTable
from xcfg.comparison.vocabulary_gate import vocabulary_differences
from xcfg.comparison.yardstick import Tables, assess_by

__all__ = [
    "CompareOutcome",
    "ScoreTable",
    "Tables",
    "assess_by",
    "compare",
    "coupled_changes",
    "decode_errors",
    "determinism_differences",
    "identity_errors",
    "no_reference",
    "same_comparison",
    "transform_errors",
    "vocabulary_differences",
]
