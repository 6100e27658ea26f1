"""`selected_logprob` by our Triton kernel: the logits are read once, nothing of their size is allocated.

Accumulation is float32, and the result has a gradient. The bits of a row depend on its logits, on V and on the plan
(kernels/selected.py), not on how many rows there are, on their place or on their alignment. Needs Triton and a CUDA
device; in Triton's interpreter (TRITON_INTERPRET=1) it runs on a CPU, where float32 alone is right.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from xcfg_ops_logp.inputs import check, ignore_id
from xcfg_ops_logp.kernel_calls import check_device, masked, on_device, slopes
from xcfg_ops_logp.kernels import selected as kernel
from xcfg_ops_logp.reference import Values

if TYPE_CHECKING:
    from xcfg_ops_logp.reference import Operator


def build(*, ignore_index: int | None = None) -> Operator:
    """Return the operator: (logits [N, V], selected [N]) -> float32 [N], nats. Raises UsageError for wrong options."""
    ignore_id(ignore_index)

    def triton_logprob(logits: torch.Tensor, selected: torch.Tensor) -> torch.Tensor:
        return evaluate(logits, selected, ignore_index=ignore_index).logprob

    return triton_logprob


def evaluate(
    logits: torch.Tensor,
    selected: torch.Tensor,
    *,
    ignore_index: int | None = None,
    entropy: bool = False,
    plan: kernel.Plan = kernel.DEFAULT,
) -> Values:
    """Return log probability, log-sum-exp and entropy, float32 [N], nats, with the gradient of the logits.

    logits: bfloat16, float16 or float32 [N, V], the whole vocabulary, copied first unless V has stride 1. selected:
    int64 [N] in [0, V). ignore_index: rows of this id have the log probability NaN, and no gradient from it. entropy:
    None where it is not asked for; it reads nothing twice. The gradient has the dtype of the logits, rounded once.

    A row with a NaN, a +inf or nothing but -inf gives NaN, a selected -inf beside finite logits -inf. Raises UsageError
    for wrong dtypes, shapes or devices, IdentityError for an id outside the vocabulary.
    """
    ignored = check(logits, selected, logits.shape[1] if logits.ndim == 2 else 0, ignore_index=ignore_index)
    check_device(logits)
    if logits.shape[1] > 1 and logits.stride(1) != 1:
        logits = logits.contiguous()
    ids = selected if ignored is None else selected.masked_fill(ignored, 0)
    found = _Selected.apply(logits, ids.contiguous(), entropy, plan)  # type: ignore[no-untyped-call]
    return masked(found, ignored)


class _Selected(torch.autograd.Function):
    """(logits, ids, entropy, plan) -> logp, lse, entropy."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, ids: torch.Tensor, entropy: bool, plan: kernel.Plan) -> Any:
        """Keep the logits themselves, the ids and four or five float32 [N]."""
        with on_device(logits):
            outcome = kernel.forward(logits, ids, entropy=entropy, plan=plan)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(logits, ids, *outcome)
        ctx.plan = plan
        return outcome.logp, outcome.lse, outcome.entropy

    @staticmethod
    def backward(
        ctx: Any, of_logp: torch.Tensor | None, of_lse: torch.Tensor | None, of_entropy: torch.Tensor | None
    ) -> Any:
        """One read and one write of the logits' size."""
        logits, ids, *rest = ctx.saved_tensors
        outcome = kernel.Outcome(*rest)
        first, lse, entropy = slopes(of_logp, of_lse, of_entropy, outcome.lse)
        with on_device(logits):
            grad = kernel.backward(logits, ids, outcome, first, of_lse=lse, of_entropy=entropy, asm=ctx.plan.asm)
        return grad, None, None, None
