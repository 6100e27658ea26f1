"""Scoring a frozen rollout with transformers and torch, as one writes it by hand. Nothing here imports xcfg."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file

Floats = NDArray[np.float32] | NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
ROWS = 1024
"""Rows of logits that are upcast at a time."""


@dataclass(frozen=True)
class Side:
    """How one side is run. logprob: the precision of log_softmax. ranks: processes that share batches and cores."""

    dtype: str = "bfloat16"
    attention: str = "model_default"
    batch_size: int = 8
    padding_side: str = "right"
    packing: bool = False
    logprob: str = "float32"
    ranks: int = 1


@dataclass(frozen=True)
class Scoring:
    """One pass over the rollout: `arm` is prefill or decode."""

    arm: str
    side: Side


@dataclass(frozen=True)
class Frozen:
    """The rollout: flat arrays over T tokens and offsets [S + 1]."""

    ids: Ints
    positions: Ints
    visible: Bools
    active: Bools
    offsets: Ints
    recorded: Floats | None

    def span(self, sequence: int) -> slice:
        return slice(int(self.offsets[sequence]), int(self.offsets[sequence + 1]))

    @property
    def count(self) -> int:
        return len(self.offsets) - 1


@dataclass
class Scored:
    """Log probabilities [T], NaN where there is none; decoded [T]: made by a decode step, not by the prompt pass."""

    values: Floats
    decoded: Bools
    seconds: float = 0.0
    steps: list[int] = field(default_factory=list)


def read_rollout(folder: Path) -> Frozen:
    manifest = json.loads((folder / "manifest.json").read_text())
    sampling = manifest["sampling"]
    if sampling["logprobs_mode"] != "raw_logprobs":
        raise SystemExit("only rollouts with raw log probabilities are scored here")
    data = load_file(folder / "rollout.safetensors")
    return Frozen(
        ids=data["selected_token_ids"],
        positions=data["position_ids"],
        visible=data["attention_mask"],
        active=data["active_mask"],
        offsets=data["offsets"],
        recorded=data.get("recorded_logprob"),
    )


def load_model(folder: Path, dtype: str, attention: str) -> Any:
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    quiet: Any = logging
    quiet.disable_progress_bar()
    chosen = {} if attention == "model_default" else {"attn_implementation": attention}
    loader: Any = AutoModelForCausalLM
    model = loader.from_pretrained(folder, dtype=getattr(torch, dtype), local_files_only=True, **chosen)
    return model.eval().requires_grad_(False)


def padding_id(model: Any) -> int:
    wanted = model.config.pad_token_id
    return wanted if isinstance(wanted, int) and 0 <= wanted < model.config.vocab_size else 0


def log_softmax(logits: torch.Tensor, ids: Ints, precision: str) -> Floats:
    """What trainers do (in float32): upcast, log_softmax, gather."""
    table = torch.log_softmax(logits.to(getattr(torch, precision)), dim=-1)
    picked: Floats = table.gather(-1, torch.from_numpy(ids)[:, None])[:, 0].numpy()
    return picked


def groups(frozen: Frozen, size: int) -> list[range]:
    return [range(start, min(start + size, frozen.count)) for start in range(0, frozen.count, size)]


def padded(frozen: Frozen, spans: Sequence[slice], side: str, pad: int) -> tuple[dict[str, torch.Tensor], list[int]]:
    """Return the model's inputs for one row per span, and the column at which each row begins."""
    lengths = [span.stop - span.start for span in spans]
    width = max(lengths)
    begins = [width - length if side == "left" else 0 for length in lengths]
    ids, positions, mask = (np.full((len(spans), width), value, dtype=np.int64) for value in (pad, 0, 0))
    for row, (span, begin, length) in enumerate(zip(spans, begins, lengths, strict=True)):
        ids[row, begin : begin + length] = frozen.ids[span]
        positions[row, begin : begin + length] = frozen.positions[span]
        mask[row, begin : begin + length] = frozen.visible[span]
    arrays = {"input_ids": ids, "position_ids": positions, "attention_mask": mask}
    return {name: torch.from_numpy(array) for name, array in arrays.items()}, begins


def packed(frozen: Frozen, spans: Sequence[slice]) -> dict[str, torch.Tensor]:
    """Return all spans in one row without a mask: positions that start again separate them."""
    ids = np.concatenate([frozen.ids[span] for span in spans])
    positions = np.concatenate([frozen.positions[span] for span in spans])
    return {"input_ids": torch.from_numpy(ids)[None], "position_ids": torch.from_numpy(positions)[None]}


def prefill(model: Any, frozen: Frozen, side: Side) -> Scored:
    """Teacher forcing: one forward per batch; the logits of column c - 1 score the token in column c."""
    values = np.full(len(frozen.ids), np.nan, dtype=np.float32)
    batches = groups(frozen, side.batch_size)
    for rank in range(side.ranks):
        for group in batches[rank :: side.ranks]:
            spans = [frozen.span(sequence) for sequence in group]
            if side.packing:
                inputs = packed(frozen, spans)
                begins = [span.start - spans[0].start for span in spans]
            else:
                inputs, begins = padded(frozen, spans, side.padding_side, padding_id(model))
            logits = model(**inputs, use_cache=False).logits
            flat = np.concatenate([span.start + np.flatnonzero(frozen.active[span]) for span in spans])
            owner = np.searchsorted(frozen.offsets, flat, side="right") - 1 - group[0]
            columns = np.asarray(begins)[owner] + flat - frozen.offsets[owner + group[0]] - 1
            rows = np.zeros_like(owner) if side.packing else owner
            for at in range(0, len(flat), ROWS):
                part = slice(at, at + ROWS)
                chosen = logits[torch.from_numpy(rows[part]), torch.from_numpy(columns[part])]
                values[flat[part]] = log_softmax(chosen, frozen.ids[flat[part]], side.logprob)
    return Scored(values, np.zeros(len(values), dtype=np.bool_))


def decode(model: Any, frozen: Frozen, side: Side) -> Scored:
    """Forced replay: prompts in one forward, then the frozen tokens one step at a time through the KV cache.

    Rows that have ended go on as padding, so that a step always has the rows of its batch.
    """
    scored = Scored(np.full(len(frozen.ids), np.nan, dtype=np.float32), np.zeros(len(frozen.ids), dtype=np.bool_))
    for group in groups(frozen, side.batch_size):
        scored.steps.append(_replay(model, frozen, side, group, scored))
    return scored


def _prompt(frozen: Frozen, sequence: int) -> slice:
    span = frozen.span(sequence)
    active = np.flatnonzero(frozen.active[span])
    return slice(span.start, span.start + int(active[0]) if len(active) else span.stop - 1)


def _replay(model: Any, frozen: Frozen, side: Side, group: Iterable[int], scored: Scored) -> int:
    prompts = [_prompt(frozen, sequence) for sequence in group]
    pad = padding_id(model)
    inputs, begins = padded(frozen, prompts, side.padding_side, pad)
    last = np.asarray([begin + span.stop - span.start - 1 for begin, span in zip(begins, prompts, strict=True)])
    kept = np.unique(last)
    out = model(**inputs, use_cache=True, logits_to_keep=torch.from_numpy(kept))
    logits = out.logits[torch.arange(len(last)), torch.from_numpy(np.searchsorted(kept, last))]
    mask = inputs["attention_mask"]
    now = np.asarray([span.stop for span in prompts])
    stop = np.asarray([frozen.span(sequence).stop for sequence in group])
    running, steps = np.ones(len(now), dtype=np.bool_), 0
    while True:
        hit = np.flatnonzero(running & frozen.active[np.minimum(now, stop - 1)])
        if len(hit):
            scored.values[now[hit]] = log_softmax(logits[torch.from_numpy(hit)], frozen.ids[now[hit]], side.logprob)
            scored.decoded[now[hit]] = steps > 0
        running &= now + 1 < stop
        if not running.any():
            return steps
        token = np.where(running, frozen.ids[np.minimum(now, stop - 1)], pad)
        place = np.where(running, frozen.positions[np.minimum(now, stop - 1)], 0)
        seen = running & frozen.visible[np.minimum(now, stop - 1)]
        mask = torch.cat((mask, torch.from_numpy(seen.astype(np.int64))[:, None]), dim=1)
        out = model(
            input_ids=torch.from_numpy(token)[:, None],
            position_ids=torch.from_numpy(place)[:, None],
            attention_mask=mask,
            past_key_values=out.past_key_values,
            use_cache=True,
        )
        logits = out.logits[:, -1]
        now = now + running
        steps += 1
