"""What a `linear_selected_logprob` may be handed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xcfg.errors import UsageError

from xcfg_ops_logp.inputs import check_ids

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    LinearOperator = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def check_linear(
    hidden: torch.Tensor, weight: torch.Tensor, selected: torch.Tensor, *, ignore_index: int | None = None
) -> torch.Tensor | None:
    """Return which rows are ignored, bool [N], or None where there is no `ignore_index`.

    hidden [N, K] and weight [V, K], one floating dtype and device, V and K at least 1; selected int64 [N] there. Raises
    UsageError where they are not, IdentityError for an id outside [0, V) that is not ignored.
    """
    import torch

    if hidden.ndim != 2 or weight.ndim != 2 or hidden.shape[1] != weight.shape[1] or not weight.numel():
        raise UsageError(
            f"hidden is {tuple(hidden.shape)}, weight {tuple(weight.shape)}",
            hint="They must be [N, K] and [V, K], with V and K at least 1.",
        )
    if hidden.dtype != weight.dtype or not hidden.is_floating_point():
        raise UsageError(f"hidden is {hidden.dtype}, weight {weight.dtype}", hint="They must be of one floating dtype.")
    if selected.dtype != torch.int64 or selected.shape != hidden.shape[:1]:
        raise UsageError(
            f"selected ids are {selected.dtype} {tuple(selected.shape)}, hidden is {tuple(hidden.shape)}",
            hint="They must be int64 [N], one per row of hidden.",
        )
    if not hidden.device == weight.device == selected.device:
        raise UsageError(f"hidden is on {hidden.device}, weight on {weight.device}, selected ids on {selected.device}")
    return check_ids(selected, weight.shape[0], ignore_index=ignore_index)
