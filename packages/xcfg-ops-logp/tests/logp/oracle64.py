"""float64 autograd beside the kernels, and logits of every kind; for the tests on a card and in the interpreter."""

from __future__ import annotations

import torch


def hard_logits(rows: int, columns: int, dtype: torch.dtype, device: str, seed: int = 0) -> torch.Tensor:
    """Plain, peaked, flat, -inf beside finite, one finite alone, equal maxima, large, signed zeros, in turn."""
    generator = torch.Generator(device=device).manual_seed(seed + columns)
    x = torch.randn(rows, columns, generator=generator, device=device) * 4
    kind = torch.arange(rows, device=device) % 8
    x[kind == 1, columns // 2] = 40
    x[kind == 2] *= 0.01
    x[kind == 3, 1::2] = -torch.inf
    x[kind == 4, : columns - 1] = -torch.inf
    x[kind == 5] = x[kind == 5].clamp(max=3)
    x[kind == 6] *= 1000
    x[kind == 7] = torch.where(x[kind == 7] > 0, 0.0, -0.0)
    return x.to(dtype)


def ids_for(rows: int, columns: int, device: str) -> torch.Tensor:
    """Seeded ids, the first and the last among them."""
    found = torch.randint(0, columns, (rows,), generator=torch.Generator().manual_seed(rows + columns))
    found[0], found[-1] = columns - 1, 0
    return found.to(device)


def three(logits: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Log probability, log-sum-exp and entropy by torch, differentiable; -inf logits have no part in the entropy."""
    lse = torch.logsumexp(logits, -1)
    logp = logits - lse[:, None]
    finite = torch.where(logits == -torch.inf, 0.0, logp)
    return logp.gather(-1, ids[:, None])[:, 0], lse, -(logp.exp() * finite).sum(-1)


def gradients(outputs, slopes, inputs):
    """Gradients of sum(slope * output) for those outputs that have a slope."""
    total = sum((out * slope.to(out.dtype)).sum() for out, slope in zip(outputs, slopes, strict=True))
    return torch.autograd.grad(total, inputs)


def same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Equal as integers: NaN equals itself, 0 and -0 differ."""
    width = {2: torch.int16, 4: torch.int32, 8: torch.int64}[left.element_size()]
    return left.dtype == right.dtype and torch.equal(left.contiguous().view(width), right.contiguous().view(width))


def moved(left: torch.Tensor, right: torch.Tensor) -> int:
    """In how many places the bits of two float32 tensors differ."""
    return int((left.view(torch.int32) != right.view(torch.int32)).sum())


def close(found: torch.Tensor, want: torch.Tensor, scale: torch.Tensor) -> None:
    """|found - want| <= 2^-20 + 2^-22 scale, a few float32 roundings of what passed through; infinities, NaN alike."""
    finite = want.isfinite()
    error = (found.double() - want).abs()[finite]
    bound = (2.0**-20 + 2.0**-22 * scale)[finite]
    assert (error <= bound).all(), float((error / bound).nan_to_num(nan=torch.inf).max())
    assert torch.equal(found.double()[~finite].nan_to_num(7), want[~finite].nan_to_num(7))
