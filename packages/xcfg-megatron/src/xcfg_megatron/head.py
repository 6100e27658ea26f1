"""`linear_selected_logprob` in the place of the output layer and of `selected_logprob`, at one tensor rank.

The forward of the live output layer is replaced by one that hands on what entered it, so that what leaves the model in
the place of logits are the final hidden states. The operator is handed rows of these with the layer's own weights, or
those of the embedding where they are shared. It has the whole vocabulary, so that a split one is refused; and it forms
no logits that a temperature, a bias or a scale could act on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from xcfg.errors import WorkerError
from xcfg.plugin.operators import BoundOperator, backend_meant
from xcfg.plugin.readback import HEAD, SELECTED, Reading, execution, state
from xcfg.schema._base import Value
from xcfg.schema.names import Exercised

from xcfg_megatron.backends import NATIVE, OWN_HEAD
from xcfg_megatron.engine import Engine
from xcfg_megatron.errors import UnsupportedBuildError, UnsupportedRequestError
from xcfg_megatron.readers import Layout, ran

REACHED = "head"
"""The counter of forwards that reached the output layer, whatever stands there."""


class StandIn:
    """In the place of the output layer's forward. calls: since they were last set to 0; entered, weight: the last."""

    def __init__(self) -> None:
        """Start without a call."""
        self.calls = 0
        self.entered: torch.Tensor | None = None
        self.weight: torch.Tensor | None = None

    def __call__(self, hidden: torch.Tensor, weight: torch.Tensor | None = None, **_: Any) -> tuple[torch.Tensor, None]:
        """Hand on hidden states [s, b, K]; weight: of the embedding where it is shared."""
        self.calls += 1
        self.entered, self.weight = hidden, weight
        return hidden, None


@dataclass
class InjectedHead:
    """The live output layer, what stands in it, and the operator that is called behind the model."""

    operator: BoundOperator
    module: Any
    stand_in: StandIn

    @property
    def stands(self) -> bool:
        """Whether the stand-in is the output layer's forward now."""
        return self.module.__dict__.get("forward") is self.stand_in

    def check(self, left: torch.Tensor) -> None:
        """Raise WorkerError unless `left` [b, s, K], what left the model, is what entered the output layer."""
        entered, self.stand_in.entered = self.stand_in.entered, None
        if entered is None:
            raise WorkerError(
                "a forward ended and the output layer was not reached",
                hint=f"{HEAD} cannot be injected into this model; leave it at native.",
            )
        expected = entered.transpose(0, 1)
        if left.shape != expected.shape or left.dtype != expected.dtype or not torch.equal(left, expected):
            raise WorkerError(
                f"the model does something to its logits behind the output layer: {tuple(expected.shape)} "
                f"{expected.dtype} entered it and {tuple(left.shape)} {left.dtype} left the model",
                hint=f"An operator {HEAD} would leave that out; leave it at native.",
            )

    def logprobs(self, hidden: torch.Tensor, selected: torch.Tensor, entries: int) -> torch.Tensor:
        """Return log probabilities [N] of hidden [N, K] over the first `entries` rows of the head's weights."""
        weight = self.stand_in.weight if self.stand_in.weight is not None else self.module.weight
        found: torch.Tensor = self.operator(hidden, weight[:entries], selected)
        return found


def refuse_early(operators: Mapping[str, BoundOperator], tensor: int) -> None:
    """Raise UnsupportedBuildError where a head cannot be injected; before anything is loaded."""
    if not _injects(operators):
        return
    wanted, beside = operators[HEAD].binding.backend_id, operators[SELECTED].binding.backend_id
    if beside != NATIVE:
        raise UnsupportedBuildError(
            f"{wanted} of {HEAD} and {beside} of {SELECTED} are both asked for",
            hint=f"The first forms no logits for the second; leave one of them at native, which is {NATIVE}.",
        )
    if tensor > 1:
        raise UnsupportedBuildError(
            f"{wanted} of {HEAD} needs the whole vocabulary, and {tensor} tensor-parallel ranks share it",
            hint="Use training.tensor_parallel_size 1, or vary selected_logprob instead.",
        )


def _injects(operators: Mapping[str, BoundOperator]) -> bool:
    return HEAD in operators and operators[HEAD].binding.backend_id != OWN_HEAD


def place(engine: Engine) -> None:
    """Count what reaches the output layer, and inject the head's operator where one is asked for.

    Raises UnsupportedBuildError for an output layer that is not a plain product.
    """
    from megatron.core.tensor_parallel.layers import ColumnParallelLinear

    module = engine.model.output_layer
    module.register_forward_pre_hook(lambda *_: engine.calls.update((REACHED,)))
    if not _injects(engine.operators):
        return
    plain = type(module) is ColumnParallelLinear and "forward" not in module.__dict__
    if not plain or getattr(module, "bias", None) is not None:
        raise UnsupportedBuildError(
            f"the output layer is {type(module).__name__} with more than a product of hidden states and weights",
            hint=f"{HEAD} is that product; leave it at native.",
        )
    stand_in = StandIn()
    module.__dict__["forward"] = stand_in
    engine.head = InjectedHead(engine.operators[HEAD], module, stand_in)


def refuse_request(engine: Engine, chain: tuple[str, ...]) -> None:
    """Raise UnsupportedRequestError for a request that needs logits, where none are formed."""
    if engine.head is not None and chain:
        raise UnsupportedRequestError(
            f"{', '.join(chain)} acts on logits, and {engine.head.operator.binding.backend_id} forms none",
            hint=f"Leave {HEAD} at native, or score raw log probabilities.",
        )


def read_head(engine: Engine, layout: Layout, requested: Value) -> Reading:
    """Read what ran in the place of the output layer, or that layer itself."""
    operator, head = engine.operators.get(HEAD), engine.head
    if operator is None:
        return Reading(requested, None, (), reason=f"no backend of {HEAD} was bound")
    meant, reached = backend_meant(operator.binding, requested), engine.calls[REACHED]
    whole = reached == engine.forwards > 0
    seen = execution("forwards that reached the output layer; expected", f"{reached}; {engine.forwards}")
    if head is None:
        reason = "" if whole else "not every forward reached the output layer"
        return Reading(meant, OWN_HEAD if whole else None, (seen,), exercised=ran(engine), reason=reason)
    evidence = (
        execution("calls of the injected operator", operator.calls),
        execution("calls of the output layer that formed no logits", head.stand_in.calls),
        state("forward of the live output layer", "hands on hidden states" if head.stands else "another one again"),
        seen,
    )
    stood = head.stands and head.stand_in.calls == engine.forwards and whole
    called = operator.calls > 0 or layout.idle
    reason = "" if stood and called else "another forward is in the output layer, or the operator was not called"
    exercised = Exercised.YES if operator.calls else Exercised.NO if layout.idle else Exercised.UNKNOWN
    actual = operator.binding.backend_id if stood and called else None
    return Reading(meant, actual, evidence, exercised=exercised, reason=reason)
