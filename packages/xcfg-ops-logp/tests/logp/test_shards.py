"""Shard maps against brute force over every id."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from xcfg.errors import IdentityError, UsageError
from xcfg_ops_logp.contract import (
    common_tiles,
    megatron_shards,
    owners,
    pad_rows,
    real_shards,
    tiled,
    vllm_shards,
)
from xcfg_ops_logp.contract.shards import even_shards, padded_size

shard = st.tuples(st.integers(-1, 12), st.integers(-1, 12))
maps = st.lists(shard, min_size=1, max_size=5).map(tuple)


@example(shards=((0, 3), (3, 1)))
@given(shards=maps)
def test_a_map_tiles_where_every_id_has_one_owner(shards):
    """If this fails, an id that nobody owns, or that two ranks sum, passes as a vocabulary."""
    count = [sum(start <= item < stop for start, stop in shards) for item in range(-2, 14)]
    top = max((item for item in range(-2, 14) if count[item + 2]), default=-1) + 1
    exact = top > 0 and count == [0, 0] + [1] * top + [0] * (14 - top)
    forward = all(start <= stop and 0 <= start <= top for start, stop in shards)
    assert tiled(shards) == ((0, top) if exact and forward else None)


@st.composite
def splits(draw, size):
    """A split of [0, size) into shards in any order of the ranks, empty ones among them."""
    cuts = [0, *sorted(draw(st.lists(st.integers(0, size), max_size=5))), size]
    return tuple(draw(st.permutations([*pairwise(cuts)])))


@given(data=st.data(), size=st.integers(1, 20))
def test_common_tiles_lie_on_one_rank_of_either_side(data, size):
    """If this fails, partial results of different ids are compared."""
    first, second = data.draw(splits(size)), data.draw(splits(size))
    tiles = common_tiles(first, second)
    assert [item for tile in tiles for item in range(tile.start, tile.stop)] == list(range(size))
    for tile in tiles:
        ids = range(tile.start, tile.stop)
        assert set(owners(first, ids)) == {tile.first_rank}
        assert set(owners(second, ids)) == {tile.second_rank}


@given(org=st.integers(1, 3000), ranks=st.sampled_from((1, 2, 3, 4, 6, 8)))
def test_both_engines_tile_the_real_vocabulary(org, ranks):
    """If this fails, a layout that an engine uses is refused, or one of them loses ids."""
    for shards in (megatron_shards(org, ranks), *([vllm_shards(org, ranks)] if 64 % ranks == 0 else [])):
        assert len(shards) == ranks
        assert tiled(shards)[1] >= org
        assert tiled(real_shards(shards, org)) == (0, org)


def test_maps_of_different_vocabularies_share_nothing():
    """If this fails, padding is compared with ids."""
    with pytest.raises(IdentityError, match=r"tile \[0, 512\).*tile \[0, 500\)"):
        common_tiles(((0, 512),), ((0, 500),))
    with pytest.raises(IdentityError, match="do not tile"):
        common_tiles(((0, 4), (5, 8)), ((0, 8),))


def test_owners_name_the_id_and_the_ranks():
    """If this fails, a gather that sums two owners is found by its numbers alone."""
    assert owners(((0, 4), (4, 8)), (0, 7, 4)) == (0, 1, 1)
    with pytest.raises(IdentityError, match="the id 8 is owned by no rank"):
        owners(((0, 4), (4, 8)), (8,))
    with pytest.raises(IdentityError, match="the id 3 is owned by ranks 0, 1"):
        owners(((0, 4), (3, 8)), (3,))


@pytest.mark.parametrize(("size", "ranks"), [(7, 2), (8, 0)])
def test_an_uneven_split_is_refused(size, ranks):
    """If this fails, the last ids of a vocabulary are lost."""
    with pytest.raises(UsageError, match="cannot be split evenly"):
        even_shards(size, ranks)
    with pytest.raises(UsageError, match="has no size"):
        padded_size(0, 64)


def test_norms_of_the_rows_beyond_the_vocabulary():
    """If this fails, the reason of a bias from padded columns is not seen in the head."""
    weight = torch.ones(8, 4, dtype=torch.bfloat16)
    weight[5:] = 0
    assert pad_rows(weight, 8) == pad_rows(weight[:3], 8) != pad_rows(weight, 5)
    assert (pad_rows(weight, 8).num_pad_rows, pad_rows(weight, 8).pad_row_init) == (0, "none")
    zero = pad_rows(weight, 5)
    assert (zero.num_pad_rows, zero.smallest, zero.largest, zero.pad_row_init) == (3, 0.0, 0.0, "zero")
    some = pad_rows(weight, 4)
    assert (some.num_pad_rows, some.smallest, some.largest, some.pad_row_init) == (4, 0.0, 2.0, "nonzero")
    assert pad_rows(weight[6:], 4, start=6).num_pad_rows == 2, "the second shard holds padding alone"
    assert pad_rows(weight[:4], 6, start=4).num_pad_rows == 2
    with pytest.raises(UsageError):
        pad_rows(weight[0], 4)
