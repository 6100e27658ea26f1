"""A good `linear_selected_logprob`, and backends that each break one rule."""

from __future__ import annotations

import os
from collections.abc import Callable

import torch
from xcfg.schema.operators import OperatorBackendDescriptor

from xcfg_testkit.fakes import operators

Tensor = torch.Tensor
Operator = Callable[[Tensor, Tensor, Tensor], Tensor]


def descriptor(name: str, **fields: object) -> OperatorBackendDescriptor:
    """Return a descriptor of the fake `name` of this module; keywords replace fields."""
    own = {"operation": "linear_selected_logprob", "factory": f"{__name__}:{name}"}
    return operators.descriptor(name, **{**own, **fields})


def product(hidden: Tensor, weight: Tensor) -> Tensor:
    """Return float64 logits, each row multiplied by itself, so that a row never knows its batch."""
    rows = [(weight.double() * row.double()).sum(-1) for row in hidden]
    return torch.stack(rows) if rows else hidden.double() @ weight.double().t()


def score(logits: Tensor, selected: Tensor) -> Tensor:
    """Return the float64 scores that the fakes start from; refuse ids outside the vocabulary."""
    if bool(((selected < 0) | (selected >= logits.shape[1])).any()):
        raise IndexError("a selected id is outside the vocabulary")
    top = logits.max(dim=-1, keepdim=True).values
    total = (logits - top).exp().cumsum(-1)[:, -1].log()
    return (logits - top).gather(-1, selected[:, None])[:, 0] - total


def good() -> Operator:
    """Keeps every rule, and rounds logits as engines do."""
    return lambda hidden, weight, ids: score(product(hidden, weight).to(weight.dtype).double(), ids).float()


def exact() -> Operator:
    """Keeps every rule, and rounds no logit."""
    return lambda hidden, weight, ids: score(product(hidden, weight), ids).float()


def wrong_value() -> Operator:
    """A part in twenty off."""
    return lambda hidden, weight, ids: exact()(hidden, weight, ids) * 1.05


def drops_depth() -> Operator:
    """Leaves out the last product where K is odd: the tail of a block."""

    def operator(hidden: Tensor, weight: Tensor, ids: Tensor) -> Tensor:
        even = hidden.shape[1] // 2 * 2
        return exact()(hidden[:, :even], weight[:, :even], ids)

    return operator


def needs_rows() -> Operator:
    """Cannot score nothing."""

    def operator(hidden: Tensor, weight: Tensor, ids: Tensor) -> Tensor:
        hidden[0]
        return exact()(hidden, weight, ids)

    return operator


def overflows() -> Operator:
    """Takes no maximum out."""

    def operator(hidden: Tensor, weight: Tensor, ids: Tensor) -> Tensor:
        logits = product(hidden, weight).float()
        score(logits, ids)
        return logits.gather(-1, ids[:, None])[:, 0] - logits.exp().sum(-1).log()

    return operator


def hides_nan() -> Operator:
    """Turns NaN and infinities into numbers."""
    return lambda hidden, weight, ids: exact()(hidden.nan_to_num(0.0, 1.0, -1.0), weight, ids)


def clamps_ids() -> Operator:
    """Scores some other id in the place of one outside."""
    return lambda hidden, weight, ids: exact()(hidden, weight, ids.clamp(0, weight.shape[0] - 1))


def writes_hidden() -> Operator:
    """Scales hidden states in place."""

    def operator(hidden: Tensor, weight: Tensor, ids: Tensor) -> Tensor:
        found = exact()(hidden, weight, ids)
        hidden.mul_(0.5)
        return found

    return operator


def ignores_strides() -> Operator:
    """Reads memory as if it were contiguous."""

    def plain(tensor: Tensor) -> Tensor:
        return torch.as_strided(tensor, tensor.shape, (tensor.shape[1], 1))

    return lambda hidden, weight, ids: exact()(plain(hidden), plain(weight), ids)


def drifts_between_runs() -> Operator:
    """Adds noise that no bound sees."""

    def operator(hidden: Tensor, weight: Tensor, ids: Tensor) -> Tensor:
        noise = int.from_bytes(os.urandom(2), "big") / 2**16
        return exact()(hidden, weight, ids).double() - 1e-7 * noise

    return operator


def depends_on_rows() -> Operator:
    """Has another last bit where there are more rows."""
    return lambda hidden, weight, ids: exact()(hidden, weight, ids).double() - 1e-8 * len(hidden)
