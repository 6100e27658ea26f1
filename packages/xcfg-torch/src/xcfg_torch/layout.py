"""What one request asks of the layout: batch size, padding side, packing; and what is refused."""

from __future__ import annotations

from dataclasses import dataclass

from xcfg.errors import ExecutionError
from xcfg.schema._base import Value
from xcfg.schema.runtime import Capability

from xcfg_torch.capabilities import TORCH

DEFAULT_LAYOUT: dict[str, Value] = {"batch.size": 8, "batch.padding_side": "right", "batch.packing": False}
"""The defaults that the shared knobs declare: a request that names none of them means the same as one that does."""


class UnsupportedRequestError(ExecutionError):
    """A request that this engine cannot honour; the case ends UNSUPPORTED."""

    kind = "unsupported"


@dataclass(frozen=True)
class Layout:
    """The request-lifecycle knobs: sequences per batch, padding side, packing, and the shuffle control."""

    batch_size: int
    padding_side: str
    packing: bool
    shuffle_seed: int | None = None


def layout_of(side: str, knobs: dict[str, Value], shuffle_seed: int | None = None) -> Layout:
    """Return the request-lifecycle knobs as a Layout; what is not named gets DEFAULT_LAYOUT, on every side.

    Sampling reads it too, so that a rollout that was frozen without these knobs is replayed in its own batches.
    Raises UnsupportedRequestError for a value that the descriptor does not claim for this side.
    """
    asked = {path: knobs.get(path, default) for path, default in DEFAULT_LAYOUT.items()}
    for capability in TORCH.capabilities:
        if capability.side == side and capability.path in asked:
            _refuse_unclaimed(capability, asked[capability.path])
    size = asked["batch.size"]
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise UnsupportedRequestError(f"batch.size={size!r} is no number of sequences", hint="Use 1 or more.")
    return Layout(
        batch_size=size,
        padding_side=str(asked["batch.padding_side"]),
        packing=asked["batch.packing"] is True,
        shuffle_seed=shuffle_seed,
    )


def _refuse_unclaimed(capability: Capability, value: Value) -> None:
    claimed = capability.values
    if claimed and not any(type(item) is type(value) and item == value for item in claimed):
        note = f": {capability.note}" if capability.note else ""
        raise UnsupportedRequestError(
            f"{capability.path}={value!r} on the {capability.side} side{note}",
            hint=f"The runtime 'torch' claims {', '.join(repr(item) for item in claimed)}.",
        )
