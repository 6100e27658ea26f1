"""`linear_selected_logprob` by Liger's fused linear cross entropy, as it is; forward only.

Liger chunks the rows by their number, so that the bits of a row depend on the batch. Its log probability is minus its
loss per row (reduction "none"). Gradients are not offered here: with this reduction Liger forms them in the forward,
before it knows those of the outputs. Needs liger-kernel, Triton and a CUDA device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xcfg.errors import MissingDependencyError, UsageError

from xcfg_ops_logp.inputs import ignore_id
from xcfg_ops_logp.linear.inputs import check_linear

if TYPE_CHECKING:
    import torch

    from xcfg_ops_logp.linear.inputs import LinearOperator

NO_ID = -100
"""Liger's own ignored id; never in [0, V), so that nothing is ignored behind our back."""


def build(*, ignore_index: int | None = None) -> LinearOperator:
    """Return the operator: float32 [N], nats. Raises MissingDependencyError where liger-kernel is not installed."""
    ignore_id(ignore_index)
    try:
        from liger_kernel.ops.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyFunction as Fused
    except ImportError as missing:
        raise MissingDependencyError(
            "Liger's fused linear cross entropy needs the package 'liger-kernel'",
            hint="pip install 'xcfg-ops-logp[liger]'",
        ) from missing

    def liger_linear_logprob(hidden: torch.Tensor, weight: torch.Tensor, selected: torch.Tensor) -> torch.Tensor:
        import torch

        ignored = check_linear(hidden, weight, selected, ignore_index=ignore_index)
        if not hidden.is_cuda:
            raise UsageError(f"Liger was handed tensors on {hidden.device}", hint="It needs a CUDA device.")
        if not hidden.shape[0]:
            return torch.empty(0, dtype=torch.float32, device=hidden.device)
        ids = selected if ignored is None else selected.masked_fill(ignored, 0)
        with torch.no_grad(), torch.cuda.device(hidden.device):
            loss: torch.Tensor = Fused.apply(hidden, weight, ids, None, None, NO_ID, 0.0, 0.0, "none")[0]
        found = -loss.float()
        return found if ignored is None else found.masked_fill(ignored, torch.nan)

    return liger_linear_logprob
