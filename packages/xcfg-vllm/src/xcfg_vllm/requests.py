"""Requests to the engine and their answers: whole sequences for prefill, prompt and forced tokens for decode."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xcfg.errors import WorkerError
from xcfg.identity.rollout import Rollout

from xcfg_vllm.build import Engine
from xcfg_vllm.force import request_arguments

GREEDY = 0.0
"""The temperature of a request that takes the most likely token."""


@dataclass(frozen=True)
class Answer:
    """One sequence as the engine answered. tokens: the ids that its values belong to, from `first` on.

    values: float32 nats, one per token. cached: prompt tokens whose keys and values came from a prefix cache.
    """

    sequence: int
    request: str
    first: int
    tokens: NDArray[np.int64]
    values: NDArray[np.float32]
    cached: int


def transforms(temperature: float, top_k: int = 0, top_p: float = 1.0) -> tuple[str, ...]:
    """Return the ordered transforms between logits and processed values; one that does nothing is left out.

    A greedy request (temperature 0) leaves the logits as they are.
    """
    parts = [f"temperature:{temperature!r}"] if temperature not in (GREEDY, 1.0) else []
    parts += [f"top_k:{top_k}"] if top_k > 0 else []
    parts += [f"top_p:{top_p!r}"] if top_p < 1.0 else []
    return tuple(parts)


def own_transforms(facts: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what the live head of one rank does to the logits before anybody sees them: soft cap, then scale."""
    cap, scale = facts["soft_cap"], facts["logit_scale"]
    parts = [f"soft_cap:{float(cap)!r}"] if cap is not None else []
    return tuple(parts + ([f"logit_scale:{float(scale)!r}"] if scale not in (None, 1.0) else []))


def prompt_length(rollout: Rollout, sequence: int) -> int:
    """Return how many tokens are prefilled before decode: those before the first active one."""
    span = rollout.span(sequence)
    active = np.flatnonzero(rollout.active[span])
    return int(active[0]) if len(active) else span.stop - span.start - 1


def groups(order: Sequence[int], size: int) -> Iterable[Sequence[int]]:
    """Yield runs of `size`; one run is submitted at once and finishes before the next is."""
    return (order[start : start + size] for start in range(0, len(order), size))


def prefill(engine: Engine, rollout: Rollout, order: Sequence[int], temperature: float) -> list[Answer]:
    """Score whole sequences through prompt log probabilities, which no temperature reaches."""
    from vllm import SamplingParams

    reads = {"skip_reading_prefix_cache": False} if engine.options.prompts_read_cache else {}
    params = SamplingParams(
        max_tokens=1,
        temperature=temperature,
        prompt_logprobs=0,
        flat_logprobs=True,
        detokenize=False,
        ignore_eos=True,
        **reads,
    )
    ids = [rollout.token_ids[rollout.span(sequence)].tolist() for sequence in order]
    answers = []
    for sequence, tokens, output in zip(order, ids, _generate(engine, ids, [params] * len(ids)), strict=True):
        flat = output.prompt_logprobs
        picked, values = selected(flat, tokens[1:], skip=1, sequence=sequence)
        cached = int(output.num_cached_tokens or 0)
        unscored = slice(0, cached)  # vLLM leaves what lay in memory, often 0.0, where a cache spared it the logits
        values[unscored], picked[unscored] = np.nan, tokens[1:][unscored]
        answers.append(Answer(sequence, str(output.request_id), 1, picked, values, cached))
    return answers


def decode(engine: Engine, rollout: Rollout, order: Sequence[int], temperature: float) -> list[Answer]:
    """Replay every token from the first active one on, each forced, each from a real decode step."""
    from vllm import SamplingParams

    prompts, params, forced = [], [], []
    alone = [sequence for sequence in order if len(rollout.token_ids[rollout.span(sequence)]) == 1]
    order = [sequence for sequence in order if sequence not in alone]
    for sequence in order:
        ids = rollout.token_ids[rollout.span(sequence)].tolist()
        start = prompt_length(rollout, sequence)
        prompts.append(ids[:start])
        forced.append(ids[start:])
        params.append(
            SamplingParams(
                max_tokens=len(ids) - start,
                temperature=temperature,
                ignore_eos=True,
                logprobs=0,
                flat_logprobs=True,
                detokenize=False,
                **request_arguments(engine.mechanism, start, ids[start:]),
            )
        )
    # Nothing is generated behind a sequence of one token, so nothing enters for it.
    answers = [Answer(one, f"alone-{one}", 1, np.empty(0, np.int64), np.empty(0, np.float32), 0) for one in alone]
    for index, output in enumerate(_generate(engine, prompts, params) if prompts else ()):
        sequence, tokens = order[index], forced[index]
        generated = list(output.outputs[0].token_ids)
        if generated != tokens:
            at = next((i for i, pair in enumerate(zip(generated, tokens, strict=False)) if pair[0] != pair[1]), -1)
            raise WorkerError(
                f"the replay of sequence {sequence} generated other tokens than were forced (first at {at})",
                hint="The forcing logits processor did not run: another runner, or a plugin that replaced the sampler.",
            )
        picked, values = selected(output.outputs[0].logprobs, tokens, skip=0, sequence=sequence)
        answers.append(
            Answer(
                sequence,
                str(output.request_id),
                len(prompts[index]),
                picked,
                values,
                int(output.num_cached_tokens or 0),
            )
        )
    return answers


def _generate(engine: Engine, prompts: list[list[int]], params: list[Any]) -> list[Any]:
    from vllm.inputs import TokensPrompt

    given = [TokensPrompt(prompt_token_ids=ids) for ids in prompts]
    return list(engine.llm.generate(given, params, use_tqdm=False))


def selected(
    flat: Any, tokens: list[int], *, skip: int, sequence: int
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return the ids and values of the first entry at each position, the one that was asked about."""
    starts = list(flat.start_indices)[skip:]
    ends = list(flat.end_indices)[skip:]
    if len(starts) != len(tokens) or any(stop <= start for start, stop in zip(starts, ends, strict=True)):
        raise WorkerError(f"sequence {sequence} has {len(starts)} log probabilities for {len(tokens)} tokens")
    ids = np.asarray([flat.token_ids[start] for start in starts], dtype=np.int64)
    values = np.asarray([flat.logprobs[start] for start in starts], dtype=np.float32)
    return ids, values
