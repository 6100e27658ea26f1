"""Seeded sampling for `xcfg freeze`, on the same decode loop as forced replay.

Replayed at once, in the same batches and the same process, the recorded values come back bit for bit.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from xcfg.errors import ConfigError, UsageError
from xcfg.identity.checkpoint import tokenizer_digest
from xcfg.schema._base import Input
from xcfg.schema.codec import convert

from xcfg_torch.batching import chunks, pad, prompt_piece
from xcfg_torch.decode import Step, decode
from xcfg_torch.engine import Engine
from xcfg_torch.observe import Seen
from xcfg_torch.scoring import call_operator
from xcfg_torch.transforms import apply_chain, chain_of


class Sampling(Input, frozen=True):
    """A generate request. top_k 0 and top_p 1 keep everything; stop_ids end a sequence and are kept."""

    max_new_tokens: int
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    logprobs_mode: Literal["raw_logprobs", "processed_logprobs"] = "raw_logprobs"
    stop_ids: tuple[int, ...] = ()

    @property
    def chain(self) -> tuple[str, ...]:
        """The ordered transforms between raw logits and the distribution that is sampled."""
        return chain_of(self.temperature, self.top_k, self.top_p)

    @property
    def recorded(self) -> tuple[str, ...]:
        """Those between raw logits and the recorded log probabilities."""
        return self.chain if self.logprobs_mode == "processed_logprobs" else ()


def parse_sampling(document: dict[str, Any]) -> Sampling:
    """Return a checked Sampling; ConfigError names the field at fault."""
    fields = {name: value for name, value in document.items() if name != "prompts"}
    sampling = convert(fields, Sampling, source="generate request")
    faults = {
        "max_new_tokens": sampling.max_new_tokens < 1,
        "temperature": not sampling.temperature > 0,
        "top_k": sampling.top_k < 0,
        "top_p": not 0 < sampling.top_p <= 1,
    }
    for name, wrong in faults.items():
        if wrong:
            raise ConfigError(
                f"{getattr(sampling, name)!r} is out of range",
                source="generate request",
                path=f"$.{name}",
                hint="max_new_tokens >= 1, temperature > 0, top_k >= 0, 0 < top_p <= 1.",
            )
    return sampling


def prompt_ids(prompts: Sequence[Any], checkpoint: Path) -> list[list[int]]:
    """Return token ids of prompts given as ids, as {"token_ids": ...} or as {"text": ...}.

    Text goes through the checkpoint's own tokenizer with its special tokens. Raises UsageError without one.
    """
    texts = [item["text"] for item in prompts if isinstance(item, dict) and "text" in item]
    encode: Any = _tokenizer(checkpoint) if texts else None
    result = []
    for item in prompts:
        if isinstance(item, dict) and "text" in item:
            result.append([int(token) for token in encode(item["text"], add_special_tokens=True)["input_ids"]])
        else:
            result.append([int(token) for token in (item["token_ids"] if isinstance(item, dict) else item)])
    return result


def _tokenizer(checkpoint: Path) -> Any:
    from transformers import AutoTokenizer

    if not tokenizer_digest(checkpoint):
        # transformers makes an empty tokenizer from the model type alone, and every text becomes no token.
        raise UsageError(
            f"text cannot be a prompt: {checkpoint.name!r} has no tokenizer files",
            hint='Give prompts as {"token_ids": [...]}.',
        )
    try:
        return AutoTokenizer.from_pretrained(checkpoint, local_files_only=True)
    except (OSError, ValueError, ImportError, KeyError) as error:
        raise UsageError(
            f"text cannot be a prompt: {checkpoint.name!r} has no tokenizer that transformers loads",
            hint='Give prompts as {"token_ids": [...]}.',
        ) from error


def sequence_seed(seed: int, sequence: int) -> int:
    """Return the seed of one sequence, so that its draws do not depend on its batch."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{sequence}".encode()).digest()[:8], "big") >> 1


@dataclass
class SamplingFeed:
    """Samples the next token of every live row and records its log probability."""

    engine: Engine
    sampling: Sampling
    generators: list[torch.Generator]
    positions: NDArray[np.int64]
    live: NDArray[np.bool_]
    tokens: list[list[int]] = field(default_factory=list)
    logprobs: list[list[float]] = field(default_factory=list)

    def next(self, logits: torch.Tensor) -> Step | None:
        """Sample, record, and return the sampled tokens of rows that go on."""
        rows = np.flatnonzero(self.live)
        picked = logits[torch.from_numpy(rows).to(logits.device)]
        processed = apply_chain(picked, self.sampling.chain)
        ids = self._sample(processed, rows)
        source = processed if self.sampling.recorded else picked
        values = call_operator(self.engine.operator, source, torch.from_numpy(ids).to(logits.device)).cpu()
        fed = np.full(len(self.live), self.engine.pad_id, dtype=np.int64)
        for row, token, value in zip(rows, ids, values.tolist(), strict=True):
            self.tokens[row].append(int(token))
            self.logprobs[row].append(value)
            full = len(self.tokens[row]) >= self.sampling.max_new_tokens
            self.live[row] = not full and int(token) not in self.sampling.stop_ids
            fed[row] = token if self.live[row] else self.engine.pad_id
        if not bool(self.live.any()):
            return None
        live = self.live.copy()
        return Step(fed, np.where(live, self.positions, 0), live, np.ones(len(live), dtype=np.bool_))

    def entered(self, seen: Seen, batch_mask: NDArray[np.bool_], step: Step | None) -> None:
        """Advance the positions of the rows that were fed."""
        if step is not None:
            self.positions[step.live] += 1

    def _sample(self, processed: torch.Tensor, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        wide = processed.to(torch.promote_types(processed.dtype, torch.float32))
        probability = wide.softmax(dim=-1).cpu()
        drawn = [
            int(torch.multinomial(probability[index], 1, generator=self.generators[row]))
            for index, row in enumerate(rows)
        ]
        return np.asarray(drawn, dtype=np.int64)


def run_generate(
    engine: Engine,
    prompts: list[list[int]],
    sampling: Sampling,
    *,
    batch_size: int,
    padding_side: str,
    seed: int,
) -> list[dict[str, Any]]:
    """Return {"prompt_ids", "token_ids", "logprobs", "transforms", "finish_reason"} per prompt."""
    empty = [index for index, prompt in enumerate(prompts) if not prompt]
    if empty:
        raise UsageError(f"prompt {empty[0]} has no token", hint="Give at least one token per prompt.")
    used = sampling.seed if sampling.seed is not None else seed
    result: list[dict[str, Any]] = []
    for group in chunks(range(len(prompts)), batch_size):
        pieces = [prompt_piece(index, prompts[index]) for index in group]
        feed = SamplingFeed(
            engine=engine,
            sampling=sampling,
            generators=[torch.Generator().manual_seed(sequence_seed(used, index)) for index in group],
            positions=np.asarray([piece.length for piece in pieces], dtype=np.int64),
            live=np.ones(len(group), dtype=np.bool_),
            tokens=[[] for _ in group],
            logprobs=[[] for _ in group],
        )
        decode(engine, pad(pieces, padding_side, engine.pad_id), feed)
        result += [
            {
                "prompt_ids": list(prompts[index]),
                "token_ids": tokens,
                "logprobs": logprobs,
                "transforms": list(sampling.recorded),
                "finish_reason": "stop" if tokens[-1] in sampling.stop_ids else "length",
            }
            for index, tokens, logprobs in zip(group, feed.tokens, feed.logprobs, strict=True)
        ]
    return result
