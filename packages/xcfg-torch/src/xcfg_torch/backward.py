"""A backward on the logits of a score: what an operator's gradient is, beside float64's.

A score trains nothing, so that an option of the backward would never run in it. Where such a knob is planned, a second
instance of the operator, built from the same binding, is handed some rows of every call again, with a gradient. The
instance that scores is not touched: its values, calls and statement are those of a score without the probe.

The rows are widened to float32 (float64 stays), so that what is compared is the gradient as the operator makes it,
before a cast to the dtype of the logits. Memory: ROWS_PER_CALL rows of the vocabulary in float64, a few times over.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from xcfg.errors import WorkerError
from xcfg.plugin.operators import BoundOperator, instantiate
from xcfg.plugin.stated import OPTIONS, Statements, shown_by, stated_of
from xcfg.schema._base import Value
from xcfg.schema.operators import OperatorBinding

BACKWARD = "backward"
ROWS_PER_CALL = 16
MOST_ROWS = 1024


class BackwardProbe:
    """The gradient of one binding of `selected_logprob` on rows of one score.

    stated: options that backwards have stated, of all looks; empty before one ran.
    """

    def __init__(self, binding: OperatorBinding) -> None:
        """Build a second instance of the operator. Raises PluginError."""
        self.operator = instantiate(binding)
        self.stated = Statements()
        self.rows = 0
        self.broken_rows = 0
        self._largest: float | None = None
        self._gap_squares = 0.0
        self._squares = 0.0

    def look(self, logits: torch.Tensor, selected: torch.Tensor) -> None:
        """Take the gradient of the first rows of logits [N, V] at the ids [N]; the upstream gradient of each row is 1.

        WorkerError where the operator's values have no gradient, or it raises.
        """
        count = min(len(logits), ROWS_PER_CALL, MOST_ROWS - self.rows)
        if count <= 0:
            return
        rows, ids = logits[:count].detach(), selected[:count]
        found = self._gradient(rows, ids)
        self.stated.take_options(_stated_of(self.operator, shown_by(self.operator.function)))
        exact = exact_gradient(rows, ids)
        gap = found.double() - exact
        usable = gap.isfinite().all(dim=-1)
        self.rows += count
        self.broken_rows += int((~usable).sum())
        if bool(usable.any()):
            self._largest = max(self._largest or 0.0, float(gap[usable].abs().max()))
            self._gap_squares += float(gap[usable].square().sum())
            self._squares += float(exact[usable].square().sum())

    def _gradient(self, rows: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            leaf = rows.to(torch.promote_types(rows.dtype, torch.float32), copy=True).requires_grad_()
            values = self.operator(leaf, ids)
            if not values.requires_grad:
                raise WorkerError(
                    f"{self.operator.binding.backend_id!r} has options of a backward and returned values without one",
                    hint="Its values must be differentiable with respect to the logits.",
                )
            (found,) = torch.autograd.grad(values, leaf, torch.ones_like(values))
        return found

    def report(self) -> dict[str, Any]:
        """Return what a score's mechanism says under `backward`; empty where no row was looked at."""
        if not self.rows:
            return {}
        return {
            "rows": self.rows,
            "broken_rows": self.broken_rows,
            "max_abs": self._largest,
            "rel_l2": math.sqrt(self._gap_squares / self._squares) if self._squares else None,
            "ran": self.stated.ran,
        }


def exact_gradient(logits: torch.Tensor, selected: torch.Tensor) -> torch.Tensor:
    """Return one-hot minus softmax, float64 [N, V]: the gradient of log p(selected) with respect to the logits."""
    gradient = -logits.double().softmax(dim=-1)
    return gradient.scatter_add(-1, selected[:, None], torch.ones_like(gradient[:, :1]))


def probe_of(operator: BoundOperator, knobs: Mapping[str, Value]) -> BackwardProbe | None:
    """Return a probe where a knob of `operator` is planned that only a backward shows."""
    planned = {path.removeprefix(OPTIONS) for path in knobs if path.startswith(OPTIONS)}
    wanted = [name for name, place in shown_by(operator.function).items() if place == BACKWARD and name in planned]
    return BackwardProbe(operator.binding) if wanted else None


def _stated_of(operator: BoundOperator, names: Mapping[str, str]) -> dict[str, Value]:
    said = stated_of(operator.function).get("options", {})
    return {name: said[name] for name, place in names.items() if place == BACKWARD and name in said}
