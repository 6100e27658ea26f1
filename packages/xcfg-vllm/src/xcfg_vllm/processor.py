"""Forced replay on a V1 runner: a logits processor that leaves one token possible. Imports vLLM."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from vllm.sampling_params import SamplingParams
from vllm.v1.sample.logits_processor import AdapterLogitsProcessor

from xcfg_vllm.force import FORCED


class ForcedTokens(AdapterLogitsProcessor):  # type: ignore[misc]  # vllm is not typed here
    """Per request, in `extra_args[FORCED]`: the token ids that it shall generate, in order."""

    def is_argmax_invariant(self) -> bool:
        """It changes what greedy sampling takes."""
        return False

    def new_req_logits_processor(self, params: SamplingParams) -> Callable[..., torch.Tensor] | None:
        """Return the processor of one request, or None where nothing is forced."""
        tokens: Any = (params.extra_args or {}).get(FORCED)
        if tokens is None:
            return None

        def only(output_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
            forced = torch.full_like(logits, -torch.inf)
            forced[tokens[len(output_ids)]] = 0.0
            return forced

        return only
