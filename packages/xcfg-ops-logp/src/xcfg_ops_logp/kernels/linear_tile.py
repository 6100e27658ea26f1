"""`linear_selected_logprob` in one kernel: the head product tile by tile, each tile summed up before it is left.

A tile of BM rows and BN columns of the vocabulary sums K in blocks of BK in one order in float32 (no split over K),
and its rows are reduced to (top, total, weighted) and to the selected logit where the tile owns the id. A second
kernel merges the tiles of a row in a fixed order. Neither knows how many rows there are: each is compiled once for
all of them, and the sums over the columns of a tile run in the layout of the multiply-accumulate instruction, which
BM, BN and the warps decide. Loads go through tensor descriptors (the bulk copy engine of Hopper and later); the grid
is persistent, one program per multiprocessor, row tiles fastest, so that the tiles at work together read the same few
rows of the weights.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from xcfg_ops_logp.kernels.linear import finish
from xcfg_ops_logp.kernels.online import ASM, LEAST, NEG_INF, exponential, merge, tree_rows
from xcfg_ops_logp.kernels.selected import Outcome


@dataclass(frozen=True)
class Tiles:
    """Shape of the product's tiles; part of what decides the bits.

    rows, columns, depth: BM, BN, BK. warps, stages: warps per program and depth of the load pipeline. group: row
    tiles that are walked before the next column tile, 0 for all. specialize: loads in warps of their own. flatten:
    fuse the tile loop with the loop over K, so that the next tile loads while this one is summed up. round_logits:
    round logits to the dtype of the weights first, as where they are written out. asm: the one-instruction exp2.
    """

    rows: int = 128
    columns: int = 256
    depth: int = 64
    warps: int = 8
    stages: int = 3
    group: int = 0
    specialize: bool = False
    flatten: bool = True
    round_logits: bool = True
    asm: bool = ASM


DEFAULT = Tiles()
MERGE_ROWS = 32
MERGE_TILES = 32


@triton.jit
def _sum_up(
    acc: tl.tensor, selected: tl.tensor, partial: tl.tensor, chosen: tl.tensor,
    row_tile: tl.tensor, column_tile: tl.tensor, rows: tl.tensor, columns: tl.tensor, column_tiles: tl.tensor,
    BM: tl.constexpr, BN: tl.constexpr, ENTROPY: tl.constexpr, ASM: tl.constexpr,
) -> None:  # fmt: skip
    """Reduce logits acc [BM, BN] float32 to partial [3, column_tiles, rows] and chosen [rows]."""
    row = row_tile * BM + tl.arange(0, BM)
    column = column_tile * BN + tl.arange(0, BN)
    there = row < rows
    acc = tl.where((column < columns)[None, :], acc, NEG_INF)
    top = tl.maximum(tl.max(acc, axis=1), LEAST)
    shift = acc - top[:, None]
    mass = exponential(shift, ASM)
    at = partial + column_tile * rows + row
    tl.store(at, top, mask=there)
    tl.store(at + column_tiles * rows, tl.sum(mass, axis=1), mask=there)
    if ENTROPY:
        weighted = tl.sum(mass * tl.maximum(shift, LEAST), axis=1)
        tl.store(at + 2 * column_tiles * rows, weighted, mask=there)
    local = tl.load(selected + row, mask=there, other=-1) - column_tile * BN
    inside = (local >= 0) & (local < BN) & (local + column_tile * BN < columns)
    value = tl.sum(tl.where(tl.arange(0, BN)[None, :] == local[:, None], acc, 0.0), axis=1)
    tl.store(chosen + row, value, mask=there & inside)


@triton.jit(do_not_specialize=["rows"])
def _product(
    hidden: tl.tensor, weight: tl.tensor, selected: tl.tensor, partial: tl.tensor, chosen: tl.tensor,
    rows: tl.tensor, columns: tl.tensor, depth: tl.tensor,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr, PROGRAMS: tl.constexpr,
    SPECIALIZE: tl.constexpr, FLATTEN: tl.constexpr, ROUND: tl.constexpr, ENTROPY: tl.constexpr, ASM: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:  # fmt: skip
    """hidden, weight: descriptors of [rows, depth] in blocks [BM, BK] and of [columns, depth] in blocks [BN, BK]."""
    row_tiles = tl.cdiv(rows, BM)
    column_tiles = tl.cdiv(columns, BN)
    steps = tl.cdiv(depth, BK)
    tiles = row_tiles * column_tiles
    for tile in tl.range(tl.program_id(0), tiles, PROGRAMS, flatten=FLATTEN, warp_specialize=SPECIALIZE):
        if GROUP > 0:
            band = tile // (GROUP * column_tiles)
            height = tl.minimum(row_tiles - band * GROUP, GROUP)
            row_tile = band * GROUP + (tile % (GROUP * column_tiles)) % height
            column_tile = (tile % (GROUP * column_tiles)) // height
        else:
            row_tile = tile % row_tiles
            column_tile = tile // row_tiles
        acc = tl.zeros([BM, BN], tl.float32)
        for step in range(steps):
            left = hidden.load([row_tile * BM, step * BK])
            right = weight.load([column_tile * BN, step * BK])
            acc = tl.dot(left, right.T, acc, input_precision=PRECISION)
        if ROUND:
            acc = acc.to(hidden.dtype).to(tl.float32)
        _sum_up(
            acc, selected, partial, chosen, row_tile, column_tile, rows, columns, column_tiles, BM, BN, ENTROPY, ASM
        )


@triton.jit(do_not_specialize=["rows"])
def _merge_tiles(
    partial: tl.tensor, state: tl.tensor, rows: tl.tensor, tiles: tl.tensor,
    ROWS: tl.constexpr, TILES: tl.constexpr, ENTROPY: tl.constexpr, ASM: tl.constexpr,
) -> None:  # fmt: skip
    """Merge partial [3, tiles, rows] into state [3, rows].

    Lane i of TILES takes the tiles i, i + TILES, ... in turn, and the lanes are merged in a tree. Every sum is of two
    terms: a library sum over the tiles would follow the layout of the loads, which changes with the divisibility
    of `rows`.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    top = tl.full([TILES, ROWS], LEAST, tl.float32)
    total = tl.zeros([TILES, ROWS], tl.float32)
    weighted = tl.zeros([TILES, ROWS], tl.float32)
    for first in range(0, tiles, TILES):
        tile = first + tl.arange(0, TILES)
        at = partial + tile[:, None] * rows + row[None, :]
        there = (tile < tiles)[:, None] & (row < rows)[None, :]
        top2 = tl.load(at, mask=there, other=LEAST)
        total2 = tl.load(at + tiles * rows, mask=there, other=0.0)
        weighted2 = tl.zeros([TILES, ROWS], tl.float32)
        if ENTROPY:
            weighted2 = tl.load(at + 2 * tiles * rows, mask=there, other=0.0)
        top, total, weighted = merge(top, total, weighted, top2, total2, weighted2, ENTROPY, ASM)
    highest = tl.max(top, axis=0)
    back = tl.maximum(top - highest[None, :], LEAST)
    scale = exponential(back, ASM)
    tl.store(state + row, highest, mask=row < rows)
    tl.store(state + rows + row, tree_rows(scale * total), mask=row < rows)
    if ENTROPY:
        tl.store(state + 2 * rows + row, tree_rows(scale * (weighted + back * total)), mask=row < rows)


def forward(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    selected: torch.Tensor,
    *,
    entropy: bool = False,
    tiles: Tiles = DEFAULT,
) -> Outcome:
    """Checks nothing and waits for nothing.

    hidden [N, K] and weight [V, K], bfloat16 or float16 (float32 without tf32), contiguous, K a multiple of 16 bytes;
    selected int64 [N], an id outside [0, V) gives NaN. Extra memory: 12 bytes x N x ceil(V / tile columns).
    """
    count, depth = hidden.shape
    columns = weight.shape[0]
    column_tiles = triton.cdiv(columns, tiles.columns)
    state = torch.empty(3, count, dtype=torch.float32, device=hidden.device)
    chosen = torch.full((count,), torch.nan, dtype=torch.float32, device=hidden.device)
    if not count:
        return finish(state, chosen, entropy=entropy)
    partial = torch.empty(3 if entropy else 2, column_tiles, count, dtype=torch.float32, device=hidden.device)
    programs = _multiprocessors(hidden.device)
    _product[(min(programs, triton.cdiv(count, tiles.rows) * column_tiles),)](
        TensorDescriptor.from_tensor(hidden, [tiles.rows, tiles.depth]),
        TensorDescriptor.from_tensor(weight, [tiles.columns, tiles.depth]),
        selected, partial, chosen, count, columns, depth,
        BM=tiles.rows, BN=tiles.columns, BK=tiles.depth, GROUP=tiles.group, PROGRAMS=programs,
        SPECIALIZE=tiles.specialize, FLATTEN=tiles.flatten, ROUND=tiles.round_logits, ENTROPY=entropy, ASM=tiles.asm,
        PRECISION="ieee" if hidden.dtype == torch.float32 else None,
        num_warps=tiles.warps, num_stages=tiles.stages, enable_fp_fusion=False,
    )  # fmt: skip
    _merge_tiles[(triton.cdiv(count, MERGE_ROWS),)](
        partial, state, count, column_tiles,
        ROWS=MERGE_ROWS, TILES=MERGE_TILES, ENTROPY=entropy, ASM=tiles.asm, num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip
    return finish(state, chosen, entropy=entropy)


def _multiprocessors(device: torch.device) -> int:
    """Programs of a persistent grid; 1 in the interpreter."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
