"""`linear_selected_logprob` over chunks of the vocabulary: the library's head product, then one read of its chunk.

For columns [c, c + w) the product hidden @ weight[c : c + w]^T goes to one buffer [rows, w] that every chunk uses
again, and each row's state (top, total, weighted) absorbs it (see online.py), chunk after chunk in vocabulary order.
Logits are rounded to the dtype of the weights, as where they are written out.

The library picks its kernel by shape. Rows are therefore worked in blocks of a fixed number, the last one padded with
zeros: every call has the same shapes, whatever the number of rows. That makes the bits of a row independent of the
batch where the chosen kernels sum K in one order for every tile (no split over K); a test must see that on the card.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
import triton
import triton.language as tl

from xcfg_ops_logp.kernels import selected as on_logits
from xcfg_ops_logp.kernels.online import LEAST, merge, scan
from xcfg_ops_logp.kernels.selected import Outcome, Plan


@dataclass(frozen=True)
class Blocks:
    """What decides the shapes of the library's products, and so the bits.

    rows: rows per product, padded. columns: vocabulary per product; 16896 = 66 tiles of 256, which with 16 tiles of 128
    rows are exactly 8 waves of the 132 multiprocessors of an H200. buffers: 2 puts the reading of a chunk on a second
    stream beside the next product. plan: how a row of a chunk is walked.
    """

    rows: int = 2048
    columns: int = 16896
    buffers: int = 1
    plan: Plan = field(default_factory=lambda: Plan(tile_rows=4, tile_columns=1024, warps=4))


DEFAULT = Blocks()
BACKWARD = Blocks(rows=4096, columns=8448)


@triton.jit(do_not_specialize=["rows"])
def _absorb(
    chunk: tl.tensor, selected: tl.tensor, state: tl.tensor, chosen: tl.tensor,
    first: tl.tensor, width: tl.tensor, stride: tl.tensor, rows: tl.tensor,
    R: tl.constexpr, C: tl.constexpr, STAGES: tl.constexpr, ENTROPY: tl.constexpr, ASM: tl.constexpr,
) -> None:  # fmt: skip
    """One program per row: merge the chunk into state [3, rows]; chosen [rows] takes the selected logit if it is here.

    first: vocabulary index of the chunk's column 0; width: columns in use.
    """
    row = tl.program_id(0)
    x = chunk + row.to(tl.int64) * stride
    top2, total2, weighted2 = scan(x, 0, width, R, C, STAGES, ENTROPY, ASM)
    top = tl.load(state + row)
    total = tl.load(state + rows + row)
    weighted = tl.load(state + 2 * rows + row)
    top, total, weighted = merge(top, total, weighted, top2, total2, weighted2, ENTROPY, ASM)
    tl.store(state + row, top)
    tl.store(state + rows + row, total)
    tl.store(state + 2 * rows + row, weighted)
    local = tl.load(selected + row) - first
    inside = (local >= 0) & (local < width)
    value = tl.load(x + local, mask=inside, other=0.0).to(tl.float32)
    tl.store(chosen + row, value, mask=inside)


def finish(state: torch.Tensor, chosen: torch.Tensor, *, entropy: bool) -> Outcome:
    """Return what states [3, N] and selected logits [N] (NaN where no chunk owned the id) come to."""
    top, total, weighted = state
    log_total = total.log()
    return Outcome(
        (chosen - top) - log_total, top + log_total, log_total - weighted / total if entropy else None, top, log_total
    )


def _pieces(total: int, size: int) -> Iterator[slice]:
    for start in range(0, total, size):
        yield slice(start, min(start + size, total))


def _padded(tensor: torch.Tensor, rows: int) -> torch.Tensor:
    """The tensor itself where it has `rows` rows, else a copy with zeros below."""
    if tensor.shape[0] == rows:
        return tensor
    padded = tensor.new_zeros(rows, *tensor.shape[1:])
    padded[: tensor.shape[0]] = tensor
    return padded


def forward(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    selected: torch.Tensor,
    *,
    entropy: bool = False,
    blocks: Blocks = DEFAULT,
) -> Outcome:
    """Checks nothing and waits for nothing.

    hidden [N, K] and weight [V, K], one floating dtype, contiguous; selected int64 [N], an id outside [0, V) gives
    NaN. Extra memory: `buffers` x rows x columns logits, and a padded copy of the last block of hidden.
    """
    count = hidden.shape[0]
    state = torch.zeros(3, count, dtype=torch.float32, device=hidden.device)
    chosen = torch.empty(count, dtype=torch.float32, device=hidden.device)
    size = blocks.rows * min(blocks.columns, weight.shape[0])
    buffers = [hidden.new_empty(size) for _ in range(blocks.buffers)]
    for piece in _pieces(count, blocks.rows):
        inner, value = _block(
            _padded(hidden[piece], blocks.rows), weight, selected[piece], buffers, entropy=entropy, blocks=blocks
        )
        state[:, piece] = inner
        chosen[piece] = value
    return finish(state, chosen, entropy=entropy)


def _block(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    selected: torch.Tensor,
    buffers: list[torch.Tensor],
    *,
    entropy: bool,
    blocks: Blocks,
) -> tuple[torch.Tensor, torch.Tensor]:
    """States [3, n] and selected logits [n] of the n real rows of one padded block."""
    real = selected.shape[0]
    state = torch.zeros(3, real, dtype=torch.float32, device=hidden.device)
    state[0].fill_(LEAST.value)
    chosen = torch.full((real,), torch.nan, dtype=torch.float32, device=hidden.device)
    overlap = len(buffers) > 1
    main = torch.cuda.current_stream() if overlap else None
    side = torch.cuda.Stream() if overlap else None  # type: ignore[no-untyped-call]
    free: list[torch.cuda.Event | None] = [None] * len(buffers)
    if side is not None and main is not None:
        side.wait_stream(main)
    for index, piece in enumerate(_pieces(weight.shape[0], blocks.columns)):
        turn = index % len(buffers)
        width = piece.stop - piece.start
        logits = buffers[turn][: blocks.rows * width].view(blocks.rows, width)
        if main is None or side is None:
            torch.mm(hidden, weight[piece].t(), out=logits)
            _launch(logits, selected, state, chosen, piece.start, entropy, blocks.plan)
            continue
        taken = free[turn]
        if taken is not None:
            main.wait_event(taken)
        torch.mm(hidden, weight[piece].t(), out=logits)
        side.wait_stream(main)
        with torch.cuda.stream(side):
            _launch(logits, selected, state, chosen, piece.start, entropy, blocks.plan)
            free[turn] = side.record_event()
    if side is not None and main is not None:
        main.wait_stream(side)
    return state, chosen


def _launch(
    logits: torch.Tensor,
    selected: torch.Tensor,
    state: torch.Tensor,
    chosen: torch.Tensor,
    first: int,
    entropy: bool,
    plan: Plan,
) -> None:
    real = selected.shape[0]
    _absorb[(real,)](
        logits, selected, state, chosen, first, logits.shape[1], logits.stride(0), real,
        R=plan.tile_rows, C=plan.tile_columns, STAGES=plan.stages, ENTROPY=entropy, ASM=plan.asm,
        num_warps=plan.warps, enable_fp_fusion=False,
    )  # fmt: skip


def backward(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    selected: torch.Tensor,
    outcome: Outcome,
    of_logp: torch.Tensor,
    *,
    of_lse: torch.Tensor | None = None,
    of_entropy: torch.Tensor | None = None,
    blocks: Blocks = BACKWARD,
    of_weight: bool = True,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the gradients of hidden [N, K] and weight [V, K] in their dtype; logits are computed again, in chunks.

    of_logp, of_lse, of_entropy: float32 [N]. of_weight: whether the weights' gradient is wanted.

    The gradient of a chunk of logits is rounded to their dtype and overwrites them; that of hidden is accumulated in
    float32 over the chunks, in vocabulary order. With more rows than one block, that of the weights is too, which
    takes V x K float32; within one block it is written once.
    """
    count = hidden.shape[0]
    grad_hidden = torch.empty_like(hidden)
    several = count > blocks.rows
    grad_weight = None
    if of_weight:
        # within one block every part of it is written
        fresh = torch.empty if 0 < count <= blocks.rows else torch.zeros
        grad_weight = fresh(weight.shape, dtype=torch.float32 if several else weight.dtype, device=weight.device)
    buffer = hidden.new_empty(blocks.rows * min(blocks.columns, weight.shape[0]))
    for piece in _pieces(count, blocks.rows):
        rows = _padded(hidden[piece], blocks.rows)
        real = piece.stop - piece.start
        sums = torch.zeros(blocks.rows, hidden.shape[1], dtype=torch.float32, device=hidden.device)
        part = outcome.rows(piece)
        slopes = [None if values is None else values[piece] for values in (of_lse, of_entropy)]
        for columns in _pieces(weight.shape[0], blocks.columns):
            width = columns.stop - columns.start
            logits = buffer[: blocks.rows * width].view(blocks.rows, width)
            torch.mm(rows, weight[columns].t(), out=logits)
            # padded rows have zeros in hidden: their logits are 0 and must stay so, they are no part of the gradient
            on_logits.backward(
                logits[:real], selected[piece], part, of_logp[piece], of_lse=slopes[0], of_entropy=slopes[1],
                out=logits[:real], first=columns.start, asm=blocks.plan.asm,
            )  # fmt: skip
            _add_product(sums, logits, weight[columns])
            if grad_weight is not None and several:
                _add_product(grad_weight[columns], logits.t(), rows)
            elif grad_weight is not None:
                torch.mm(logits.t(), rows, out=grad_weight[columns])
        grad_hidden[piece] = sums[:real]
    return grad_hidden, None if grad_weight is None else grad_weight.to(weight.dtype)


def _add_product(sums: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> None:
    """Add left @ right to sums, with sums in float32 and the product in the dtype of its factors."""
    if sums.dtype == left.dtype:
        sums.addmm_(left, right)
    elif left.is_cuda:
        torch.addmm(sums, left, right, out_dtype=torch.float32, out=sums)
    else:
        sums += left.float() @ right.float()
