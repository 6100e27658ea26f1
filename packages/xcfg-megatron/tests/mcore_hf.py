"""The oracle: Hugging Face transformers, one sequence at a time, float64 log-softmax of its logits."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from xcfg.identity.rollout import Rollout


@contextmanager
def _float64_norms(classes: tuple[Any, ...]):
    """Hugging Face computes norms in float32 even in a float64 model; here they are the float64 formula."""

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        return x / (x.square().mean(-1, keepdim=True) + self.variance_epsilon).sqrt() * self.weight

    plain = [item.forward for item in classes]
    for item in classes:
        item.forward = forward
    try:
        yield
    finally:
        for item, kept in zip(classes, plain, strict=True):
            item.forward = kept


def values(folder: Path | str, dtype: torch.dtype, rollout: Rollout) -> torch.Tensor:
    """Return float64 log probabilities of the active tokens."""
    from transformers import AutoModelForCausalLM
    from transformers.models.llama.modeling_llama import LlamaRMSNorm
    from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="sdpa").eval()
    found = torch.full((len(rollout.token_ids),), torch.nan, dtype=torch.float64)
    norms = (LlamaRMSNorm, Qwen3RMSNorm) if dtype is torch.float64 else ()
    with torch.no_grad(), _float64_norms(norms):
        for sequence in range(rollout.sequence_count):
            span = rollout.span(sequence)
            ids = torch.from_numpy(rollout.token_ids[span].astype("int64"))[None]
            logits = model(input_ids=ids, use_cache=False).logits[0, :-1].double()
            found[span.start + 1 : span.stop] = logits.log_softmax(-1).gather(-1, ids[0, 1:, None])[:, 0]
    return found[torch.from_numpy(rollout.active.copy())]
