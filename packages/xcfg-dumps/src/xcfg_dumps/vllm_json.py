"""vLLM: RequestOutput as JSON, and the answers of its OpenAI server (completions, chat, batch files).

Read for the layout: vllm-project/vllm, vllm/logprobs.py at 578b601c, vllm/outputs.py at 003d3ee2,
entrypoints/openai/completion/serving.py at cc139d8e, completion/protocol.py and chat_completion/protocol.py at
d5dba2d7. One position is {token id: {"logprob", "rank", "decoded_token"}}; it has top-k entries and the chosen
token, so the chosen one is looked up by its id. The first prompt position is null. JSON turns ids into text and NaN
into null; the server raises -inf to -9999. Whether values are raw or processed is not in the payload.

RequestOutput has no JSON form of its own; a dictionary of its attributes (dataclasses.asdict, vars) is read, also
with FlatLogprobs. The OpenAI forms need ids: `return_token_ids` (token_ids, prompt_token_ids), or
`return_tokens_as_token_ids`, which writes tokens as "token_id:N". Generated tokens are active; where a request only
scored its prompt, the prompt is. Streamed chunks are joined first (vllm_stream).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xcfg.errors import ArtifactError

from xcfg_dumps import records
from xcfg_dumps.samples import Sample, batches, floats, number, whole
from xcfg_dumps.vllm_stream import answers, first_keys, is_events

ASK = "Ask the server with `return_token_ids: true`, so that token_ids and prompt_token_ids stand in the answer."
FLAT = frozenset(("start_indices", "end_indices", "token_ids", "logprobs"))


class RequestOutputReader:
    """Reads RequestOutput objects: the rollout side."""

    def detect(self, path: Path) -> str:
        """Return why the file holds them: the keys of its first record."""
        found = records.keys(path) >= {"request_id", "prompt_token_ids", "outputs"}
        return "its records have request_id, prompt_token_ids and outputs (vLLM RequestOutput)" if found else ""

    def read(self, path: Path) -> Iterator[dict[str, Any]]:
        """Yield batches of the rollout side. Raises ArtifactError, naming the record."""
        yield from batches(
            (sample for where, record in records.documents(path) for sample in _request(where, record)), path.name
        )


class OpenAiReader:
    """Reads answers of the OpenAI API: a document, a list, one per line, a batch file, a stream; the rollout side."""

    def detect(self, path: Path) -> str:
        """Return why the file holds them: the keys of its first record."""
        if is_events(path):
            keys = first_keys(path)
            return "its events have object and choices (OpenAI stream)" if keys >= {"choices", "object"} else ""
        keys = records.keys(path)
        if keys >= {"choices", "object"}:
            return "its records have object and choices (OpenAI answer)"
        return (
            "its records have custom_id and response (OpenAI batch file)" if keys >= {"custom_id", "response"} else ""
        )

    def read(self, path: Path) -> Iterator[dict[str, Any]]:
        """Yield batches of the rollout side. Raises ArtifactError, naming the record."""
        yield from batches((sample for where, record in answers(path) for sample in _answer(where, record)), path.name)


def _request(where: str, record: dict[str, Any]) -> Iterator[Sample]:
    name = str(record.get("request_id"))
    prompt = whole(record.get("prompt_token_ids"), f"{where}: prompt_token_ids")
    before = _positions(record.get("prompt_logprobs"), prompt, f"{where}: prompt_logprobs")
    outputs = _objects(record.get("outputs"), f"{where}: outputs")
    for output in outputs:
        ids = whole(output.get("token_ids"), f"{where}: outputs token_ids")
        scores = _positions(output.get("logprobs"), ids, f"{where}: outputs logprobs")
        sample_id = name if len(outputs) == 1 else f"{name}/{output.get('index')}"
        yield _joined(sample_id, prompt, before, ids, scores, where)


def _positions(value: Any, ids: NDArray[np.int64], where: str) -> NDArray[np.float64] | None:
    """Return the log probability of each id, NaN for null; None when nothing was recorded."""
    if value is None:
        return None
    if isinstance(value, dict):
        value = _unflattened(value, where)
    if not isinstance(value, list) or len(value) != len(ids):
        size = len(value) if isinstance(value, list) else type(value).__name__
        raise ArtifactError(f"{where} has {size} positions for {len(ids)} tokens")
    found: list[Any] = []
    for position, (token, entries) in enumerate(zip(ids.tolist(), value, strict=True)):
        if entries is None:
            found.append(None)
            continue
        entry = entries.get(str(token)) if isinstance(entries, dict) else None
        if entry is None:
            raise ArtifactError(
                f"{where}: position {position} has no entry for its token {token}",
                hint="vLLM always adds the chosen token; these are the entries of another token.",
            )
        found.append(entry.get("logprob") if isinstance(entry, dict) else entry)
    return floats(found, where)


def _unflattened(value: dict[str, Any], where: str) -> list[Any]:
    """Return FlatLogprobs as one dictionary per position."""
    if not value.keys() >= FLAT:
        raise ArtifactError(f"{where} is an object without {', '.join(sorted(FLAT - value.keys()))}")
    start, end, ids = (whole(value[key], f"{where}.{key}") for key in ("start_indices", "end_indices", "token_ids"))
    logprobs = value["logprobs"]
    if not isinstance(logprobs, list) or len(ids) != len(logprobs) or len(start) != len(end):
        raise ArtifactError(f"{where} has columns of different lengths")
    if len(start) and not (int(start.min()) >= 0 and int(end.max()) <= len(ids) and bool((start <= end).all())):
        raise ArtifactError(f"{where} has indices outside its columns")
    spans = zip(start.tolist(), end.tolist(), strict=True)
    return [{str(ids[at]): logprobs[at] for at in range(low, high)} if high > low else None for low, high in spans]


def _joined(
    name: str,
    prompt: NDArray[np.int64],
    before: NDArray[Any] | None,
    ids: NDArray[np.int64],
    scores: NDArray[Any] | None,
    where: str,
) -> Sample:
    """Return prompt and response as one sample; the response is active, or the prompt where only it was scored."""
    if before is None and scores is None:
        raise ArtifactError(f"{where} holds no log probabilities", hint="Sample with logprobs=0 or more.")
    active = np.zeros(len(prompt) + len(ids), dtype=np.bool_)
    if scores is not None:
        active[len(prompt) :] = True
    elif before is not None:
        active[: len(prompt)] = np.isfinite(before)
    values = [np.full(len(part), np.nan) if logp is None else logp for part, logp in ((prompt, before), (ids, scores))]
    return Sample(name, np.concatenate([prompt, ids]), active, {"rollout": np.concatenate(values)})


def _answer(where: str, record: dict[str, Any]) -> Iterator[Sample]:
    name = record.get("id")
    if "custom_id" in record:
        name, body = record["custom_id"], record.get("response")
        record = body.get("body") if isinstance(body, dict) else None  # type: ignore[assignment]
        if not isinstance(record, dict):
            raise ArtifactError(f"{where}: the request {name!r} has no answer", hint="Take failed requests out.")
    choices = _objects(record.get("choices"), f"{where}: choices")
    for index, choice in enumerate(choices):
        sample_id = str(name) if len(choices) == 1 else f"{name}/{choice.get('index', index)}"
        inside = f"{where}, choice {index}"
        logprobs = choice.get("logprobs")
        if not isinstance(logprobs, dict):
            raise ArtifactError(f"{inside} holds no logprobs", hint=f"Ask for them. {ASK}")
        tokens, scores = _chat(logprobs, inside) if "content" in logprobs else _completion(logprobs, inside)
        prompt = choice.get("prompt_token_ids", record.get("prompt_token_ids"))
        head = None if prompt is None else whole(prompt, f"{inside}: prompt_token_ids")
        yield _choice(sample_id, choice, record, head, tokens, scores, len(choices), inside)


def _chat(logprobs: dict[str, Any], where: str) -> tuple[list[Any], NDArray[Any]]:
    content = _objects(logprobs["content"], f"{where}: logprobs.content")
    values = floats([item.get("logprob") for item in content], f"{where}: logprob")
    return [item.get("token") for item in content], values


def _completion(logprobs: dict[str, Any], where: str) -> tuple[list[Any], NDArray[Any]]:
    tokens = logprobs.get("tokens")
    values = floats(logprobs.get("token_logprobs"), f"{where}: token_logprobs")
    if not isinstance(tokens, list) or len(tokens) != len(values):
        raise ArtifactError(f"{where}: tokens and token_logprobs have different lengths")
    return tokens, values


def _choice(
    name: str,
    choice: dict[str, Any],
    record: dict[str, Any],
    prompt: NDArray[np.int64] | None,
    tokens: list[Any],
    scores: NDArray[Any],
    siblings: int,
    where: str,
) -> Sample:
    own = choice.get("token_ids")
    ids = _named_ids(tokens, where) if own is None else whole(own, f"{where}: token_ids")
    if prompt is not None and own is not None and len(scores) == len(prompt) + len(ids):  # echo
        return _joined(name, prompt, scores[: len(prompt)], ids, scores[len(prompt) :] if len(ids) else None, where)
    if len(scores) != len(ids):
        raise ArtifactError(f"{where} has {len(scores)} log probabilities for {len(ids)} token ids")
    if prompt is not None:
        return _joined(name, prompt, None, ids, scores, where)
    usage = record.get("usage")
    length = usage.get("prompt_tokens") if isinstance(usage, dict) and siblings == 1 else None
    if length is None:
        raise ArtifactError(f"{where} does not say how long its prompt is", hint=ASK)
    first = number(length, f"{where}: usage.prompt_tokens")
    return Sample(name, ids, np.ones(len(ids), dtype=np.bool_), {"rollout": scores}, first=first)


def _named_ids(tokens: list[Any], where: str) -> NDArray[np.int64]:
    """Return N of `token_id:N`."""
    found = []
    for token in tokens:
        head, _, text = token.partition("token_id:") if isinstance(token, str) else ("x", "", "")
        if head or not (text.isascii() and text.isdigit() and len(text) < 11):
            raise ArtifactError(
                f"{where} holds text in place of token ids ({token!r:.40}), and text cannot be compared", hint=ASK
            )
        found.append(int(text))
    return np.array(found, dtype=np.int64)


def _objects(value: Any, where: str) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not value or not all(isinstance(item, dict) for item in value):
        raise ArtifactError(f"{where} is {value!r:.60}, not a list of objects")
    return value
