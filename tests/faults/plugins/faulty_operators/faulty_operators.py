"""Two backends of selected_logprob: a good one whose source a test may edit, and one that returns NaN."""

from __future__ import annotations

from typing import Any

from xcfg.plugin import hookimpl
from xcfg.schema.operators import OperatorBackendDescriptor


def plain() -> Any:
    """Return log_softmax and gather."""
    import torch

    def operator(logits: torch.Tensor, selected: torch.Tensor) -> torch.Tensor:
        return torch.log_softmax(logits.float(), dim=-1).gather(-1, selected[:, None])[:, 0]

    return operator


def nan() -> Any:
    """Return the same with NaN in place of the last value of every call."""
    good = plain()

    def operator(logits: Any, selected: Any) -> Any:
        values = good(logits, selected)
        values[-1] = float("nan")
        return values

    return operator


@hookimpl
def xcfg_operator_backends() -> tuple[OperatorBackendDescriptor, ...]:
    """Return both."""
    return tuple(
        OperatorBackendDescriptor(
            operation="selected_logprob",
            backend_id=f"faulty.{name}",
            summary=f"a test's backend: {name}",
            factory=f"faulty_operators:{name}",
            devices=("cpu",),
        )
        for name in ("plain", "nan")
    )
