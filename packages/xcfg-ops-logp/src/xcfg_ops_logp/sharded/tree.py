"""A binary tree over the global index of the vocabulary: the same sum, bit for bit, however it is split across ranks.

Node (level, i) covers the entries [i * 2^level, (i + 1) * 2^level) and is the sum of its two children; entries beyond
the vocabulary are absent, and adding an absent or a hidden entry, 0, changes nothing. Leaves are single entries, so a
shard may begin anywhere. A rank adds up the complete subtrees that lie within its shard and hands out the roots of the
largest of them, at most two of each level; every rank then adds all roots in the order of the tree.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from xcfg_ops_logp.sharded.base import VocabParallel

Node = tuple[int, int]


def roots(start: int, stop: int) -> list[Node]:
    """Return the largest complete subtrees within [start, stop), lowest level first."""
    found, level = [], 0
    while start < stop:
        if start % 2:
            found.append((level, start))
            start += 1
        if stop % 2 and start < stop:
            found.append((level, stop - 1))
            stop -= 1
        start, stop, level = start // 2, stop // 2, level + 1
    return found


def fold(terms: torch.Tensor, start: int) -> torch.Tensor:
    """Return [n, R]: the sums of `terms` [n, w], entries start to start + w, at the nodes that `roots` lists.

    What is kept of a level is copied, so that the level itself can go.
    """
    found, stop = [], start + terms.shape[1]
    while start < stop:
        if start % 2:
            found.append(terms[:, 0].clone())
            terms, start = terms[:, 1:], start + 1
        if stop % 2 and start < stop:
            found.append(terms[:, -1].clone())
            terms, stop = terms[:, :-1], stop - 1
        terms = terms[:, 0::2] + terms[:, 1::2]
        start, stop = start // 2, stop // 2
    return torch.stack(found, dim=-1)


def merge(nodes: Iterable[tuple[Node, torch.Tensor]]) -> torch.Tensor:
    """Return the root [n] of a tree whose given nodes tile the entries from 0 on; the order they come in is no matter.

    An absent right child is beyond the vocabulary. ValueError for nodes that leave a gap or lie over each other.
    """
    levels: dict[int, dict[int, torch.Tensor]] = {}
    for (level, index), value in nodes:
        if index in levels.setdefault(level, {}):
            raise ValueError(f"node {index} of level {level} comes twice")
        levels[level][index] = value
    held = [(1 << level, (index + 1) << level) for level, found in levels.items() for index in found]
    if sum(size for size, _ in held) != max(stop for _, stop in held):
        raise ValueError(f"nodes of {sum(size for size, _ in held)} entries end at {max(stop for _, stop in held)}")
    level = 0
    while True:
        here = levels.pop(level, {})
        if not levels and set(here) == {0}:
            return here[0]
        above = levels.setdefault(level + 1, {})
        for index in sorted(here):
            if index % 2:
                if index - 1 not in here:
                    raise ValueError(f"node {index - 1} of level {level} is missing")
                continue
            if index // 2 in above:
                raise ValueError(f"node {index // 2} of level {level + 1} comes twice")
            right = here.get(index + 1)
            above[index // 2] = here[index] if right is None else here[index] + right
        level += 1


class Tree(VocabParallel):
    """The backend `xcfg.tp_tree_logp`: equal bits for identical logits at every tensor-parallel size."""

    def total(self, terms: torch.Tensor) -> torch.Tensor:
        """Return the sum [n] over all ranks in the order of the tree."""
        mine = fold(terms, self.start)
        lists = [roots(*bounds) for bounds in self.shards.bounds]
        shares = self.ranks.columns(mine, tuple(len(nodes) for nodes in lists))
        return self.merged(
            [
                [(node, share[:, column]) for column, node in enumerate(nodes)]
                for nodes, share in zip(lists, shares, strict=True)
            ]
        )

    def merged(self, shares: list[list[tuple[Node, torch.Tensor]]]) -> torch.Tensor:
        """Add what each rank handed out."""
        return merge(item for share in shares for item in share)
