"""Forced replay: how the engine is made to generate the tokens of the frozen rollout.

native     vLLM's own trace replay (V2 runner, from the version that has it)
sampler    the same where vLLM has none: the drawn token is overwritten where the sampler returns it
processor  V1 runner on a CPU: a logits processor leaves one token possible

None of them touches the logits whose log probabilities are returned: raw ones are taken before any processor runs, and
the other two change the token alone. Tokens are indexed by how many were generated, never by value, since an
asynchronous scheduler shows -1 for tokens in flight.
"""

from __future__ import annotations

import inspect
from typing import Any

FORCED = "xcfg_forced"
"""Name of the extra argument of a request that holds the tokens to come."""
PROMPT = "xcfg_prompt"
"""Name of the extra argument of a request that holds the length of its prompt."""
NATIVE, SAMPLER, PROCESSOR = "native", "sampler", "processor"
SAYS = {
    NATIVE: "forced replay by vLLM's trace replay",
    SAMPLER: "forced replay by overwriting the token that the sampler drew",
    PROCESSOR: "forced replay by a logits processor",
}


def request_arguments(mechanism: str, prompt: int, tokens: list[int]) -> dict[str, Any]:
    """Return the arguments of SamplingParams that force `tokens` behind a prompt of `prompt` tokens."""
    if mechanism == NATIVE:
        return {"trace_decode_token_ids": tokens}
    return {"extra_args": {FORCED: tokens, PROMPT: prompt}}


class V1Replay:
    """Overwrites what a V1 sampler drew, for requests with FORCED among their extra arguments."""

    def __init__(self, runner: Any) -> None:
        """Take the place of a method of the runner's sampler."""
        self._runner, self._sample = runner, runner.sampler.sample
        runner.sampler.sample = self._on_sample

    def _on_sample(self, *items: Any, **named: Any) -> Any:
        drawn, *rest = self._sample(*items, **named)
        for row, name in enumerate(list(self._runner.input_batch.req_ids)[: len(drawn)]):
            state = self._runner.requests[name]
            tokens = ((state.sampling_params.extra_args if state.sampling_params else None) or {}).get(FORCED, ())
            done = len(state.output_token_ids)
            if done < len(tokens):
                drawn[row] = tokens[done]
        return drawn, *rest


class V2Replay:
    """Overwrites what a V2 sampler drew, for requests with FORCED among their extra arguments."""

    def __init__(self, sampler: Any) -> None:
        """Take the place of two methods of one live sampler."""
        self._requests: dict[int, tuple[int, list[int]]] = {}
        self._add, self._sample = sampler.add_request, sampler.sample
        self._names = inspect.signature(self._sample)
        sampler.add_request, sampler.sample = self._on_add, self._on_sample

    def _on_add(self, slot: int, *items: Any, **named: Any) -> Any:
        params = next(item for item in (*items, *named.values()) if hasattr(item, "extra_args"))
        extra = params.extra_args or {}
        self._requests.pop(slot, None)
        if FORCED in extra:
            self._requests[slot] = (int(extra[PROMPT]), list(extra[FORCED]))
        return self._add(slot, *items, **named)

    def _on_sample(self, *items: Any, **named: Any) -> Any:
        drawn, *rest = self._sample(*items, **named)
        given = self._names.bind(*items, **named).arguments
        for row, (slot, position) in enumerate(zip(given["idx_mapping_np"], given["pos"].tolist(), strict=False)):
            prompt, tokens = self._requests.get(int(slot), (0, []))
            index = position + 1 - prompt
            if 0 <= index < len(tokens):
                drawn[row] = tokens[index]
        return drawn, *rest
