"""`linear_selected_logprob` by our Triton kernels, in one of two forms; differentiable.

tiles (kernels/linear_tile.py): one kernel that never writes a logit. Least memory, and cheap for few rows; bfloat16 and
float16, K a multiple of 8. The default where it runs.
blocks (kernels/linear.py): the library's product of a fixed number of rows and a part of the vocabulary, then one read
of it. Any depth K; few rows cost as much as a whole block, because the last one is padded.

Both accumulate in float32, and round logits to the dtype of the weights before they are summed up (`tiles` can leave
that out), as where logits are written. The backward forms the logits of a part of the vocabulary again, rounded, by the
library's products. Needs Triton and a CUDA device.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import torch
from xcfg.errors import UsageError

from xcfg_ops_logp.inputs import ignore_id
from xcfg_ops_logp.kernel_calls import check_device, masked, on_device, slopes
from xcfg_ops_logp.kernels import linear, linear_tile
from xcfg_ops_logp.kernels.selected import Outcome
from xcfg_ops_logp.linear.inputs import check_linear
from xcfg_ops_logp.reference import Values

if TYPE_CHECKING:
    from xcfg_ops_logp.linear.inputs import LinearOperator

    Form = linear.Blocks | linear_tile.Tiles

DOWNCASTS = ("logits", "never")
ALIGNMENT = 16
"""Bytes: what the bulk copy engine asks of a row and of the first element."""
HALF = (torch.bfloat16, torch.float16)
HOPPER = (9, 0)
"""Compute capability of the first cards with a bulk copy engine; on older ones the tiles were never measured."""


def build_blocks(*, ignore_index: int | None = None) -> LinearOperator:
    """Return the form `blocks`: float32 [N], nats."""
    return _build(linear.DEFAULT, ignore_index)


def build_tiles(*, downcast_at: str = "logits", ignore_index: int | None = None) -> LinearOperator:
    """Return the form `tiles`: float32 [N], nats. downcast_at: `logits`, or `never` to keep them in float32."""
    if downcast_at not in DOWNCASTS:
        raise UsageError(f"downcast_at is {downcast_at!r}", hint=f"Known: {', '.join(DOWNCASTS)}.")
    return _build(dataclasses.replace(linear_tile.DEFAULT, round_logits=downcast_at == "logits"), ignore_index)


def _build(form: Form, ignore_index: int | None) -> LinearOperator:
    ignore_id(ignore_index)

    def fused_linear_logprob(hidden: torch.Tensor, weight: torch.Tensor, selected: torch.Tensor) -> torch.Tensor:
        return evaluate(hidden, weight, selected, form=form, ignore_index=ignore_index).logprob

    return fused_linear_logprob


def evaluate(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    selected: torch.Tensor,
    *,
    form: Form | None = None,
    backward: linear.Blocks = linear.BACKWARD,
    ignore_index: int | None = None,
    entropy: bool = False,
) -> Values:
    """Return log probability, log-sum-exp and entropy, float32 [N], nats, with gradients of hidden and weight.

    hidden [N, K], weight [V, K], one dtype, copied first unless contiguous; selected int64 [N] in [0, V). ignore_index:
    rows of this id have the log probability NaN, and no gradient from it. form: None for that of `default_form`.
    backward: shapes of its products. A row whose logits hold a NaN or a +inf gives NaN. Extra memory: see
    kernels/linear.py and kernels/linear_tile.py.

    Raises UsageError for wrong dtypes, shapes or devices, IdentityError for an id outside the vocabulary.
    """
    ignored = check_linear(hidden, weight, selected, ignore_index=ignore_index)
    check_device(hidden)
    if form is None:
        capability = torch.cuda.get_device_capability(hidden.device) if hidden.is_cuda else None
        form = default_form(hidden.dtype, hidden.shape[1], capability)
    if isinstance(form, linear_tile.Tiles):
        _check_tiles(hidden)
    ids = selected if ignored is None else selected.masked_fill(ignored, 0)
    found = _Linear.apply(  # type: ignore[no-untyped-call]
        _plain(hidden), _plain(weight), ids.contiguous(), entropy, form, backward
    )
    return masked(found, ignored)


def default_form(dtype: torch.dtype, depth: int, capability: tuple[int, int] | None) -> Form:
    """Return tiles where they take dtype and depth, on a card of at least HOPPER, else blocks.

    The number of rows is not asked for, so that the bits of a row do not depend on it. capability: None without a card.
    """
    whole = depth * dtype.itemsize % ALIGNMENT == 0
    tiles = dtype in HALF and whole and capability is not None and capability >= HOPPER
    return linear_tile.DEFAULT if tiles else linear.DEFAULT


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, contiguous and beginning at a multiple of ALIGNMENT."""
    tensor = tensor.contiguous()
    return tensor if tensor.data_ptr() % ALIGNMENT == 0 else tensor.clone()


def _check_tiles(hidden: torch.Tensor) -> None:
    depth = hidden.shape[1]
    if depth * hidden.element_size() % ALIGNMENT:
        raise UsageError(
            f"tiles were handed a depth of {depth} in {hidden.dtype}",
            hint=f"A row must be a multiple of {ALIGNMENT} bytes; xcfg.triton_blocks_linear_logp takes any depth.",
        )
    if hidden.is_cuda and hidden.dtype == torch.float32:
        raise UsageError(
            "tiles were handed float32", hint="They take bfloat16 and float16; xcfg.triton_blocks_linear_logp float32."
        )


class _Linear(torch.autograd.Function):
    """(hidden, weight, ids, entropy, form, backward) -> logp, lse, entropy."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        ids: torch.Tensor,
        entropy: bool,
        form: Form,
        backward: linear.Blocks,
    ) -> Any:
        """Keep hidden, weight, ids and four or five float32 [N]."""
        with on_device(hidden):
            if isinstance(form, linear_tile.Tiles):
                outcome = linear_tile.forward(hidden, weight, ids, entropy=entropy, tiles=form)
            else:
                outcome = linear.forward(hidden, weight, ids, entropy=entropy, blocks=form)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(hidden, weight, ids, *outcome)
        ctx.blocks = backward
        return outcome.logp, outcome.lse, outcome.entropy

    @staticmethod
    def backward(
        ctx: Any, of_logp: torch.Tensor | None, of_lse: torch.Tensor | None, of_entropy: torch.Tensor | None
    ) -> Any:
        """Three products where the gradient of the weights is wanted, else two."""
        hidden, weight, ids, *rest = ctx.saved_tensors
        outcome = Outcome(*rest)
        first, lse, entropy = slopes(of_logp, of_lse, of_entropy, outcome.lse)
        with on_device(hidden):
            of_hidden, of_weight = linear.backward(
                hidden, weight, ids, outcome, first, of_lse=lse, of_entropy=entropy, blocks=ctx.blocks,
                of_weight=ctx.needs_input_grad[1],
            )  # fmt: skip
        return of_hidden, of_weight, None, None, None, None
