"""The transforms of logits: what the model does itself, then the sampling chain in the order in which it is named."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from xcfg.errors import IdentityError
from xcfg.schema.identity import SamplingRecord

SCALE, DIVISOR = "logit_scale", "logits_scaling"
"""What Cohere's models multiply their logits by, and what Granite's divide them by."""
MODES = ("raw_logprobs", "processed_logprobs")


def chain_of(temperature: float, top_k: int, top_p: float) -> tuple[str, ...]:
    """Return the ordered chain of a sampling request; a transform that does nothing is left out."""
    parts = []
    if temperature != 1.0:
        parts.append(f"temperature:{temperature!r}")
    if top_k > 0:
        parts.append(f"top_k:{top_k}")
    if top_p < 1.0:
        parts.append(f"top_p:{top_p!r}")
    return tuple(parts)


def own_transforms(model: Any) -> tuple[str, ...]:
    """Return what the model's own forward does to its logits behind the head: soft cap, then scale.

    A value of the configuration counts where the code of the live class names it: other models carry and ignore it.
    """
    names, config = inspect.unwrap(type(model).forward).__code__.co_names, model.config
    cap, scale = (getattr(config, name, None) if name in names else None for name in ("final_logit_softcapping", SCALE))
    parts = [f"soft_cap:{float(cap)!r}"] if cap is not None else []
    divisor = getattr(config, DIVISOR, None) if DIVISOR in names and config.model_type.startswith("granite") else None
    scale = 1.0 / divisor if divisor is not None else scale
    return tuple(parts + ([f"logit_scale:{float(scale)!r}"] if scale not in (None, 1.0) else []))


def value_chain(sampling: SamplingRecord) -> tuple[str, ...]:
    """Return the transforms under which recorded values were made: none under raw_logprobs."""
    if sampling.logprobs_mode not in MODES:
        raise IdentityError(
            f"the runtime 'torch' does not know the logprobs_mode {sampling.logprobs_mode!r}",
            hint=f"It scores {', '.join(MODES)}.",
        )
    return sampling.transform_chain if sampling.logprobs_mode == "processed_logprobs" else ()


def apply_chain(logits: torch.Tensor, chain: Sequence[str]) -> torch.Tensor:
    """Return [N, V] logits after `chain`; at least float32. Removed tokens get -inf."""
    values = logits if not chain else logits.to(torch.promote_types(logits.dtype, torch.float32))
    for item in chain:
        name, _, argument = item.partition(":")
        try:
            values = _apply(values, name, argument)
        except (KeyError, ValueError):
            raise IdentityError(
                f"the transform {item!r} of the sampling record is not known to the runtime 'torch'",
                hint="Known: temperature:T (T > 0), top_k:K, top_p:P.",
            ) from None
    return values


def _apply(values: torch.Tensor, name: str, argument: str) -> torch.Tensor:
    if name == "temperature":
        if not float(argument) > 0:
            raise ValueError(argument)
        return values / float(argument)
    if name == "top_k":
        kept = min(int(argument), values.shape[-1])
        lowest = values.topk(kept, dim=-1).values[..., -1:]
        return values.masked_fill(values < lowest, -torch.inf)
    if name == "top_p":
        return _top_p(values, float(argument))
    raise KeyError(name)


def _top_p(values: torch.Tensor, share: float) -> torch.Tensor:
    """Keep the smallest set of most likely tokens whose probability reaches `share`; at least one token."""
    ordered, order = values.sort(dim=-1, descending=True, stable=True)
    probability = ordered.softmax(dim=-1)
    before = probability.cumsum(dim=-1) - probability
    removed = torch.zeros_like(values, dtype=torch.bool).scatter(-1, order, before >= share)
    removed.scatter_(-1, order[..., :1], False)
    return values.masked_fill(removed, -torch.inf)
