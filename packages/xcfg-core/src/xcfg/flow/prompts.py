"""The prompts of a freeze: read from JSONL and held against the vocabulary before an engine is started."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from xcfg.errors import ConfigError, UsageError
from xcfg.flow.checkpoints import Checkpoint
from xcfg.identity.checkpoint import position_limit, tokenizer_digest, vocabulary_size
from xcfg.schema.codec import parse_strict, read_file


def read_prompts(file: Path) -> list[dict[str, Any]]:
    """Return the prompts of a JSONL file: `{"token_ids": [...]}` or `{"text": "..."}`, and optionally `id`.

    Raises ConfigError with the line.
    """
    try:
        lines = read_file(file).decode().split("\n")  # splitlines would also break at U+2028 inside a text
    except UnicodeDecodeError as error:
        raise ConfigError(f"cannot be read: {error}", source=str(file)) from None
    prompts = [
        _prompt(parse_strict(line, source=f"{file}:{number}"), f"{file}:{number}")
        for number, line in enumerate(lines, start=1)
        if line.strip()
    ]
    names = [prompt.get("id", f"prompt-{index}") for index, prompt in enumerate(prompts)]
    if len(set(names)) < len(names):
        twice = next(name for index, name in enumerate(names) if name in names[:index])
        raise ConfigError(
            f"the id {twice!r} stands twice", source=str(file), hint="Give every prompt an id of its own."
        )
    if not prompts:
        raise ConfigError("holds no prompt", source=str(file), hint='One JSON object a line, e.g. {"text": "..."}.')
    return prompts


def _prompt(document: Any, source: str) -> dict[str, Any]:
    known = {"id", "text", "token_ids"}
    hint = 'Give {"text": "..."} or {"token_ids": [1, 2, 3]}, and optionally "id".'
    if not isinstance(document, dict) or set(document) - known or ("text" in document) == ("token_ids" in document):
        raise ConfigError("a prompt is an object with either text or token_ids", source=source, hint=hint)
    text, ids = document.get("text"), document.get("token_ids")
    if "text" in document and (not isinstance(text, str) or not text):
        raise ConfigError("text must be a string that is not empty", source=source, path="$.text", hint=hint)
    if "token_ids" in document and not (
        isinstance(ids, list) and ids and all(type(item) is int and item >= 0 for item in ids)
    ):
        raise ConfigError("token_ids must be a list of ids from 0", source=source, path="$.token_ids", hint=hint)
    if not isinstance(document.get("id", ""), str):
        raise ConfigError("id must be a string", source=source, path="$.id", hint=hint)
    return document


def check_vocabulary(prompts: Sequence[dict[str, Any]], checkpoint: Checkpoint, file: Path) -> None:
    """Raise ConfigError for the first token id without an embedding, and for text without a tokenizer."""
    if checkpoint.folder is None:
        return
    size = vocabulary_size(checkpoint.folder)
    readable = bool(tokenizer_digest(checkpoint.folder))
    for number, prompt in enumerate(prompts):
        name = prompt.get("id", f"prompt-{number}")
        if "text" in prompt and not readable:
            raise ConfigError(
                f"the prompt {name!r} is text, and {checkpoint.uri!r} has no tokenizer",
                source=str(file),
                hint='Give {"token_ids": [...]}, or a checkpoint folder with tokenizer files.',
            )
        largest = max(prompt.get("token_ids", ()), default=0)
        if size is not None and largest >= size:
            raise ConfigError(
                f"the prompt {name!r} has the token id {largest}, and {checkpoint.uri!r} has a vocabulary of {size}",
                source=str(file),
                hint=f"Ids go from 0 to {size - 1}: was the file made with another tokenizer?",
            )


def check_length(prompts: Sequence[dict[str, Any]], checkpoint: Checkpoint, max_new_tokens: int) -> None:
    """Raise UsageError where a prompt and what may follow are longer than the model has positions.

    A text counts as one token here, since only the worker has the tokenizer.
    """
    limit = position_limit(checkpoint.folder) if checkpoint.folder is not None else None
    longest = max((len(prompt.get("token_ids", (0,))) for prompt in prompts), default=0)
    if limit is not None and longest + max_new_tokens > limit:
        raise UsageError(
            f"a prompt of {longest} tokens and {max_new_tokens} new ones do not fit into the {limit} positions of "
            f"{checkpoint.uri!r}",
            hint=f"Use --max-new-tokens {limit - longest} or fewer."
            if limit > longest
            else "Use shorter prompts, or a checkpoint with more positions.",
        )
