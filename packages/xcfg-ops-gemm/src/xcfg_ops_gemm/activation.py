"""The operation `activation`: silu(gate) * up, the middle of a SwiGLU feed-forward layer."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn.functional import silu

Activation = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def swiglu_float32(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """Take gate and up [..., d] of one dtype -> [..., d] in it: in float32 (float64 in float64), rounded once."""
    wide = torch.promote_types(gate.dtype, torch.float32)
    return (silu(gate.to(wide)) * up.to(wide)).to(gate.dtype)


def swiglu_input_dtype(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """As swiglu_float32, with silu(gate) rounded to the input dtype before the product."""
    return silu(gate) * up


def float32() -> Activation:
    """Build `torch.swiglu_float32`."""
    return lambda gate, up: swiglu_float32(gate, up)


def input_dtype() -> Activation:
    """Build `torch.swiglu_input_dtype`."""
    return lambda gate, up: swiglu_input_dtype(gate, up)
