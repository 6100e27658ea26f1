"""What a `selected_logprob` may be handed: dtypes, shapes, ids inside the vocabulary, and rows to ignore."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xcfg.errors import IdentityError, UsageError

if TYPE_CHECKING:
    import torch


def check(
    logits: torch.Tensor, selected: torch.Tensor, entries: int, *, ignore_index: int | None = None
) -> torch.Tensor | None:
    """Return which rows are ignored, bool [N], or None where there is no `ignore_index`.

    entries: size of the whole vocabulary, of which `logits` may be one shard. Raises UsageError for wrong dtypes,
    shapes or devices, IdentityError for an id outside [0, entries) that is not ignored.
    """
    check_form(logits, selected)
    return check_ids(selected, entries, ignore_index=ignore_index)


def check_ids(selected: torch.Tensor, entries: int, *, ignore_index: int | None = None) -> torch.Tensor | None:
    """Return which rows are ignored, as `check` does, and raise its IdentityError. Waits for the device of the ids."""
    ignored = None if ignore_index is None else selected == ignore_index
    outside = (selected < 0) | (selected >= entries)
    if ignored is not None:
        outside &= ~ignored
    if bool(outside.any()):
        row = int(outside.nonzero()[0, 0])
        raise IdentityError(
            f"the selected id {int(selected[row])} in row {row} is outside the vocabulary of {entries}",
            hint="The logits belong to another vocabulary, or to one shard of it.",
        )
    return ignored


def check_form(logits: torch.Tensor, selected: torch.Tensor) -> None:
    """Raise UsageError unless `logits` are floating [N, V] and `selected` are int64 [N] beside them."""
    import torch

    check_logits(logits)
    if selected.dtype != torch.int64 or selected.shape != logits.shape[:1]:
        raise UsageError(
            f"selected ids are {selected.dtype} {tuple(selected.shape)}, logits are {tuple(logits.shape)}",
            hint="They must be int64 [N], one per row of logits.",
        )
    if selected.device != logits.device:
        raise UsageError(f"selected ids are on {selected.device}, logits on {logits.device}")


def check_logits(logits: torch.Tensor) -> None:
    """Raise UsageError unless `logits` are floating [N, V] with V >= 1."""
    if logits.ndim != 2 or logits.shape[1] < 1 or not logits.is_floating_point():
        raise UsageError(
            f"logits are {logits.dtype} {tuple(logits.shape)}", hint="They must be floating [N, V] with V >= 1."
        )


def positive(name: str, value: object) -> int:
    """Return `value`; UsageError unless it is an integer of at least 1."""
    if type(value) is not int or value < 1:
        raise UsageError(f"{name} is {value!r}, not a positive integer")
    return value


def ignore_id(value: object) -> int | None:
    """Return the option `ignore_index`; UsageError unless it is an integer or None."""
    if value is not None and type(value) is not int:
        raise UsageError(f"ignore_index is {value!r}, not an integer")
    return value


def accumulator(name: object) -> torch.dtype:
    """Return the dtype of the option `accum_dtype`; UsageError unless it is float32 or float64."""
    import torch

    known = {"float32": torch.float32, "float64": torch.float64}
    if not isinstance(name, str) or name not in known:
        raise UsageError(f"accum_dtype is {name!r}", hint=f"Known: {', '.join(known)}.")
    return known[name]
