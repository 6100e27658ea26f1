"""What a sampling engine answers, checked in its own process, where the fault has a name and a worker."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from xcfg.errors import WorkerError

HINT = "The fields of an answer are listed at xcfg.plugin.protocols.Generator."


def check_answers(answers: Any, prompts: Sequence[Any], generate: dict[str, Any]) -> None:
    """Hold the answers of `Generator.generate` against their prompts and the request (`generate`, its fields).

    Raises WorkerError with the number of the first prompt whose answer is wrong, and with every fault of it.
    """
    if not isinstance(answers, (list, tuple)):
        raise WorkerError(f"the adapter returned a {type(answers).__name__}, not a list of answers", hint=HINT)
    if len(answers) != len(prompts):
        raise WorkerError(f"the adapter returned {len(answers)} continuations for {len(prompts)} prompts", hint=HINT)
    for number, (answer, prompt) in enumerate(zip(answers, prompts, strict=True)):
        faults = list(_faults(answer, prompt, generate))
        if faults:
            raise WorkerError(f"the answer to prompt {number} is not usable: {'; '.join(faults)}", hint=HINT)
    chains = {tuple(answer["transforms"]) for answer in answers}
    if len(chains) > 1:
        raise WorkerError(f"the answers were made under different transforms: {sorted(chains)}", hint=HINT)


def _faults(answer: Any, prompt: Any, generate: dict[str, Any]) -> Iterator[str]:
    """Yield what is wrong with one answer; how its fields fit together only where each is one."""
    if not isinstance(answer, dict):
        yield f"it is a {type(answer).__name__}, not a dict"
        return
    wrong = [
        f"it lacks {name}" if name not in answer else f"{name} is not {what}"
        for name, (what, holds) in FIELDS.items()
        if name not in answer or not _is_list(answer[name], holds)
    ]
    yield from wrong
    if not isinstance(answer.get("finish_reason", ""), str):
        yield "finish_reason is not a string"
    if not wrong:
        yield from _contradictions(answer, prompt, generate)


def _contradictions(answer: dict[str, Any], prompt: Any, generate: dict[str, Any]) -> Iterator[str]:
    tokens, most = len(answer["token_ids"]), generate.get("max_new_tokens")
    given = prompt.get("token_ids") if isinstance(prompt, dict) else None
    if not answer["prompt_ids"]:
        yield "prompt_ids is empty"
    if given is not None and list(answer["prompt_ids"]) != list(given):
        yield "prompt_ids are not the token_ids of the prompt"
    if tokens != len(answer["logprobs"]):
        yield f"it has {tokens} tokens and {len(answer['logprobs'])} log probabilities"
    if isinstance(most, int) and tokens > most:
        yield f"it has {tokens} tokens, and at most {most} were asked for"
    if answer["transforms"] and generate.get("logprobs_mode", "raw_logprobs") == "raw_logprobs":
        yield f"raw log probabilities were asked for, and transforms names {', '.join(answer['transforms'])}"


def _is_list(value: Any, holds: Callable[[Any], bool]) -> bool:
    return isinstance(value, (list, tuple)) and all(holds(item) for item in value)


def _is_id(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


FIELDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "prompt_ids": ("a list of ids from 0", _is_id),
    "token_ids": ("a list of ids from 0", _is_id),
    "logprobs": ("a list of finite numbers", _is_number),
    "transforms": ("a list of strings", _is_text),
}
