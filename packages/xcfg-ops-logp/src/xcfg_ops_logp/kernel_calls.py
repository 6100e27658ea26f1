"""What both operators do around a kernel: refuse, choose the device, prepare gradients, mask ignored rows."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from xcfg.errors import UsageError

from xcfg_ops_logp.kernels.online import INTERPRETED
from xcfg_ops_logp.reference import Values

DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def masked(found: tuple[torch.Tensor, torch.Tensor, torch.Tensor | None], ignored: torch.Tensor | None) -> Values:
    """Return (logp, lse, entropy) with NaN for the log probability of ignored rows."""
    logp, lse, entropy = found
    return Values(logp if ignored is None else logp.masked_fill(ignored, torch.nan), lse, entropy)


def check_device(tensor: torch.Tensor) -> None:
    """Raise UsageError where the kernels cannot run on `tensor`: its device, or a dtype they do not take."""
    if not tensor.is_cuda and not INTERPRETED:
        raise UsageError(
            f"the Triton kernels were handed tensors on {tensor.device}",
            hint="They need a CUDA device; on a CPU use xcfg.reference_logp or xcfg.torch_linear_logp.",
        )
    if tensor.dtype not in DTYPES:
        raise UsageError(
            f"the Triton kernels were handed {tensor.dtype}",
            hint=f"They take {', '.join(map(str, DTYPES))}; float64 has xcfg.reference_logp.",
        )


def on_device(tensor: torch.Tensor) -> AbstractContextManager[Any]:
    """Make the device of `tensor` the current one: Triton launches there."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else nullcontext()


def slopes(
    of_logp: torch.Tensor | None, of_lse: torch.Tensor | None, of_entropy: torch.Tensor | None, like: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    """Return gradients of outputs as the kernels take them: contiguous (an expanded one is not) float32."""
    first = torch.zeros_like(like) if of_logp is None else of_logp.float().contiguous()
    rest = [None if item is None else item.float().contiguous() for item in (of_lse, of_entropy)]
    return first, rest[0], rest[1]
