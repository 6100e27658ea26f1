"""Online softmax over columns: the arithmetic that every kernel of this room shares, so that bits can be compared.

A set S of logits is summed up by three float32 numbers,

    top = max x,   total = sum exp(x - top),   weighted = sum exp(x - top) (x - top)

and two disjoint sets are merged by rescaling both to the larger top (Milakov and Gimelshein, "Online normalizer
calculation for softmax", 2018). Then log p(s) = (x[s] - top) - log total, log-sum-exp = top + log total, and the
entropy is log total - weighted / total, all in nats.

Special values. `top` starts at the least finite float32 instead of -inf: a -inf logit adds exp(-inf) = 0, and no
difference of two -inf is ever formed. A NaN or a +inf makes `total` NaN, whatever follows; a row of -inf alone keeps
total = 0, so that its log probability is NaN as well.

Order. Sums across lanes are trees of two-term additions over the column index, and kernels are launched without
contraction to fused multiply-adds (`enable_fp_fusion=False`): the bits do not depend on how the compiler spreads a
tile over threads, which changes with the alignment of the rows.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
LEAST = tl.constexpr(-3.4028234663852886e38)
NEG_INF = tl.constexpr(float("-inf"))
INTERPRETED: bool = triton.knobs.runtime.interpret
"""Whether kernels run in Triton's interpreter, on a CPU."""
ASM: bool = not INTERPRETED
"""Whether the one-instruction exp2 can be used: everywhere but in the interpreter."""


@triton.jit
def exponential(x: tl.tensor, ASM: tl.constexpr) -> tl.tensor:
    """The exponential of float32 x; exactly 1 at 0.

    ASM takes the one-instruction exp2 of PTX that flushes subnormal results to zero (below 1.2e-38). Without it the
    compiler's exp is used, which also runs in the interpreter.
    """
    if ASM:
        y = tl.inline_asm_elementwise(
            "ex2.approx.ftz.f32 $0, $1;", "=f,f", [x * LOG2E], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        y = tl.exp(x)
    return y


@triton.jit
def fold(
    x: tl.tensor, top: tl.tensor, total: tl.tensor, weighted: tl.tensor, ENTROPY: tl.constexpr, ASM: tl.constexpr
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:  # fmt: skip
    """Fold a tile x [R, C] into C independent states; the rows of the tile lie within a thread: no barrier."""
    higher = tl.maximum(top, tl.max(x, axis=0))
    shift = x - higher[None, :]
    mass = exponential(shift, ASM)
    back = tl.maximum(top - higher, LEAST)
    scale = exponential(back, ASM)
    if ENTROPY:
        # 0 * -inf would be NaN where a logit is -inf
        weighted = scale * (weighted + back * total) + tl.sum(mass * tl.maximum(shift, LEAST), axis=0)
    total = scale * total + tl.sum(mass, axis=0)
    return higher, total, weighted


@triton.jit
def tree(x: tl.tensor) -> tl.tensor:
    """Sum x [C], C a power of two up to 65,536, by adding neighbours until one is left: a scalar."""
    for _ in tl.static_range(16):
        if x.shape[0] > 1:
            x = tl.sum(tl.reshape(x, [x.shape[0] // 2, 2]), axis=1)
    return tl.sum(x, axis=0)


@triton.jit
def tree_rows(x: tl.tensor) -> tl.tensor:
    """The same over the first dimension of x [C, N]: [N]."""
    for _ in tl.static_range(16):
        if x.shape[0] > 1:
            x = tl.sum(tl.reshape(x, [x.shape[0] // 2, 2, x.shape[1]]), axis=1)
    return tl.sum(x, axis=0)


@triton.jit
def join(
    top: tl.tensor, total: tl.tensor, weighted: tl.tensor, ENTROPY: tl.constexpr, ASM: tl.constexpr
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:  # fmt: skip
    """Merge C states [C] into one (scalars), in the tree over the lane index."""
    highest = tl.max(top, axis=0)
    back = tl.maximum(top - highest, LEAST)
    scale = exponential(back, ASM)
    if ENTROPY:
        weighted_sum = tree(scale * (weighted + back * total))
    else:
        weighted_sum = tl.sum(weighted, axis=0)
    return highest, tree(scale * total), weighted_sum


@triton.jit
def merge(
    top: tl.tensor, total: tl.tensor, weighted: tl.tensor,
    top2: tl.tensor, total2: tl.tensor, weighted2: tl.tensor,
    ENTROPY: tl.constexpr, ASM: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:  # fmt: skip
    """Merge the state of later columns into that of earlier ones; a fresh state (LEAST, 0, 0) changes no bit."""
    higher = tl.maximum(top, top2)
    back = tl.maximum(top - higher, LEAST)
    back2 = tl.maximum(top2 - higher, LEAST)
    scale = exponential(back, ASM)
    scale2 = exponential(back2, ASM)
    if ENTROPY:
        weighted = scale * (weighted + back * total) + scale2 * (weighted2 + back2 * total2)
    return higher, scale * total + scale2 * total2, weighted


@triton.jit
def scan(
    row: tl.tensor, start: tl.tensor, stop: tl.tensor,
    R: tl.constexpr, C: tl.constexpr, STAGES: tl.constexpr, ENTROPY: tl.constexpr, ASM: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:  # fmt: skip
    """Sum up columns [start, stop) of the row at pointer `row`: scalars (top, total, weighted).

    Tiles of R x C columns from `start` on, the last one masked: the order depends on start and stop alone.
    """
    tile: tl.constexpr = R * C
    inside = tl.arange(0, R)[:, None] * C + tl.arange(0, C)[None, :]
    top = tl.full([C], LEAST, tl.float32)
    total = tl.zeros([C], tl.float32)
    weighted = tl.zeros([C], tl.float32)
    full = (stop - start) // tile
    for index in tl.range(0, full, num_stages=STAGES):
        x = tl.load(row + (start + index * tile) + inside).to(tl.float32)
        top, total, weighted = fold(x, top, total, weighted, ENTROPY, ASM)
    rest = start + full * tile
    if rest < stop:
        x = tl.load(row + rest + inside, mask=rest + inside < stop, other=NEG_INF).to(tl.float32)
        top, total, weighted = fold(x, top, total, weighted, ENTROPY, ASM)
    top_of_all, total_of_all, weighted_of_all = join(top, total, weighted, ENTROPY, ASM)
    return top_of_all, total_of_all, weighted_of_all
