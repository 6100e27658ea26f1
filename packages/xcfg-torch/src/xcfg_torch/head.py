"""`linear_selected_logprob` in the place of the model's head and of `selected_logprob`: no logit is formed.

The forward of the live head is replaced by one that hands on what entered it. So what leaves the model in the place of
the logits are the final hidden states [.., K], picked by the same code as logits are, and the operator is handed them
with the head's own weights [V, K]. That is the whole of what the model does only where it does nothing to logits behind
the head: a bias, a soft cap or a scale is refused when the engine is built, and every forward checks that the hidden
states leave the model untouched.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from xcfg.errors import WorkerError
from xcfg.plugin.operators import BoundOperator, backend_meant, instantiate
from xcfg.plugin.readback import HEAD, SELECTED, Reading, execution, state
from xcfg.schema._base import Value
from xcfg.schema.names import Exercised
from xcfg.schema.worker import ScoreRequest, WorkerSpec

from xcfg_torch.capabilities import OWN_HEAD, PRODUCTION
from xcfg_torch.layout import UnsupportedRequestError
from xcfg_torch.transforms import own_transforms


class OwnHead:
    """Stands for the model's own head, followed by `selected_logprob`; nothing is injected, so nothing is called."""

    def __call__(self, *items: Any, **named: Any) -> Any:
        """Raise: this backend exists only inside the model."""
        raise NotImplementedError(f"{OWN_HEAD} is the model's own head; it exists only inside the engine")


def own_head() -> OwnHead:
    """Return the marker of the model's own head."""
    return OwnHead()


class StandIn:
    """In the place of the head's forward. calls: since they were last set to 0; entered: the last hidden states."""

    def __init__(self) -> None:
        """Start without a call."""
        self.calls = 0
        self.entered: torch.Tensor | None = None

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """Hand on hidden states [.., K] as they are."""
        self.calls += 1
        self.entered = hidden
        return hidden


@dataclass
class Head:
    """The live head of the model, and what was bound as `linear_selected_logprob`.

    stand_in: None where the model's own head runs.
    """

    operator: BoundOperator
    module: Any
    stand_in: StandIn | None

    @property
    def weight(self) -> torch.Tensor:
        """The head's live weights [V, K]."""
        return self.module.weight  # type: ignore[no-any-return]

    def stands(self) -> bool:
        """Whether the stand-in is the head's forward now."""
        return self.stand_in is not None and self.module.__dict__.get("forward") is self.stand_in

    def clear(self) -> None:
        """Forget all calls, and what the operator states of them."""
        self.operator.clear()
        if self.stand_in is not None:
            self.stand_in.calls = 0

    def check(self, left: torch.Tensor) -> None:
        """Raise WorkerError unless `left`, what left the model in the place of logits, is what entered the head."""
        if self.stand_in is None:
            return
        entered, self.stand_in.entered = self.stand_in.entered, None
        if entered is None:
            raise WorkerError(
                "a forward ended and the head of the model was not reached",
                hint=f"{HEAD} cannot be injected into this model; leave it at native.",
            )
        if left is not entered:
            raise WorkerError(
                f"the model does something to its logits behind the head: {tuple(entered.shape)} {entered.dtype} "
                f"entered the head and {tuple(left.shape)} {left.dtype} left the model",
                hint=f"An operator {HEAD} would leave that out; leave it at native.",
            )

    def remove(self) -> None:
        """Give the model its own head back."""
        if self.stands():
            del self.module.__dict__["forward"]


def refuse_beside(spec: WorkerSpec, *, sharded: bool) -> None:
    """Raise UnsupportedRequestError where the bindings of `spec` cannot serve together; before anything is loaded."""
    if not injects(spec):
        return
    wanted, beside = spec.operators[HEAD].backend_id, spec.operators[SELECTED].backend_id
    if beside != PRODUCTION:
        raise UnsupportedRequestError(
            f"{wanted} of {HEAD} and {beside} of {SELECTED} are both asked for on the {spec.side} side",
            hint=f"The first forms no logits for the second; leave one of them at native, which is {PRODUCTION}.",
        )
    if sharded:
        raise UnsupportedRequestError(
            f"{HEAD} is injected into an unsharded model alone, and training.sharding is 'fsdp'",
            hint="The head's weights are whole only inside a forward there. Use training.sharding='unsharded'.",
        )


def injects(spec: WorkerSpec) -> bool:
    """Whether `spec` asks for another `linear_selected_logprob` than the model's own head."""
    return HEAD in spec.operators and spec.operators[HEAD].backend_id != OWN_HEAD


def bound_head(spec: WorkerSpec, model: Any) -> Head | None:
    """Return the head with its operator, injected where one is asked for; None where none is bound.

    Raises UnsupportedRequestError for a head that is not a plain product, or whose logits the model transforms.
    """
    if HEAD not in spec.operators:
        return None
    module = model.get_output_embeddings()
    operator = instantiate(spec.operators[HEAD])
    if not injects(spec):
        return Head(operator, module, None)
    if type(module) is not torch.nn.Linear or "forward" in module.__dict__:
        raise UnsupportedRequestError(
            f"the head of {type(model).__name__} is {type(module).__name__}, not a plain torch.nn.Linear",
            hint=f"{HEAD} is hidden times weights transposed; leave it at native.",
        )
    behind = ("bias",) if getattr(module, "bias", None) is not None else own_transforms(model)
    if behind:
        raise UnsupportedRequestError(
            f"{type(model).__name__} applies {', '.join(behind)} to its logits, which {HEAD} does not have",
            hint="Leave it at native, and vary selected_logprob instead.",
        )
    stand_in = StandIn()
    module.__dict__["forward"] = stand_in
    return Head(operator, module, stand_in)


def refuse_request(head: Head | None, request: ScoreRequest, chain: tuple[str, ...]) -> None:
    """Raise UnsupportedRequestError for a request that needs logits, where none are formed."""
    if head is None or head.stand_in is None:
        return
    backend = head.operator.binding.backend_id
    if chain:
        raise UnsupportedRequestError(
            f"the values are those of logits after {', '.join(chain)}, and {backend} forms none",
            hint=f"Score a rollout that recorded raw log probabilities, or leave {HEAD} at native.",
        )
    offered = getattr(head.operator.function, "offers", ())
    lacking = [name for name in request.columns if name not in offered]
    if lacking:
        raise UnsupportedRequestError(
            f"the columns {', '.join(lacking)} are read from logits, and {backend} hands out none",
            hint=f"It offers: {', '.join(offered) or 'none'}. Leave out the others, or leave {HEAD} at native.",
        )


def head_reading(head: Head, formed: int, requested: Value) -> Reading:
    """Read what ran as `linear_selected_logprob`. formed: calls of the model's own head that were seen."""
    binding = head.operator.binding
    meant = backend_meant(binding, requested)
    if head.stand_in is None:
        seen = execution("calls of the model's own head", formed)
        return Reading(meant, OWN_HEAD if formed else None, (seen,), reason="" if formed else "the head was not called")
    calls = head.operator.calls
    place = "hands on hidden states" if head.stands() else "another one again"
    evidence = [
        execution("calls of the head that formed no logits", head.stand_in.calls),
        state("forward of the live head", place),
    ]
    if calls:
        evidence.insert(0, execution("calls of the injected operator", calls))
    ran = head.stands() and head.stand_in.calls > 0
    exercised = Exercised.YES if calls else Exercised.UNKNOWN
    reason = "" if ran else "the head's forward is another one again, or was not called"
    return Reading(meant, binding.backend_id if ran else None, tuple(evidence), exercised=exercised, reason=reason)
