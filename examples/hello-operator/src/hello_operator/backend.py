"""The online log-sum-exp: running maximum m and running sum s over blocks of the vocabulary, in float32.

For each block b:  m' = max(m, max b);  s' = s * exp(m - m') + sum exp(b - m').  At the end log p = x - m - log s.
(M. Milakov, N. Gimelshein, Online normalizer calculation for softmax, 2018.) It never holds a float32 copy of more
than one block, where log_softmax holds one of everything.
"""

from __future__ import annotations

from collections.abc import Callable

import torch


def build(*, block: int = 4096) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Return the operator; `block` columns are converted to float32 at a time. Raises ValueError below 1."""
    if block < 1:
        raise ValueError(f"block is {block!r}, not a positive number of columns")

    def online_logprob(logits: torch.Tensor, selected: torch.Tensor) -> torch.Tensor:
        return selected_logprob(logits, selected, block=block)

    return online_logprob


@torch.no_grad()
def selected_logprob(logits: torch.Tensor, selected: torch.Tensor, *, block: int) -> torch.Tensor:
    """Return float32 [N] log probabilities of the ids `selected` int64 [N] under `logits` [N, V].

    A row with NaN or +inf, or with nothing but -inf, gives NaN. Raises IndexError for an id outside [0, V).
    """
    rows, vocabulary = logits.shape
    if bool(((selected < 0) | (selected >= vocabulary)).any()):
        raise IndexError(f"a selected id is outside the vocabulary of {vocabulary}")
    top = torch.full((rows,), -torch.inf, device=logits.device)
    total = torch.zeros(rows, device=logits.device)
    for start in range(0, vocabulary, block):
        piece = logits[:, start : start + block].float()
        higher = torch.maximum(top, piece.amax(dim=-1))
        # While a row has seen only -inf its sum is 0, and -inf - -inf would make it NaN too early.
        shift = torch.where(higher == -torch.inf, 0.0, higher)
        total = total * (top - shift).exp() + (piece - shift.unsqueeze(-1)).exp().sum(dim=-1)
        top = higher
    chosen = logits.gather(-1, selected.unsqueeze(-1)).squeeze(-1).float()
    return torch.where(top.isfinite(), (chosen - top) - total.log(), torch.nan)
