"""Streamed OpenAI answers: the chunks of each choice joined, in order, into the answer that was not streamed.

Read for the layout: vllm-project/vllm, entrypoints/openai/completion/serving.py at cc139d8e and chat_completion/
serving.py at 5e918640. A stream is `data: {…}` events that end with `data: [DONE]`; people store the events, or
one chunk per line. Chat: the first chunk of a choice has the role and, with return_token_ids, prompt_token_ids; each
further one has token_ids and logprobs.content of the new tokens only. Completions: prompt_token_ids stand in the
choice of its first chunk, and with echo the prompt's values come before those of the first tokens. The last chunk of a
choice has its finish_reason; one without choices may follow, with the usage. Without return_token_ids a chat server
sends nothing for a token that a reasoning or tool parser holds back, so such a stream may lack tokens unseen.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from xcfg.errors import ArtifactError

from xcfg_dumps import records
from xcfg_dumps.samples import number

CHAT, TEXT = "chat.completion.chunk", "text_completion"
EVENT = b"data:"
ASK = "Ask the server with `return_token_ids: true` and `logprobs`, so that every chunk has the ids of its tokens."


def is_events(path: Path) -> bool:
    """Whether the file begins like server-sent events."""
    try:
        with path.open("rb") as stream:
            return stream.read(len(EVENT)) == EVENT
    except OSError:
        return False


def first_keys(path: Path) -> frozenset[str]:
    """Return the keys of the first event, empty when it is none."""
    try:
        _, record = next(iter(_events(path)))
    except (ArtifactError, StopIteration):
        return frozenset()
    return frozenset(record)


def answers(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (where, answer): records that were not streamed as they are, then the joined ones, by id.

    Raises ArtifactError: an event that is no JSON, a chunk without token ids, a choice that never ends or goes on
    after its end, an error that the server sent.
    """
    found: dict[str, dict[int, _Choice]] = {}
    for where, record in _events(path) if is_events(path) else records.documents(path):
        if record.get("object") != CHAT and not _streamed(record, found):
            yield where, record
            continue
        name = record.get("id")
        if not isinstance(name, str) or not name:
            raise ArtifactError(f"{where} is a chunk without an id", hint="Its answer cannot be told from others.")
        if not record.get("choices") and record.get("usage"):  # the last chunk may bring nothing else
            for begun in found.get(name, {}).values():
                begun.usage = record["usage"]
        for choice in record.get("choices") or ():
            if not isinstance(choice, dict):
                raise ArtifactError(f"{where}: a choice is {choice!r:.40}, not an object")
            index = number(choice.get("index", 0), f"{where}: index")
            found.setdefault(name, {}).setdefault(index, _Choice(where, record)).add(where, record, choice)
    for name, choices in found.items():
        yield name, _answer(name, choices, path.name)


def _answer(name: str, choices: dict[int, _Choice], file: str) -> dict[str, Any]:
    for index, choice in choices.items():
        if not choice.ended:
            raise ArtifactError(
                f"{choice.where}: choice {index} of {name!r:.80} begins here and never ends, in all of {file}",
                hint="The stream was cut off. Store it to its end, or take these chunks out.",
            )
    usage = next(iter(choices.values())).usage
    joined = [choice.joined(index) for index, choice in sorted(choices.items())]
    return {"id": name, "object": "joined chunks", "choices": joined, "usage": usage}


def _events(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (where, object) for each `data:` event; comments, other fields and the final [DONE] are passed over."""
    try:
        with path.open("rb") as stream:
            number = 0
            while line := stream.readline(records.LONGEST + 1):
                number += 1
                where = f"{path.name} line {number}"
                if len(line) > records.LONGEST:
                    raise ArtifactError(f"{where} is longer than {records.LONGEST} bytes")
                text = line.strip()
                if not text.startswith(EVENT) or text[len(EVENT) :].strip() == b"[DONE]":
                    continue
                record = records.parse(text[len(EVENT) :], where)
                if not isinstance(record, dict):
                    raise ArtifactError(f"{where} is no JSON object")
                if "error" in record and "choices" not in record:
                    raise ArtifactError(
                        f"{where}: the server ended the stream with an error: {record['error']!r:.200}",
                        hint="What came before is not whole; take this stream out.",
                    )
                yield where, record
    except OSError as error:
        raise ArtifactError(f"{str(path)!r} cannot be read: {error.strerror}") from None


def _streamed(record: dict[str, Any], found: dict[str, dict[int, _Choice]]) -> bool:
    """Whether a text_completion is a chunk: chunks and answers have one object name.

    An answer has ended and has a usage. A chunk lacks one of the two, or belongs to an answer that has begun.
    """
    choices = record.get("choices")
    if record.get("object") != TEXT or not isinstance(choices, list):
        return False
    if record.get("id") in found or record.get("usage", 0) is None:
        return True
    return any(isinstance(choice, dict) and choice.get("finish_reason", 0) is None for choice in choices)


class _Choice:
    """The chunks of one choice so far."""

    def __init__(self, where: str, record: dict[str, Any]) -> None:
        self.where = where
        self.chat = record.get("object") == CHAT
        self.ended = False
        self.prompt: Any = None
        self.usage: Any = None
        self.ids: list[Any] = []
        self.tokens: list[Any] = []
        self.scores: list[Any] = []

    def add(self, where: str, record: dict[str, Any], choice: dict[str, Any]) -> None:
        """Append one chunk."""
        if self.ended:
            raise ArtifactError(f"{where}: this choice goes on after its end", hint="Two answers with one id?")
        if self.prompt is None:
            own = choice.get("prompt_token_ids")
            self.prompt = record.get("prompt_token_ids") if own is None else own
        self.usage = record.get("usage") or self.usage
        tokens, scores = _logprobs(choice.get("logprobs"), where)
        ids = choice.get("token_ids")
        if self.chat and scores and ids is None:
            raise ArtifactError(
                f"{where} has log probabilities and no token_ids: tokens that the server's parsers held back would be "
                "missing unseen",
                hint=ASK,
            )
        self.ids.extend(ids or ())
        self.tokens.extend(tokens)
        self.scores.extend(scores)
        self.ended = choice.get("finish_reason") is not None

    def joined(self, index: int) -> dict[str, Any]:
        """Return the choice as it would stand in an answer that was not streamed."""
        logprobs = {"tokens": self.tokens, "token_logprobs": self.scores} if self.scores else None
        choice: dict[str, Any] = {"index": index, "logprobs": logprobs, "prompt_token_ids": self.prompt}
        return choice | ({"token_ids": self.ids} if self.ids else {})


def _logprobs(value: Any, where: str) -> tuple[list[Any], list[Any]]:
    """Return tokens and log probabilities of one chunk, of either kind; its alternatives are not kept."""
    if not isinstance(value, dict):
        return [], []
    content = value.get("content")
    if content is not None:
        if not isinstance(content, list) or not all(isinstance(item, dict) for item in content):
            raise ArtifactError(f"{where}: logprobs.content is {content!r:.40}, not a list of objects")
        return [item.get("token") for item in content], [item.get("logprob") for item in content]
    tokens, scores = value.get("tokens"), value.get("token_logprobs")
    if not isinstance(tokens, list) or not isinstance(scores, list):
        return [], []
    return tokens, scores
