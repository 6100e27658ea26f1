"""Which view of a dump comes first."""

from __future__ import annotations

import pytest
from xcfg_analysis.forms import LARGEST
from xcfg_analysis.views import _spread


@pytest.mark.parametrize(
    ("sizes", "spread"),
    [
        ((0.1, 0.4), 4.0),
        ((0.0, 0.4), LARGEST),
        ((0.0, 0.0), 1.0),
        ((0.4,), 1.0),
    ],
)
def test_a_row_without_drift_beside_one_with_drift_tells_most(sizes, spread):
    """Failing means that one rank of two that drifts, the other bit for bit equal, is the last view or none."""
    rows = [{"rms": size, "tokens": 20} for size in sizes]
    assert _spread([*rows, {"rms": 9.0, "tokens": 19}]) == pytest.approx(spread)
