"""The logits processor of _vllm_by_hand.py: vLLM takes log probabilities before it, so only the choice is forced."""

from __future__ import annotations

from collections.abc import Callable

import torch
from vllm.sampling_params import SamplingParams
from vllm.v1.sample.logits_processor import AdapterLogitsProcessor


class Forced(AdapterLogitsProcessor):  # type: ignore[misc]
    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: SamplingParams) -> Callable[..., torch.Tensor] | None:
        tokens = (params.extra_args or {}).get("tokens")
        if tokens is None:
            return None

        def only(output_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
            chosen = torch.full_like(logits, -torch.inf)
            chosen[tokens[len(output_ids)]] = 0.0
            return chosen

        return only
