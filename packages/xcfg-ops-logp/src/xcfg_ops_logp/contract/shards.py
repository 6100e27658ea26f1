"""How a vocabulary is split over ranks: shard maps of the engines, exact tiling, owners, and what two maps share.

A shard is (vocab_start, vocab_end), half open, in global ids. A shard map has one shard per rank, in the order of the
ranks. Engines pad the vocabulary to widths of their own before they split it, so their maps disagree from the first
boundary on; over the real ids both tile one domain, and partial results can be compared on the tiles that both have.

Sources of the two rules of padding: Megatron-core's argument make-vocab-size-divisible-by, whose product with the
tensor-parallel size divides the padded size; vLLM's VocabParallelEmbedding, which pads to a multiple of 64.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TypeAlias

from xcfg.errors import IdentityError, UsageError
from xcfg.schema._base import Record

Shard: TypeAlias = tuple[int, int]
ShardMap: TypeAlias = tuple[Shard, ...]
MEGATRON_DIVISOR = 128
VLLM_MULTIPLE = 64


class Tile(Record, frozen=True):
    """Ids that lie on one rank of either side: where partial results mean the same."""

    start: int
    stop: int
    first_rank: int
    second_rank: int


def padded_size(org_vocab_size: int, multiple: int) -> int:
    """Return the smallest multiple of `multiple` that holds the vocabulary. Raises UsageError below 1."""
    if org_vocab_size < 1 or multiple < 1:
        raise UsageError(f"a vocabulary of {org_vocab_size} ids, padded to a multiple of {multiple}, has no size")
    return -(-org_vocab_size // multiple) * multiple


def even_shards(size: int, ranks: int) -> ShardMap:
    """Return `size` columns in `ranks` shards of one width. Raises UsageError where that leaves a rest."""
    if ranks < 1 or size % ranks:
        raise UsageError(
            f"{size} columns cannot be split evenly over {ranks} ranks",
            hint="Pad the vocabulary to a multiple of the ranks first.",
        )
    width = size // ranks
    return tuple((rank * width, (rank + 1) * width) for rank in range(ranks))


def megatron_shards(org_vocab_size: int, ranks: int, divisor: int = MEGATRON_DIVISOR) -> ShardMap:
    """Return the padded shards of Megatron-core: padded to a multiple of divisor * ranks, then split evenly."""
    return even_shards(padded_size(org_vocab_size, divisor * ranks), ranks)


def vllm_shards(org_vocab_size: int, ranks: int, multiple: int = VLLM_MULTIPLE) -> ShardMap:
    """Return the padded shards of vLLM: padded to a multiple of 64 whatever the ranks, then split evenly."""
    return even_shards(padded_size(org_vocab_size, multiple), ranks)


def real_shards(shards: Iterable[Shard], org_vocab_size: int) -> ShardMap:
    """Return the shards without the columns that pad the vocabulary; a rank of padding alone has an empty shard."""
    return tuple((min(start, org_vocab_size), min(stop, org_vocab_size)) for start, stop in shards)


def tiled(shards: Iterable[Iterable[int]]) -> Shard | None:
    """Return the domain [0, V) that the shards tile exactly, every id on one rank; None where they do not.

    Empty shards own nothing and are no fault wherever they lie within the domain.
    """
    pairs = [tuple(item) for item in shards]
    if any(len(pair) != 2 for pair in pairs):
        return None
    reached = 0
    for start, stop in sorted(pair for pair in pairs if pair[0] != pair[1]):
        if start != reached:
            return None
        reached = stop
    outside = any(start < 0 or start > reached for start, _ in pairs)
    return (0, reached) if reached and not outside else None


def owners(shards: Sequence[Shard], ids: Iterable[int]) -> tuple[int, ...]:
    """Return the rank that owns each id. Raises IdentityError for an id without an owner, or with several."""
    found = []
    for item in ids:
        ranks = [rank for rank, (start, stop) in enumerate(shards) if start <= item < stop]
        if len(ranks) != 1:
            who = f"by ranks {', '.join(map(str, ranks))}" if ranks else "by no rank"
            raise IdentityError(
                f"the id {item} is owned {who} of the shards {list(shards)}",
                hint="Exactly one rank gathers an id; give every rank its (vocab_start, vocab_end) in global ids.",
            )
        found.append(ranks[0])
    return tuple(found)


def common_tiles(first: Sequence[Shard], second: Sequence[Shard]) -> tuple[Tile, ...]:
    """Return the tiles on which partial results of two layouts can be compared, in the order of their ids.

    Raises IdentityError where a map does not tile, or where the two tile different domains: pass real shards.
    """
    domains = tiled(first), tiled(second)
    if None in domains or domains[0] != domains[1]:
        shown = " and ".join(_domain(shards, domain) for shards, domain in zip((first, second), domains, strict=True))
        raise IdentityError(
            f"the shard maps are not two splits of one vocabulary: {shown}",
            hint="Take the padding off both with real_shards(map, org_vocab_size).",
        )
    cuts = sorted({cut for shard in (*first, *second) for cut in shard})
    places = _places(first), _places(second)
    return tuple(
        Tile(start=start, stop=stop, first_rank=_rank(places[0], start), second_rank=_rank(places[1], start))
        for start, stop in pairwise(cuts)
    )


def _places(shards: Sequence[Shard]) -> list[tuple[int, int]]:
    return sorted((start, rank) for rank, (start, stop) in enumerate(shards) if start < stop)


def _rank(places: list[tuple[int, int]], start: int) -> int:
    return places[bisect_right(places, start, key=lambda place: place[0]) - 1][1]


def _domain(shards: Sequence[Shard], domain: Shard | None) -> str:
    return f"{list(shards)} " + (f"tile [0, {domain[1]})" if domain else "do not tile")
