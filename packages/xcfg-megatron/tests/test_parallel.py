"""Which columns a context-parallel rank holds, against a list written by hand."""

from __future__ import annotations

import pytest
from xcfg_megatron.parallel import zigzag


def test_two_ranks_hold_the_ends_and_the_middle():
    """If this fails, ranks hold other tokens than Megatron-core's: rank 0 the first and last quarter."""
    assert zigzag(8, 0, 2).tolist() == [0, 1, 6, 7]
    assert zigzag(8, 1, 2).tolist() == [2, 3, 4, 5]


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_every_column_is_held_once(ranks):
    """If this fails, a token is scored twice or never."""
    held = [column for rank in range(ranks) for column in zigzag(12 * ranks, rank, ranks).tolist()]
    assert sorted(held) == list(range(12 * ranks))
