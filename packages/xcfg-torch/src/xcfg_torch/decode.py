"""Real token-by-token decode with a KV cache; the one loop that both sampling and forced replay run.

A batch of prompts is prefilled, then every step feeds one token per row. Rows that ended stay in the batch as
padding, as in static batching, so the GEMM shapes of a step are those of the prompt batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from xcfg_torch.batching import Batch
from xcfg_torch.engine import Engine
from xcfg_torch.observe import Seen


@dataclass(frozen=True)
class Step:
    """One token per row. tokens, positions int64 [B]; live: the row goes on; visible: attention sees it."""

    tokens: NDArray[np.int64]
    positions: NDArray[np.int64]
    live: NDArray[np.bool_]
    visible: NDArray[np.bool_]


class Feed(Protocol):
    """Where the next tokens come from: the frozen rollout, or a sampler."""

    def next(self, logits: torch.Tensor) -> Step | None:
        """Use logits [B, V] of the last position of every row; return the next tokens, or None at the end."""
        ...

    def entered(self, seen: Seen, batch_mask: NDArray[np.bool_], step: Step | None) -> None:
        """Take note of what entered: after the prompts (`step` None) and after every step."""
        ...


Intervention = Callable[[int, Any], None]
"""Called before step n with the live KV cache; a control of the replay uses it to damage a page."""


def decode(engine: Engine, prompts: Batch, feed: Feed, intervene: Intervention | None = None) -> int:
    """Prefill `prompts` and decode until `feed` ends; return the number of single-token forwards."""
    current, cache, mask = _prefill(engine, prompts, feed)
    steps = 0
    while (step := feed.next(current)) is not None:
        mask = np.concatenate((mask, (step.visible & step.live)[:, None]), axis=1)
        if intervene is not None:
            intervene(steps, cache)
        output, seen = engine.call(
            input_ids=engine.tensor(step.tokens[:, None]),
            position_ids=engine.tensor(step.positions[:, None]),
            attention_mask=engine.tensor(mask.astype(np.int64)),
            past_key_values=cache,
            use_cache=True,
        )
        feed.entered(seen, mask, step)
        current, cache = output.logits[:, -1], output.past_key_values
        steps += 1
    return steps


def _prefill(engine: Engine, prompts: Batch, feed: Feed) -> tuple[torch.Tensor, Any, NDArray[np.bool_]]:
    """Return the logits [B, V] after each prompt, the cache, and the mask of its columns.

    The head runs on the last position of each row only, as engines do; under right padding the columns differ.
    """
    last = np.asarray([max(0, cell.column + cell.piece.length - 1) for cell in prompts.cells], dtype=np.int64)
    kept = np.unique(last)
    output, seen = engine.forward(prompts, cache=True, columns=kept)
    logits = output.logits
    columns = np.searchsorted(kept, last) if logits.shape[1] == len(kept) else last
    mask = prompts.attention_mask
    known = np.ones(prompts.input_ids.shape, dtype=np.bool_) if mask is None else mask
    feed.entered(seen, known, None)
    rows = torch.arange(len(last), device=logits.device)
    return logits[rows, engine.tensor(columns)], output.past_key_values, known
