"""Partial sums of shards or tiles, merged by the library's all-reduce or in the order of global tiles."""

from __future__ import annotations

import torch

from xcfg_ops_logp.inputs import positive
from xcfg_ops_logp.reference import tree_sum
from xcfg_ops_logp.sharded.base import BLOCK, DEFAULT_CHUNK_ROWS, Moments, VocabParallel

DEFAULT_TILE = 1024


class AllReducePartials(VocabParallel):
    """The backend `xcfg.allreduce_partials_logp`: one sum for each shard, added by the library's all-reduce.

    The order in which ranks are added is the library's, and may depend on a row's place in the buffer.
    """

    def total(self, terms: torch.Tensor) -> torch.Tensor:
        """Return the sum [n] over all ranks in the library's order."""
        return self.ranks.add(tree_sum(terms).contiguous())


class AllGatherPartials(VocabParallel):
    """The backend `xcfg.allgather_partials_logp`: (maximum, count, others) of every tile of the global index, gathered.

    Tile t holds the entries [t * tile, (t + 1) * tile). Each rank adds up its tiles relative to their own maxima; all
    ranks then merge them from the first to the last. Where a shard's edge cuts a tile, both ranks hand out a part of
    it: bits are those of the uncut vocabulary only where every shard begins at a tile.
    """

    def __init__(
        self,
        *,
        tile: int = DEFAULT_TILE,
        chunk_rows: int = DEFAULT_CHUNK_ROWS,
        accum_dtype: str = "float32",
        ignore_index: int | None = None,
    ) -> None:
        """Take the tile's width in entries, and the options of every backend here."""
        super().__init__(chunk_rows=chunk_rows, accum_dtype=accum_dtype, ignore_index=ignore_index)
        self.tile = positive("tile", tile)

    def moments(self, local: torch.Tensor, *, entropy: bool) -> Moments:
        """Return the moments of n rows, from one exchange."""
        counts = [-(-stop // self.tile) - start // self.tile for start, stop in self.shards.bounds]
        packed = self._partials(local, entropy=entropy)
        kinds = packed.shape[0]
        shares = self.ranks.columns(packed.movedim(0, 1).reshape(len(local), -1), tuple(kinds * n for n in counts))
        ordered = [shares[rank].view(len(local), kinds, counts[rank]) for rank in self.shards.order]
        return _merged(torch.cat(ordered, dim=-1))

    def _partials(self, local: torch.Tensor, *, entropy: bool) -> torch.Tensor:
        """Return maximum, count of maxima, sum of the others, and with entropy sum of gaps: [3 or 4, n, tiles]."""
        before = self.start % self.tile
        after = -(before + local.shape[1]) % self.tile
        if before or after:
            local = torch.nn.functional.pad(local, (before, after), value=-torch.inf)
        tiles = local.view(len(local), -1, self.tile)
        top = tiles.amax(dim=-1)
        top = top.masked_fill_(top.isnan(), torch.inf) + 0.0
        tiles -= top.masked_fill(top == -torch.inf, 0)[..., None]
        maxima = tiles == 0
        terms = tiles.exp() if entropy else tiles.exp_()
        count = torch.cat([some.sum(dim=-1) for some in torch.split(maxima, max(1, BLOCK // self.tile), dim=1)], dim=1)
        found = [top, count.to(terms.dtype)]
        if entropy:
            gaps = tiles.neg_().mul_(terms).masked_fill_(terms == 0, 0)
            found.append(tree_sum(gaps))
        found.insert(2, tree_sum(terms.masked_fill_(maxima, 0)))
        return torch.stack(found)


def _merged(partials: torch.Tensor) -> Moments:
    """Merge [n, 3 or 4, tiles] from the first tile to the last."""
    top_of, count_of, others_of, *gaps_of = partials.unbind(1)
    top = top_of.amax(dim=-1)
    down = top[:, None] - top_of
    scale = (-down).exp()
    highest = down == 0
    count = count_of.masked_fill(~highest, 0).sum(dim=-1)
    others = _in_order(torch.where(highest, others_of, (count_of + others_of) * scale))
    mean = None
    if gaps_of:
        held = (count_of + others_of) * down.masked_fill(scale == 0, 0)
        mean = _in_order(scale * (gaps_of[0] + held)) / (count + others)
    return Moments(top, torch.log1p((count - 1) + others), mean)


def _in_order(terms: torch.Tensor) -> torch.Tensor:
    """Return the sum of [n, tiles] from the first column to the last, as [n]."""
    total = terms[:, 0].clone()
    for column in terms.unbind(-1)[1:]:
        total += column
    return total
