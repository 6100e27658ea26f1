"""`linear_selected_logprob` at [4096, 4096] x [151936, 4096]^T: correctness, bits, times against the product alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from _gpu_timing import Case, Record, measure, same_bits, table
from xcfg_ops_logp.kernels import linear, linear_tile, selected
from xcfg_ops_logp.kernels.selected import Outcome

ROWS, DEPTH, VOCABULARY = 4096, 4096, 151_936
Forward = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], Outcome]

BLOCKS = {
    "4096x2112": linear.Blocks(columns=2112),
    "4096x4224": linear.Blocks(columns=4224),
    "4096x8448": linear.Blocks(columns=8448),
    "4096x12672": linear.Blocks(columns=12672),
    "4096x4224 two streams": linear.Blocks(columns=4224, buffers=2),
    "2048x16896": linear.Blocks(rows=2048, columns=16896),
    "1024x33792": linear.Blocks(rows=1024, columns=33792),
    "512x67584": linear.Blocks(rows=512, columns=67584),
    "256x135168": linear.Blocks(rows=256, columns=135168),
    "128x151936": linear.Blocks(rows=128, columns=VOCABULARY),
}
TILES = {
    "128x256x64 w8 s3": linear_tile.Tiles(),
    "128x256x64 w8 s4": linear_tile.Tiles(stages=4),
    "128x256x64 w8 s3 group16": linear_tile.Tiles(group=16),
    "128x256x64 w8 s3 group8": linear_tile.Tiles(group=8),
    "128x256x64 w8 s4 loop": linear_tile.Tiles(stages=4, flatten=False),
    "128x256x64 w8 s3 loop": linear_tile.Tiles(flatten=False),
    "128x256x128 w8 s2": linear_tile.Tiles(depth=128, stages=2),
    "256x128x64 w8 s3": linear_tile.Tiles(rows=256, columns=128),
    "256x128x64 w8 s4 loop": linear_tile.Tiles(rows=256, columns=128, stages=4, flatten=False),
    "128x128x64 w4 s4": linear_tile.Tiles(columns=128, warps=4, stages=4),
    "128x128x64 w4 s3 loop": linear_tile.Tiles(columns=128, warps=4, stages=3, flatten=False),
    "128x128x128 w4 s3": linear_tile.Tiles(columns=128, depth=128, warps=4),
}
DEFAULT_TILES = linear_tile.DEFAULT
SPECIALIZED = {
    "128x256x64 w8 s3 specialized": linear_tile.Tiles(specialize=True, flatten=False),
    "128x256x64 w4 s3 specialized": linear_tile.Tiles(specialize=True, flatten=False, warps=4),
    "128x128x64 w4 s4 specialized": linear_tile.Tiles(columns=128, warps=4, stages=4, specialize=True, flatten=False),
}


def blocked(blocks: linear.Blocks) -> Forward:
    """The chunked version with these shapes."""
    return lambda hidden, weight, ids: linear.forward(hidden, weight, ids, blocks=blocks)


def tiled(tiles: linear_tile.Tiles) -> Forward:
    """The one-kernel version with these tiles."""
    return lambda hidden, weight, ids: linear_tile.forward(hidden, weight, ids, tiles=tiles)


def inputs() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """hidden, weight, ids; logits of standard deviation about 3."""
    torch.manual_seed(11)
    hidden = torch.randn(ROWS, DEPTH, device="cuda").bfloat16()
    weight = (torch.randn(VOCABULARY, DEPTH, device="cuda") / 21).bfloat16()
    return hidden, weight, torch.randint(0, VOCABULARY, (ROWS,), device="cuda")


def check_values(
    record: Record, name: str, forward: Forward, data: tuple[torch.Tensor, ...], *, rounds_logits: bool
) -> None:
    """64 rows against a float64 product; logits that are rounded to bf16 may each be off by half a unit."""
    hidden, weight, ids = data
    pick = torch.arange(0, ROWS, ROWS // 64, device="cuda")
    logits = torch.cat([hidden[pick].double() @ part.double().t() for part in weight.split(16384)], dim=1)
    want = torch.log_softmax(logits, -1).gather(-1, ids[pick][:, None])[:, 0]
    got = forward(hidden, weight, ids).logp[pick]
    unit = 2.0**-8 if rounds_logits else 2.0**-17
    bound = unit * (logits.gather(-1, ids[pick][:, None])[:, 0].abs() + logits.abs().amax(-1)) / 2 + 2.0**-13
    error = got.double() - want
    worst = float((error.abs() / bound).nan_to_num(nan=torch.inf).max())
    rms = float(error.square().mean().sqrt())
    record.check(f"logp against float64, {name}", worst <= 1, share_of_bound=worst, rms=rms)


def check_bits(record: Record, name: str, forward: Forward, data: tuple[torch.Tensor, ...]) -> bool:
    """The bits of a row alone, at other positions and in other batches."""
    hidden, weight, ids = data
    whole = forward(hidden, weight, ids)
    bad: list[str] = []

    def compare(label: str, part: slice | torch.Tensor, got: Outcome) -> None:
        """Say in which outputs how many rows moved, and by how much at most."""
        for output in ("logp", "lse", "top", "log_total"):
            left, right = getattr(whole, output)[part], getattr(got, output)
            if not same_bits(left, right):
                moved = int((left.view(torch.int32) != right.view(torch.int32)).sum())
                bad.append(f"{label}: {output} moved in {moved}, by {float((left - right).abs().max()):.3g} at most")

    for first, count in ((0, 1), (4095, 1), (77, 7), (0, 128), (1000, 129), (3, 1000), (2048, 2048), (1, 4095)):
        part = slice(first, first + count)
        compare(f"rows {first}+{count}", part, forward(hidden[part], weight, ids[part]))
    order = torch.randperm(ROWS, device="cuda")
    compare("permuted", order, forward(hidden[order].contiguous(), weight, ids[order]))
    compare("run to run", slice(None), forward(hidden, weight, ids))
    record.check(f"a row's bits do not depend on the batch, {name}", not bad, different=bad)
    return not bad


def check_gradients(record: Record, data: tuple[torch.Tensor, ...]) -> None:
    """A small case against float64 autograd, all three outputs; and the batch invariance of the gradient of hidden.

    The bound is the error of a peer in the same run: autograd through full bfloat16 logits and a float32 softmax. It
    rounds the logits and their gradient to bfloat16, as ours does, and in float64 those two roundings alone give nine
    tenths of the error; a tenth more than the peer's is left for sums that are rounded elsewhere.
    """
    torch.manual_seed(5)
    count, depth, columns = 300, 256, 5000
    hidden = torch.randn(count, depth, device="cuda").bfloat16()
    weight = (torch.randn(columns, depth, device="cuda") / 5).bfloat16()
    ids = torch.randint(0, columns, (count,), device="cuda")
    slopes = torch.randn(3, count, device="cuda")
    h64, w64 = hidden.double().requires_grad_(), weight.double().requires_grad_()

    def autograd(logits: torch.Tensor, leaves: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        logp = torch.log_softmax(logits, -1)
        values = (logp.gather(-1, ids[:, None])[:, 0], torch.logsumexp(logits, -1), -(logp.exp() * logp).sum(-1))
        total = sum((v * s.to(v.dtype)).sum() for v, s in zip(values, slopes, strict=True))
        return torch.autograd.grad(total, leaves)

    want = autograd(h64 @ w64.t(), (h64, w64))
    leaves = (hidden.clone().requires_grad_(), weight.clone().requires_grad_())
    peer = autograd((leaves[0] @ leaves[1].t()).float(), leaves)
    for rows in (128, 512):
        blocks = linear.Blocks(rows=rows, columns=1056)
        outcome = linear.forward(hidden, weight, ids, entropy=True, blocks=blocks)
        got = linear.backward(
            hidden, weight, ids, outcome, slopes[0], of_lse=slopes[1], of_entropy=slopes[2], blocks=blocks
        )
        for label, mine, other, exact in zip(("hidden", "weight"), got, peer, want, strict=True):
            ours, theirs = (float((item.double() - exact).norm() / exact.norm()) for item in (mine, other))
            name = f"gradient of {label} against float64 beside autograd's, blocks of {rows} rows"
            record.check(name, ours <= 1.1 * theirs, error=ours, of_peer=theirs)
    hidden, weight, ids = data
    slope = torch.randn(ROWS, device="cuda")
    outcome = linear.forward(hidden, weight, ids)
    whole = linear.backward(hidden, weight, ids, outcome, slope)[0]
    part = slice(1001, 2001)
    cut = outcome.rows(part)
    few = linear.backward(hidden[part], weight, ids[part], cut, slope[part])[0]
    record.check("the gradient of hidden has the same bits in another batch", same_bits(whole[part], few))


def _peers(record: Record, data: tuple[torch.Tensor, ...]) -> dict[str, Case]:
    hidden, weight, ids = data

    def rows_of(count: int) -> torch.Tensor:
        parts = [
            torch.log_softmax(h @ weight.t(), -1).gather(-1, i[:, None])
            for h, i in zip(hidden.split(count), ids.split(count), strict=True)
        ]
        return torch.cat(parts)

    cases: dict[str, Case] = {
        "full logits": lambda: torch.log_softmax(hidden @ weight.t(), -1).gather(-1, ids[:, None]),
        "torch, 512 rows at a time": lambda: rows_of(512),
        "product, then ours on full logits": lambda: selected.forward(hidden @ weight.t(), ids),
    }
    try:
        from liger_kernel.ops.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyFunction as Fused

        cases["Liger fused linear cross entropy"] = lambda: Fused.apply(
            hidden, weight, ids, None, None, -100, 0.0, 0.0, "none"
        )
    except ImportError as error:
        record.facts["Liger"] = f"not run: {error}"
    return cases


def run(record: Record, rounds: int, *, defaults: bool) -> list[str]:
    """The chunked version, its peers, and its backward. defaults: the default blocks and the peers only."""
    variants = {"default 2048x16896": linear.DEFAULT} if defaults else BLOCKS
    data = inputs()
    hidden, weight, ids = data
    for name, blocks in variants.items():
        record.attempt(
            name, lambda n=name, b=blocks: check_values(record, f"blocks {n}", blocked(b), data, rounds_logits=True)
        )
    invariant = {}
    for name, blocks in variants.items():
        probe = Record()
        probe.attempt(name, lambda n=name, b=blocks, p=probe: check_bits(p, n, blocked(b), data))
        invariant[name] = probe.checks
    record.facts["blocks_invariant"] = invariant
    record.attempt("bits", lambda: check_bits(record, "default blocks", blocked(linear.DEFAULT), data))
    record.attempt("gradients", lambda: check_gradients(record, data))
    full = torch.empty(ROWS, VOCABULARY, dtype=torch.bfloat16, device="cuda")
    cases: dict[str, Case] = {"product alone": lambda: torch.mm(hidden, weight.t(), out=full)}
    width = 8448
    cases["products of 8448 columns alone"] = lambda: [
        torch.mm(hidden, part.t(), out=full.view(-1)[: ROWS * part.shape[0]].view(ROWS, -1))
        for part in weight.split(width)
    ]
    with torch.no_grad():
        cases |= _peers(record, data)
        for name, blocks in variants.items():
            cases[f"ours blocks {name}"] = partial(blocked(blocks), hidden, weight, ids)
        cases["ours blocks 2048x16896 plan 8x1024"] = lambda: linear.forward(
            hidden, weight, ids, blocks=linear.Blocks(plan=selected.Plan(tile_rows=8))
        )
        cases["ours tiles 128x256x64 w8 s3"] = lambda: linear_tile.forward(hidden, weight, ids)
        measure(record, "head", cases, rounds=rounds)
    floor = record.times["head/product alone"]["median_ms"]
    lines = [
        f"head, bf16 [{ROWS}, {DEPTH}] x [{VOCABULARY}, {DEPTH}]^T; product {floor:.3f} ms; ratio = time / product",
        *table(record.times, "head", floor, inverse=False),
    ]
    for name, checks in invariant.items():
        lines.append(f"blocks {name}: " + ("bits hold" if all(c["ok"] for c in checks) else f"bits move: {checks}"))
    del cases
    return lines + _backward_times(record, data, rounds)


def _backward_times(record: Record, data: tuple[torch.Tensor, ...], rounds: int) -> list[str]:
    hidden, weight, ids = data
    slope = torch.randn(ROWS, device="cuda")
    logits = hidden @ weight.t()
    outcome = linear.forward(hidden, weight, ids)
    leaf_hidden, leaf_weight = hidden.clone().requires_grad_(), weight.clone().requires_grad_()

    def autograd() -> Any:
        values = torch.log_softmax(leaf_hidden @ leaf_weight.t(), -1).gather(-1, ids[:, None])[:, 0]
        return torch.autograd.grad(values, (leaf_hidden, leaf_weight), slope.to(values.dtype))

    cases: dict[str, Case] = {
        "three products alone": lambda: (hidden @ weight.t(), logits @ weight, logits.t() @ hidden),
        "full logits, forward+backward": autograd,
    }
    for columns in (4224, 8448):
        blocks = dataclasses.replace(linear.BACKWARD, columns=columns)
        cases[f"ours backward {columns}"] = lambda b=blocks: linear.backward(
            hidden, weight, ids, outcome, slope, blocks=b
        )
    cases["ours forward+backward"] = lambda: linear.backward(
        hidden, weight, ids, linear.forward(hidden, weight, ids), slope
    )
    try:
        from liger_kernel.ops.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyFunction as Fused

        def liger() -> Any:
            values = Fused.apply(leaf_hidden, leaf_weight, ids, None, None, -100, 0.0, 0.0, "none")[0]
            return torch.autograd.grad(values, (leaf_hidden, leaf_weight), slope.to(values.dtype))

        cases["Liger, forward+backward"] = liger
    except ImportError as error:
        record.facts["Liger"] = f"not run: {error}"
    measure(record, "head_backward", cases, rounds=max(rounds // 2, 5))
    floor = record.times["head_backward/three products alone"]["median_ms"]
    return [
        f"head backward; three products {floor:.3f} ms; ratio = time / products",
        *table(record.times, "head_backward", floor, inverse=False),
    ]


def run_tiles(record: Record, rounds: int, variants: dict[str, linear_tile.Tiles]) -> list[str]:
    """The one-kernel version, every variant; those that do not compile are listed as not run."""
    data = inputs()
    hidden, weight, ids = data
    full = torch.empty(ROWS, VOCABULARY, dtype=torch.bfloat16, device="cuda")
    cases: dict[str, Case] = {"product alone": lambda: torch.mm(hidden, weight.t(), out=full)}
    with torch.no_grad():
        for name, tiles in variants.items():
            cases[name] = partial(tiled(tiles), hidden, weight, ids)
        if linear_tile.DEFAULT in variants.values():
            unrounded = dataclasses.replace(linear_tile.DEFAULT, round_logits=False)
            cases["default, float32 logits"] = lambda: linear_tile.forward(hidden, weight, ids, tiles=unrounded)
            cases["default, entropy"] = lambda: linear_tile.forward(hidden, weight, ids, entropy=True)
            cases["default, 1 row"] = lambda: linear_tile.forward(hidden[:1], weight, ids[:1])
            cases["product alone, 1 row"] = lambda: hidden[:1] @ weight.t()
        measure(record, "tiles", cases, rounds=rounds)
    alive = {name: tiles for name, tiles in variants.items() if "median_ms" in record.times[f"tiles/{name}"]}
    for name, tiles in alive.items():
        record.attempt(
            name, lambda n=name, t=tiles: check_values(record, f"tiles {n}", tiled(t), data, rounds_logits=True)
        )
        record.attempt(name, lambda n=name, t=tiles: check_bits(record, f"tiles {n}", tiled(t), data))
    if linear_tile.DEFAULT in alive.values():
        unrounded = dataclasses.replace(linear_tile.DEFAULT, round_logits=False)
        record.attempt(
            "unrounded",
            lambda: check_values(record, "tiles, float32 logits", tiled(unrounded), data, rounds_logits=False),
        )
    floor = record.times["tiles/product alone"]["median_ms"]
    return [f"one kernel; product alone {floor:.3f} ms", *table(record.times, "tiles", floor, inverse=False)]
