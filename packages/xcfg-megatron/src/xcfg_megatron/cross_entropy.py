"""Megatron-core's own losses as selected log probabilities: the negated loss of every row.

They subtract and exponentiate in place; `prepared` hands them a copy, with hidden columns at -inf.
"""

from __future__ import annotations

import torch

from xcfg_megatron.logprob import Sharded


class Unfused(Sharded):
    """The loss of `labels=` without fusion: tensor_parallel.vocab_parallel_cross_entropy."""

    def __call__(self, logits: torch.Tensor, selected: torch.Tensor) -> torch.Tensor:
        """Logits [N, V / ranks] floating, selected int64 [N] global ids -> float32 [N], nats."""
        from megatron.core.tensor_parallel import vocab_parallel_cross_entropy

        values = self.prepared(logits, selected)
        return -vocab_parallel_cross_entropy(values[:, None], selected[:, None])[:, 0]  # type: ignore[no-any-return]


class Fused(Sharded):
    """The loss of cross_entropy_loss_fusion with the implementation `native`."""

    def __call__(self, logits: torch.Tensor, selected: torch.Tensor) -> torch.Tensor:
        """Logits [N, V / ranks] floating, selected int64 [N] global ids -> float32 [N], nats."""
        from megatron.core.fusions.fused_cross_entropy import fused_vocab_parallel_cross_entropy

        values = self.prepared(logits, selected)
        loss = fused_vocab_parallel_cross_entropy(values[:, None], selected[:, None], self.group)
        return -loss[:, 0]  # type: ignore[no-any-return]


class TransformerEngine(Sharded):
    """The loss of cross_entropy_loss_fusion with the implementation `te`."""

    def __init__(self) -> None:
        """Find Transformer Engine's kernel; RuntimeError where it is not installed."""
        super().__init__()
        from megatron.core.extensions import transformer_engine

        self._loss = getattr(transformer_engine, "te_parallel_cross_entropy", None)
        if self._loss is None:
            raise RuntimeError("Transformer Engine is not installed: pip install 'xcfg-megatron[te]'")

    def __call__(self, logits: torch.Tensor, selected: torch.Tensor) -> torch.Tensor:
        """Logits [N, V / ranks] floating, selected int64 [N] global ids -> float32 [N], nats."""
        values = self.prepared(logits, selected)
        loss = self._loss(values[:, None], selected[:, None], self.group, False)  # type: ignore[misc]
        return -loss[:, 0]  # type: ignore[no-any-return]
