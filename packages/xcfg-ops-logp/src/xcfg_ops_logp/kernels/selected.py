"""`selected_logprob` in one read of the logits, and its gradient in one read and one write.

A row is cut into segments of a fixed number of columns; a segment is summed up by one program (see online.py), and
segments are merged from the first to the last. Either one program does all segments of a row, or, for many rows, each
segment has its own program and a second kernel merges. Both do the same additions in the same order, and neither
knows how many rows there are: the bits of a row depend on its logits, on V and on the plan.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from xcfg_ops_logp.kernels.online import ASM, LEAST, exponential, merge, scan


@dataclass(frozen=True)
class Plan:
    """How a row is walked; part of what decides its bits, so one plan serves every number of rows.

    tile_rows, tile_columns: a tile holds their product of columns; tile_columns should be 8 x 32 x warps, one
    16-byte load of bfloat16 per thread. segment: columns per segment, a multiple of the tile. stages: depth of the
    asynchronous load pipeline, 1 for plain loads. asm: the one-instruction exp2 (not in the interpreter).
    """

    tile_rows: int = 8
    tile_columns: int = 512
    segment: int = 32768
    warps: int = 2
    stages: int = 1
    asm: bool = ASM

    def __post_init__(self) -> None:
        if self.segment % (self.tile_rows * self.tile_columns):
            raise ValueError(f"a segment of {self.segment} columns is no whole number of tiles")


DEFAULT = Plan()
MANY_ROWS = 512
"""From this many rows on each segment gets a program of its own: programs of equal length fill the card more evenly.
Below it the second launch costs more than that gains (measured at 1 to 4,096 rows of 151,936 columns on an H200)."""


class Outcome(NamedTuple):
    """Per row, float32 [N], nats: logp of the selected id; lse = top + log_total; entropy, or None."""

    logp: torch.Tensor
    lse: torch.Tensor
    entropy: torch.Tensor | None
    top: torch.Tensor
    log_total: torch.Tensor

    def rows(self, part: slice) -> Outcome:
        """The same of some rows."""
        entropy = None if self.entropy is None else self.entropy[part]
        return Outcome(self.logp[part], self.lse[part], entropy, self.top[part], self.log_total[part])


@triton.jit
def _finish(
    x: tl.tensor, logp: tl.tensor, lse: tl.tensor, entropy: tl.tensor, top_out: tl.tensor, log_total_out: tl.tensor,
    row: tl.tensor, chosen: tl.tensor, columns: tl.tensor, top: tl.tensor, total: tl.tensor, weighted: tl.tensor,
    ENTROPY: tl.constexpr,
) -> None:  # fmt: skip
    """Store what a row comes to; an id outside the vocabulary gives NaN and loads nothing."""
    inside = (chosen >= 0) & (chosen < columns)
    value = tl.load(x + chosen, mask=inside, other=float("nan")).to(tl.float32)
    log_total = tl.log(total)
    tl.store(logp + row, (value - top) - log_total)
    tl.store(lse + row, top + log_total)
    tl.store(top_out + row, top)
    tl.store(log_total_out + row, log_total)
    if ENTROPY:
        tl.store(entropy + row, log_total - weighted / total)


@triton.jit
def _rows(
    logits: tl.tensor, selected: tl.tensor,
    logp: tl.tensor, lse: tl.tensor, entropy: tl.tensor, top_out: tl.tensor, log_total_out: tl.tensor,
    stride: tl.tensor, columns: tl.tensor,
    SEGMENT: tl.constexpr, R: tl.constexpr, C: tl.constexpr, STAGES: tl.constexpr, ENTROPY: tl.constexpr,
    ASM: tl.constexpr,
) -> None:  # fmt: skip
    """One program per row, all its segments in order."""
    row = tl.program_id(0)
    x = logits + row.to(tl.int64) * stride
    top = LEAST + tl.zeros([], tl.float32)
    total = tl.zeros([], tl.float32)
    weighted = tl.zeros([], tl.float32)
    for segment in range(tl.cdiv(columns, SEGMENT)):
        start = segment * SEGMENT
        top2, total2, weighted2 = scan(x, start, tl.minimum(start + SEGMENT, columns), R, C, STAGES, ENTROPY, ASM)
        top, total, weighted = merge(top, total, weighted, top2, total2, weighted2, ENTROPY, ASM)
    chosen = tl.load(selected + row)
    _finish(x, logp, lse, entropy, top_out, log_total_out, row, chosen, columns, top, total, weighted, ENTROPY)


@triton.jit
def _segments(
    logits: tl.tensor, partial: tl.tensor, stride: tl.tensor, columns: tl.tensor, segments: tl.tensor,
    SEGMENT: tl.constexpr, R: tl.constexpr, C: tl.constexpr, STAGES: tl.constexpr, ENTROPY: tl.constexpr,
    ASM: tl.constexpr,
) -> None:  # fmt: skip
    """One program per row and segment; partial [N, segments, 3]."""
    program = tl.program_id(0)
    row = program // segments
    start = (program % segments) * SEGMENT
    x = logits + row.to(tl.int64) * stride
    top, total, weighted = scan(x, start, tl.minimum(start + SEGMENT, columns), R, C, STAGES, ENTROPY, ASM)
    tl.store(partial + program * 3, top)
    tl.store(partial + program * 3 + 1, total)
    tl.store(partial + program * 3 + 2, weighted)


@triton.jit
def _merge_segments(
    logits: tl.tensor, selected: tl.tensor, partial: tl.tensor,
    logp: tl.tensor, lse: tl.tensor, entropy: tl.tensor, top_out: tl.tensor, log_total_out: tl.tensor,
    stride: tl.tensor, columns: tl.tensor, segments: tl.tensor, ENTROPY: tl.constexpr, ASM: tl.constexpr,
) -> None:  # fmt: skip
    """One program per row: what `_rows` does after each segment, in the same order."""
    row = tl.program_id(0)
    x = logits + row.to(tl.int64) * stride
    top = LEAST + tl.zeros([], tl.float32)
    total = tl.zeros([], tl.float32)
    weighted = tl.zeros([], tl.float32)
    for segment in range(segments):
        at = partial + (row * segments + segment) * 3
        top2 = tl.load(at)
        total2 = tl.load(at + 1)
        weighted2 = tl.load(at + 2)
        top, total, weighted = merge(top, total, weighted, top2, total2, weighted2, ENTROPY, ASM)
    chosen = tl.load(selected + row)
    _finish(x, logp, lse, entropy, top_out, log_total_out, row, chosen, columns, top, total, weighted, ENTROPY)


@triton.jit
def _gradient(
    logits: tl.tensor, selected: tl.tensor, top_in: tl.tensor, log_total_in: tl.tensor, entropy_in: tl.tensor,
    of_logp: tl.tensor, of_lse: tl.tensor, of_entropy: tl.tensor, out: tl.tensor,
    stride: tl.tensor, out_stride: tl.tensor, first: tl.tensor, columns: tl.tensor, tiles: tl.tensor,
    BLOCK: tl.constexpr, LSE: tl.constexpr, ENTROPY: tl.constexpr, ASM: tl.constexpr,
) -> None:  # fmt: skip
    """One program per row and block of columns; columns [first, first + columns) of the vocabulary are in `logits`."""
    program = tl.program_id(0)
    row = program // tiles
    column = (program % tiles) * BLOCK + tl.arange(0, BLOCK)
    there = column < columns
    x = tl.load(logits + row.to(tl.int64) * stride + column, mask=there, other=0.0).to(tl.float32)
    chosen = tl.load(selected + row) - first
    slope = tl.load(of_logp + row)
    log_prob = (x - tl.load(top_in + row)) - tl.load(log_total_in + row)
    prob = exponential(log_prob, ASM)
    factor = -slope
    if LSE:
        factor += tl.load(of_lse + row)
    grad = prob * factor
    if ENTROPY:
        # d entropy / d x = -p (log p + entropy); a p of 0 stays 0
        grad -= tl.load(of_entropy + row) * prob * (tl.maximum(log_prob, LEAST) + tl.load(entropy_in + row))
    grad = tl.where(column == chosen, grad + slope, grad)
    tl.store(out + row.to(tl.int64) * out_stride + column, grad.to(out.dtype.element_ty), mask=there)


def forward(
    logits: torch.Tensor,
    selected: torch.Tensor,
    *,
    entropy: bool = False,
    plan: Plan = DEFAULT,
    split: bool | None = None,
) -> Outcome:
    """Read the logits once. Checks nothing and waits for nothing.

    logits: bfloat16, float16 or float32 [N, V], unit stride along V. selected: int64 [N]; an id outside [0, V) gives
    NaN. A row with a NaN, a +inf or nothing but -inf gives NaN. split: None lets the number of rows decide; the bits
    are the same.
    """
    rows, columns = logits.shape
    if logits.stride(1) != 1 and columns > 1:
        raise ValueError(f"logits have strides {logits.stride()}; the vocabulary must have stride 1")
    result = torch.empty(5 if entropy else 4, rows, dtype=torch.float32, device=logits.device)
    out = (result[0], result[1], result[-1], result[2], result[3])
    outcome = Outcome(result[0], result[1], result[4] if entropy else None, result[2], result[3])
    if not rows:
        return outcome
    segments = triton.cdiv(columns, plan.segment)
    shape = {
        "SEGMENT": plan.segment, "R": plan.tile_rows, "C": plan.tile_columns, "STAGES": plan.stages,
        "ENTROPY": entropy, "ASM": plan.asm, "num_warps": plan.warps, "enable_fp_fusion": False,
    }  # fmt: skip
    if split is None:
        split = rows >= MANY_ROWS and segments > 1
    if not split:
        _rows[(rows,)](logits, selected, *out, logits.stride(0), columns, **shape)
        return outcome
    partial = torch.empty(rows, segments, 3, dtype=torch.float32, device=logits.device)
    _segments[(rows * segments,)](logits, partial, logits.stride(0), columns, segments, **shape)
    _merge_segments[(rows,)](
        logits, selected, partial, *out, logits.stride(0), columns, segments,
        ENTROPY=entropy, ASM=plan.asm, num_warps=1, enable_fp_fusion=False,
    )  # fmt: skip
    return outcome


def backward(
    logits: torch.Tensor,
    selected: torch.Tensor,
    outcome: Outcome,
    of_logp: torch.Tensor,
    *,
    of_lse: torch.Tensor | None = None,
    of_entropy: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    first: int = 0,
    block: int = 4096,
    warps: int = 4,
    asm: bool = ASM,
) -> torch.Tensor:
    """Return the gradient of the logits [N, V] in their dtype, rounded once; one read and one write.

    of_logp, of_lse, of_entropy: float32 [N], gradients of the outputs. out: where to write, may be the logits
    themselves. first: the vocabulary index of column 0, where the logits are a chunk. Entropy needs a forward with it.
    """
    rows, columns = logits.shape
    out = torch.empty_like(logits) if out is None else out
    if not rows:
        return out
    if of_entropy is not None and outcome.entropy is None:
        raise ValueError("a gradient of the entropy needs a forward with entropy=True")
    tiles = triton.cdiv(columns, block)
    unused = of_logp
    _gradient[(rows * tiles,)](
        logits, selected, outcome.top, outcome.log_total,
        unused if outcome.entropy is None else outcome.entropy,
        of_logp, unused if of_lse is None else of_lse, unused if of_entropy is None else of_entropy, out,
        logits.stride(0), out.stride(0), first, columns, tiles,
        BLOCK=block, LSE=of_lse is not None, ENTROPY=of_entropy is not None, ASM=asm, num_warps=warps,
        enable_fp_fusion=False,
    )  # fmt: skip
    return out
