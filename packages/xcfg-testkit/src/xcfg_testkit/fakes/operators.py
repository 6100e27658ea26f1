"""A good `selected_logprob`, and backends that each break one rule."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from xcfg.schema.operators import OperatorBackendDescriptor

if TYPE_CHECKING:
    Operator = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

Tensor = torch.Tensor


def descriptor(name: str, **fields: object) -> OperatorBackendDescriptor:
    """Return a descriptor of the fake `name` of this module; keywords replace fields."""
    values: dict[str, object] = {
        "operation": "selected_logprob",
        "backend_id": f"fake.{name}",
        "summary": "a fake",
        "factory": f"{__name__}:{name}",
        "devices": ("cpu",),
        "dtypes": ("bfloat16", "float32"),
        "properties": ("run-to-run", "batch-invariant"),
    }
    return OperatorBackendDescriptor(**{**values, **fields})  # type: ignore[arg-type]


def check(logits: Tensor, selected: Tensor) -> None:
    """Refuse ids outside the vocabulary."""
    if bool(((selected < 0) | (selected >= logits.shape[1])).any()):
        raise IndexError("a selected id is outside the vocabulary")


def score(logits: Tensor, selected: Tensor) -> Tensor:
    """Return the float64 scores that every fake starts from, from a loop-free sum in index order."""
    check(logits, selected)
    wide = logits.double()
    top = wide.max(dim=-1, keepdim=True).values
    total = (wide - top).exp().cumsum(-1)[:, -1].log()
    return (wide - top).gather(-1, selected[:, None])[:, 0] - total


def good() -> Operator:
    """Keeps every rule."""

    def operator(logits: Tensor, selected: Tensor) -> Tensor:
        return score(logits, selected).float()

    return operator


def wrong_value() -> Operator:
    """A part in a thousand off."""

    def operator(logits: Tensor, selected: Tensor) -> Tensor:
        return score(logits, selected).float() * 1.001

    return operator


def low_precision() -> Operator:
    """Works in bfloat16 and returns float32."""

    def operator(logits: Tensor, selected: Tensor) -> Tensor:
        check(logits, selected)
        return logits.bfloat16().log_softmax(-1).gather(-1, selected[:, None])[:, 0].float()

    return operator


def low_precision_result() -> Operator:
    """Returns bfloat16."""

    def operator(logits: Tensor, selected: Tensor) -> Tensor:
        return score(logits, selected).bfloat16()

    return operator


def column_result() -> Operator:
    """Returns [N, 1]."""

    def operator(logits: Tensor, selected: Tensor) -> Tensor:
        return score(logits, selected).float()[:, None]

    return operator


def drops_the_tail() -> Operator:
    """Sums whole tiles of 32 columns and forgets the rest."""

    def operator(logits: Tensor, selected: Tensor) -> Tensor:
        check(logits, selected)
        whole = max(1, logits.shape[1] // 32) * 32
        lse = logits[:, :whole].double().logsumexp(-1)
        return (logits.double().gather(-1, selected[:, None])[:, 0] - lse).float()

    return operator


def needs_rows() -> Operator:
    """Fails without rows."""

    def operator(logits: Tensor, selected: Tensor) -> Tensor:
        float(logits.max())
        return score(logits, selected).float()

    return operator


def overflows() -> Operator:
    """Does not take the maximum out."""

    def operator(logits: Tensor, selected: Tensor) -> Tensor:
        check(logits, selected)
        wide = logits.float()
        return wide.gather(-1, selected[:, None])[:, 0] - wide.exp().sum(-1).log()

    return operator


def clamps_masked() -> Operator:
    """Turns -inf into a large negative number."""

    def operator(logits: Tensor, selected: Tensor) -> Tensor:
        clamped = logits.double()
        clamped[clamped == -math.inf] = -1e4
        return score(clamped, selected).float()

    return operator


def counts_ties_once() -> Operator:
    """Takes every maximum for the same one."""

    def operator(logits: Tensor, selected: Tensor) -> Tensor:
        check(logits, selected)
        wide = logits.double()
        top = wide.max(dim=-1, keepdim=True).values
        rest = torch.where(wide == top, 0.0, (wide - top).exp()).sum(-1)
        return ((wide - top).gather(-1, selected[:, None])[:, 0] - rest.log1p()).float()

    return operator


def hides_nan() -> Operator:
    """Replaces NaN by 0, a perfect probability."""

    def operator(logits: Tensor, selected: Tensor) -> Tensor:
        return score(logits, selected).float().nan_to_num(0.0)

    return operator


def clamps_ids() -> Operator:
    """Reads the last logit for an id that is too large."""

    def operator(logits: Tensor, selected: Tensor) -> Tensor:
        return score(logits, selected.clamp(0, logits.shape[1] - 1)).float()

    return operator


def writes_logits() -> Operator:
    """Subtracts the maximum in place."""

    def operator(logits: Tensor, selected: Tensor) -> Tensor:
        found = score(logits, selected).float()
        if len(logits):
            logits -= logits.max(dim=-1, keepdim=True).values
        return found

    return operator


def ignores_strides() -> Operator:
    """Reads memory in order, whatever the view."""

    def operator(logits: Tensor, selected: Tensor) -> Tensor:
        flat = torch.as_strided(logits, (logits.numel(),), (1,), logits.storage_offset())
        return score(flat.reshape(logits.shape), selected).float()

    return operator


def drifts_between_runs() -> Operator:
    """Adds the number of calls, as the last bit."""
    calls = [0]

    def operator(logits: Tensor, selected: Tensor) -> Tensor:
        calls[0] += 1
        found = score(logits, selected).float()
        for _ in range(calls[0] % 2):
            found = torch.nextafter(found, torch.full_like(found, -math.inf))
        return found

    return operator


def depends_on_rows() -> Operator:
    """Splits the sum differently for one row than for many, as a library may."""

    def operator(logits: Tensor, selected: Tensor) -> Tensor:
        check(logits, selected)
        wide = logits.float()
        top = wide.max(dim=-1, keepdim=True).values
        parts = (wide - top).exp().tensor_split(7 if len(wide) == 1 else 1, dim=-1)
        total = torch.stack([part.cumsum(-1)[:, -1] for part in parts if part.shape[1]]).sum(0)
        return (wide - top).gather(-1, selected[:, None])[:, 0] - total.log()

    return operator


def leaks_state() -> Operator:
    """Turns a global flag on, draws from the global generator, sets a variable of the environment."""

    def operator(logits: Tensor, selected: Tensor) -> Tensor:
        os.environ["XCFG_TESTKIT_LEAK"] = "1"
        return score(logits, selected).float()

    return operator


_SHARED = good()


def shared() -> Operator:
    """Returns the same instance each time."""
    return _SHARED


def takes_anything(**options: object) -> Operator:
    """Ignores options that it does not know."""
    return good()


def narrow(*, rows: int = 1) -> Operator:
    """Refuses more than four rows, whatever the descriptor says."""
    if rows > 4:
        raise ValueError("at most 4")
    return good()


def no_callable() -> int:
    """Returns no operator."""
    return 5
