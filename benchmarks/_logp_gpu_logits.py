"""`selected_logprob` on logits [N, V]: correctness against float64, bits, and times against the one-read floor."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import triton
import triton.language as tl
from _gpu_timing import Case, Record, measure, same_bits, table
from torch.nn import functional
from xcfg_ops_logp.kernels import selected as kernel

ROWS, VOCABULARY = 4096, 151_936
PLANS = {
    "8x512 w2": kernel.DEFAULT,
    **{f"8x512 w2, segments of {segment >> 10}k": kernel.Plan(segment=segment) for segment in (16384, 65536, 262144)},
    **{f"8x512 w2, {stages} stages": kernel.Plan(stages=stages) for stages in (2, 3)},
    "8x512 w2, exp": kernel.Plan(asm=False),
    **{
        f"{rows}x{columns} w{columns // 256}": kernel.Plan(tile_rows=rows, tile_columns=columns, warps=columns // 256)
        for rows, columns in ((4, 512), (16, 512), (2, 1024), (4, 1024), (8, 1024), (16, 1024), (4, 2048), (8, 2048))
    },
    **{f"8x1024 w4, {stages} stages": kernel.Plan(tile_columns=1024, warps=4, stages=stages) for stages in (2, 3)},
}
DEFAULTS = {name: PLANS[name] for name in ("8x512 w2", "4x1024 w4", "8x1024 w4")}
"""Beside the default plan its nearest."""


@triton.jit
def _read(words, out, count, BLOCK: tl.constexpr, STEPS: tl.constexpr):
    """XOR of BLOCK x STEPS int32 words per program: nothing but the read."""
    first = tl.program_id(0).to(tl.int64) * (BLOCK * STEPS)
    acc = tl.zeros([BLOCK], tl.int32)
    for step in tl.static_range(STEPS):
        at = first + step * BLOCK + tl.arange(0, BLOCK)
        acc ^= tl.load(words + at, mask=at < count, other=0)
    tl.store(out + tl.program_id(0), tl.xor_sum(acc, axis=0))


def read_case(logits: torch.Tensor, block: int, steps: int) -> Case:
    """Read every byte of `logits` once."""
    words = logits.view(-1).view(torch.int32)
    programs = triton.cdiv(words.numel(), block * steps)
    out = torch.empty(programs, dtype=torch.int32, device="cuda")
    return lambda: _read[(programs,)](words, out, words.numel(), BLOCK=block, STEPS=steps, num_warps=block // 256)


def hard_logits(rows: int, columns: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Rows of every kind: plain, peaked, flat, -inf beside finite, -inf in front, equal maxima, large, signed zero."""
    generator = torch.Generator(device="cuda").manual_seed(seed)
    x = torch.randn(rows, columns, generator=generator, device="cuda") * 4
    kind = torch.arange(rows, device="cuda") % 8
    x[kind == 1, columns // 2] = 40
    x[kind == 2] *= 0.01
    x[kind == 3, ::2] = -torch.inf
    x[kind == 4, : columns - 1] = -torch.inf
    x[kind == 5] = x[kind == 5].clamp(max=3)
    x[kind == 6] *= 1000
    x[kind == 7] = torch.where(x[kind == 7] > 0, 0.0, -0.0)
    return x.to(dtype)


def _oracle(logits: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """float64: log probabilities [N, V], selected, log-sum-exp, entropy."""
    logp = torch.log_softmax(logits.double(), dim=-1)
    entropy = -(logp.exp() * logp.clamp_min(-1e300)).sum(-1)
    return logp, logp.gather(-1, ids[:, None])[:, 0], torch.logsumexp(logits.double(), -1), entropy


def _within(got: torch.Tensor, want: torch.Tensor, bound: torch.Tensor) -> tuple[bool, float]:
    """Whether |got - want| <= bound where want is finite, and the same infinities elsewhere; the greatest excess."""
    finite = want.isfinite()
    share = ((got.double() - want).abs() / bound)[finite]
    share = torch.where(share.isnan(), torch.inf, share)
    worst = float(share.max()) if share.numel() else 0.0
    alike = torch.allclose(got.double()[~finite], want[~finite], rtol=0, atol=0, equal_nan=True)
    return worst <= 1 and alike, worst


def check_values(record: Record, dtype: torch.dtype, columns: int, plan: kernel.Plan, rows: int = 64) -> None:
    """Values and gradients against float64. Bounds: float32 rounding of the terms that a result is made of."""
    logits = hard_logits(rows, columns, dtype, seed=columns)
    ids = torch.randint(0, columns, (rows,), device="cuda")
    name = f"{str(dtype).removeprefix('torch.')} V={columns}"
    logp, want, lse, entropy = _oracle(logits, ids)
    top = logits.double().max(-1).values
    got = kernel.forward(logits, ids, entropy=True, plan=plan)
    unit, slack = 2.0**-22, 2.0**-20
    for label, value, expected, bound in (
        ("logp", got.logp, want, slack + unit * want.abs()),
        ("lse", got.lse, lse, slack + unit * (lse.abs() + top.abs())),
        ("entropy", got.entropy, entropy, 4 * slack * (1 + entropy.abs())),
    ):
        ok, worst = _within(value, expected, bound)
        record.check(f"{label} against float64, {name}", ok, share_of_bound=worst)
    slopes = torch.randn(3, rows, device="cuda")
    grad = kernel.backward(logits, ids, got, slopes[0], of_lse=slopes[1], of_entropy=slopes[2], asm=plan.asm)
    g, gl, ge = slopes.double()[:, :, None]
    prob, finite_logp = logp.exp(), logp.clamp_min(-1e300)
    expected = prob * (gl - g - ge * (finite_logp + entropy[:, None]))
    expected.scatter_add_(1, ids[:, None], g)
    size = prob * (gl.abs() + g.abs() + ge.abs() * (finite_logp.abs() + entropy[:, None].abs()))
    chosen = torch.zeros_like(size).scatter_(1, ids[:, None], g.abs())
    # the exponent itself carries float32 rounding of |log p|
    relative = 2 * slack + unit * finite_logp.abs().clamp_max(1e4)
    tiny = {torch.float16: 2.0**-25, torch.bfloat16: 2.0**-120, torch.float32: 2.0**-120}[dtype]
    bound = torch.finfo(dtype).eps * expected.abs() + relative * (size + chosen) + tiny
    ok, worst = _within(grad, expected, bound)
    record.check(f"gradient against float64, {name}", ok, share_of_bound=worst)


def check_refusals(record: Record, plan: kernel.Plan) -> None:
    """What has no distribution surfaces as NaN, in that row alone."""
    x = torch.randn(6, VOCABULARY, device="cuda").bfloat16()
    x[0] = -torch.inf
    x[1, 100_000] = torch.nan
    x[2, 5] = torch.inf
    ids = torch.tensor([0, 7, 5, -1, VOCABULARY, 3], device="cuda")
    for split in (False, True):
        out = kernel.forward(x, ids, entropy=True, plan=plan, split=split).logp
        record.check(f"NaN where there is no distribution, split={split}", out.isnan().tolist() == [True] * 5 + [False])


def check_bits(record: Record, logits: torch.Tensor, ids: torch.Tensor, name: str, plan: kernel.Plan) -> None:
    """The bits of a row at every batch size, position and launch, and in rows of another alignment."""
    whole = kernel.forward(logits, ids, entropy=True, plan=plan)
    rows, columns = logits.shape
    sizes = [n for n in (1, 2, 3, 7, 16, 64, 129, 263, 264, 512, 1000, 2048, rows) if n <= rows]

    def equal(part: slice | torch.Tensor, got: kernel.Outcome) -> bool:
        pairs = zip(whole, got, strict=True)
        return all(left is not None and right is not None and same_bits(left[part], right) for left, right in pairs)

    bad: list[str] = []
    for count in sizes:
        for first in {0, (rows - count) // 2 | 1, rows - count}:
            part = slice(first, first + count)
            for split in (None, True, False):
                if count > 1000 and split:
                    continue
                got = kernel.forward(logits[part], ids[part], entropy=True, plan=plan, split=split)
                if got.logp.shape[0] == count and not equal(part, got):
                    bad.append(f"rows {first}+{count} split={split}")
    order = torch.randperm(min(rows, 1024), device="cuda")
    if not equal(order, kernel.forward(logits[order], ids[order], entropy=True, plan=plan)):
        bad.append("permuted")
    for shift, pad in ((1, 3), (8, 8), (0, 1)) if plan == kernel.DEFAULT else ():
        few = min(64, rows)
        wide = torch.randn(few, columns + pad + shift, device="cuda").to(logits.dtype)
        wide[:, shift : shift + columns] = logits[:few]
        got = kernel.forward(wide[:, shift : shift + columns], ids[:few], entropy=True, plan=plan)
        if not equal(slice(0, few), got):
            bad.append(f"alignment {shift} {pad}")
    record.check(f"a row's bits do not depend on the batch, {name}", not bad, different=bad)


def check_planted(record: Record, logits: torch.Tensor, ids: torch.Tensor) -> None:
    """Another order of addition is seen: the bit checks can fail."""
    one = kernel.forward(logits, ids)
    other = kernel.forward(logits, ids, plan=dataclasses.replace(kernel.DEFAULT, tile_rows=4))
    moved = int((one.lse.view(torch.int32) != other.lse.view(torch.int32)).sum())
    moved += int((one.logp.view(torch.int32) != other.logp.view(torch.int32)).sum())
    record.check("a planted change of order moves bits", moved > 0, moved=moved)


def peers(record: Record) -> Iterator[tuple[str, Callable[[torch.Tensor, torch.Tensor], Any]]]:
    """What others offer: name and (logits, ids) -> per-row values."""

    def plain(x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return torch.log_softmax(x, dim=-1).gather(-1, ids[:, None])

    def plain32(x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return torch.log_softmax(x, dim=-1, dtype=torch.float32).gather(-1, ids[:, None])

    def entropy(x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(x, ids, reduction="none")

    yield "torch log_softmax+gather", plain
    yield "torch log_softmax(float32)+gather", plain32
    yield "F.cross_entropy", entropy
    yield "torch.compile log_softmax(float32)+gather", torch.compile(plain32)
    try:
        from liger_kernel.ops.cross_entropy import LigerCrossEntropyFunction

        yield (
            "Liger cross entropy",
            lambda x, ids: LigerCrossEntropyFunction.apply(x, ids, None, -100, 0.0, 0.0, "none")[0],
        )
    except ImportError as error:
        record.facts["Liger"] = f"not run: {error}"
    try:
        log_softmax = vllm_log_softmax(record)
    except Exception as error:  # noqa: BLE001 - any failure to import means that it was not run
        record.facts["vLLM batch-invariant log_softmax"] = f"not run: {type(error).__name__}: {error}"
    else:
        yield (
            "vLLM batch-invariant log_softmax+gather",
            lambda x, ids: log_softmax(x, dim=-1).gather(-1, ids[:, None]),
        )


def vllm_log_softmax(record: Record) -> Callable[..., torch.Tensor]:
    """Return vLLM's kernel that does not depend on the batch; it moved between 0.25 and 0.32. It has no gradient."""
    import vllm

    for place in ("layers", "determinism"):
        name = f"vllm.model_executor.{place}.batch_invariant"
        try:
            found: Callable[..., torch.Tensor] = importlib.import_module(name).log_softmax
        except ModuleNotFoundError as error:
            if not name.startswith(str(error.name)):
                raise
        else:
            record.facts["vLLM batch-invariant log_softmax"] = f"{name} of vLLM {vllm.__version__}"
            return found
    raise ImportError(f"vLLM {vllm.__version__} has its batch-invariant log_softmax somewhere else")


def run(record: Record, rounds: int, *, defaults: bool) -> list[str]:
    """All checks and times of this part; lines to print. defaults: few plans."""
    plans = DEFAULTS if defaults else PLANS
    torch.manual_seed(7)
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for columns in (1, 2, 500, 512, 49_152, VOCABULARY, VOCABULARY - 293):
            record.attempt(f"{dtype} {columns}", lambda d=dtype, c=columns: check_values(record, d, c, kernel.DEFAULT))
    record.attempt("refusals", lambda: check_refusals(record, kernel.DEFAULT))
    logits = (torch.randn(ROWS, VOCABULARY, device="cuda") * 4).bfloat16()
    ids = torch.randint(0, VOCABULARY, (ROWS,), device="cuda")
    for name, plan in plans.items():
        record.attempt(name, lambda n=name, p=plan: check_bits(record, logits, ids, n, p))
        record.attempt(name, lambda p=plan: check_values(record, torch.bfloat16, VOCABULARY, p, rows=16))
    for dtype, columns in ((torch.float32, VOCABULARY), (torch.float16, 49_152), (torch.bfloat16, 151_643)):
        x = hard_logits(300, columns, dtype, seed=3)
        record.attempt(
            "bits", lambda x=x, c=columns, d=dtype: check_bits(record, x, ids[:300] % c, f"{d} V={c}", kernel.DEFAULT)
        )
    check_planted(record, logits, ids)
    lines = _forward_times(record, logits, ids, rounds, plans)
    if not defaults:
        lines += _few_rows(record, logits, ids, rounds)
    return lines + _backward_times(record, logits, ids, rounds)


def _forward_times(
    record: Record, logits: torch.Tensor, ids: torch.Tensor, rounds: int, plans: dict[str, kernel.Plan]
) -> list[str]:
    target = torch.empty_like(logits)
    cases: dict[str, Case] = {"copy": lambda: target.copy_(logits)}
    for block, steps in ((1024, 4), (2048, 4), (1024, 8), (4096, 4)):
        cases[f"read {block}x{steps}"] = read_case(logits, block, steps)
    cases["torch.amax"] = lambda: logits.amax(-1)
    for name, plan in plans.items():
        cases[f"ours {name}"] = lambda p=plan: kernel.forward(logits, ids, plan=p)
        cases[f"ours {name}, entropy"] = lambda p=plan: kernel.forward(logits, ids, entropy=True, plan=p)
    cases["ours 8x512 w2, one program a row"] = lambda: kernel.forward(logits, ids, split=False)
    with torch.no_grad():
        for name, peer in peers(record):
            own = logits.clone() if "Liger" in name else logits
            cases[name] = lambda f=peer, x=own: f(x, ids)
        measure(record, "forward", cases, rounds=rounds)
    times = record.times
    reads = {key: entry["median_ms"] for key, entry in times.items() if key.startswith("forward/read")}
    copy = times["forward/copy"]["median_ms"] / 2
    which, floor = min([*reads.items(), ("half of forward/copy", copy)], key=lambda pair: pair[1])
    record.facts["floor_ms"] = floor
    record.facts["floor_is"] = which
    record.facts["floor_bytes"] = logits.numel() * logits.element_size()
    record.facts["half_copy_ms"] = copy
    head = f"forward, bf16 [{ROWS}, {VOCABULARY}]; floor {floor:.4f} ms ({which}); ratio = floor / time"
    return [head, *table(times, "forward", floor, inverse=True)]


def _few_rows(record: Record, logits: torch.Tensor, ids: torch.Tensor, rounds: int) -> list[str]:
    """One program per row against one per segment, where rows are few."""
    lines = []
    for count in (1, 8, 64, 256, 512):
        cases: dict[str, Case] = {
            f"{label} seg{segment}": lambda s=split, g=segment, c=count: kernel.forward(
                logits[:c], ids[:c], split=s, plan=dataclasses.replace(kernel.DEFAULT, segment=g)
            )
            for segment in (8192, 16384, 32768)
            for label, split in (("rows", False), ("split", True))
        }
        measure(record, f"few{count}", cases, rounds=max(rounds // 2, 5))
        floor = record.facts["floor_ms"] * count / ROWS
        lines += [f"{count} rows; floor {floor:.5f} ms", *table(record.times, f"few{count}", floor, inverse=True)]
    return lines


def _backward_times(record: Record, logits: torch.Tensor, ids: torch.Tensor, rounds: int) -> list[str]:
    slope = torch.randn(ROWS, device="cuda")
    outcome = kernel.forward(logits, ids)
    out = torch.empty_like(logits)
    cases: dict[str, Case] = {"copy": lambda: out.copy_(logits)}
    for block, warps in ((2048, 4), (4096, 4), (4096, 8), (8192, 8)):
        cases[f"ours backward {block} w{warps}"] = lambda b=block, w=warps: kernel.backward(
            logits, ids, outcome, slope, block=b, warps=w, out=out
        )
    cases["ours forward+backward"] = lambda: kernel.backward(logits, ids, kernel.forward(logits, ids), slope)

    for name, peer in peers(record):
        if "vLLM" in name:
            continue  # an inference kernel: its result has no gradient
        leaf = logits.detach().clone().requires_grad_()

        def both(f: Callable[..., Any] = peer, x: torch.Tensor = leaf) -> Any:
            values = f(x, ids).reshape(-1)
            return torch.autograd.grad(values, x, slope.to(values.dtype))

        cases[f"{name}, forward+backward"] = both
    measure(record, "backward", cases, rounds=max(rounds // 2, 5))
    floor = record.times["backward/copy"]["median_ms"]
    return [
        f"backward; floor {floor:.4f} ms (copy); ratio = floor / time",
        *table(record.times, "backward", floor, inverse=True),
    ]
