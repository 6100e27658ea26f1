"""`selected_logprob` in place of vLLM's own: V1's sampler (sampled and prompt tokens) and the V2 runner's functions.

V1 computes log probabilities of the whole vocabulary, then gathers. The semantic operator takes logits and ids, so
the first step hands the logits on as they are and the second calls the operator. Ranks of tokens are counted on the
logits, whose order is that of the log probabilities.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from xcfg.plugin.operators import BoundOperator


def install(operation: str, operator: BoundOperator) -> Callable[[], None]:
    """Replace both steps of V1's sampler and, where this vLLM has it, the V2 runner's function; return the undoing."""
    from vllm.v1.sample.sampler import Sampler

    places = [
        (Sampler, "compute_logprobs", staticmethod(keep_logits)),
        (Sampler, "gather_logprobs", staticmethod(_gather(operator))),
        *((module, "compute_token_logprobs", _token_logprobs(operator)) for module in _v2_modules()),
    ]
    before = [(owner, name, vars(owner)[name]) for owner, name, _ in places]
    _put(places)
    return lambda: _put(before)


def _put(places: list[tuple[Any, str, Any]]) -> None:
    for owner, name, function in places:
        setattr(owner, name, function)


def _v2_modules() -> list[Any]:
    """Return the modules of the V2 runner that hold its function: the one that defines it and those that import it."""
    try:
        from vllm.v1.worker.gpu.sample import logprob, prompt_logprob
    except ImportError:
        return []
    return [module for module in (logprob, prompt_logprob) if hasattr(module, "compute_token_logprobs")]


def keep_logits(logits: torch.Tensor) -> torch.Tensor:
    """Return a copy of logits [N, V] as they are: later steps of the sampler work on them in place."""
    return logits.clone()


def _gather(operator: BoundOperator) -> Any:
    from vllm.v1.outputs import LogprobsTensors

    def gather_selected(logits: torch.Tensor, num_logprobs: int, token_ids: torch.Tensor) -> Any:
        """Logits [N, V], token_ids int64 [N] -> LogprobsTensors of one column; more columns are refused."""
        import torch

        if num_logprobs != 0:
            raise ValueError(
                f"an injected selected_logprob answers for the selected token alone, not {num_logprobs} more"
            )
        values = operator(logits, token_ids).to(torch.float32)[:, None]
        chosen = logits.gather(-1, token_ids[:, None])
        ranks = (logits >= chosen).sum(-1)
        return LogprobsTensors(token_ids[:, None].to(torch.int32), values, ranks)

    gather_selected.__module__ = __name__
    gather_selected.__qualname__ = "gather_selected"
    return gather_selected


def _token_logprobs(operator: BoundOperator) -> Any:
    def token_logprobs(logits: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
        """Logits [N, V], token_ids int [N, k] -> float32 [N, k]; one call of the operator for each column."""
        import torch

        columns = token_ids.to(torch.int64).unbind(-1)
        return torch.stack([operator(logits, column.contiguous()).to(torch.float32) for column in columns], dim=-1)

    token_logprobs.__module__ = __name__
    token_logprobs.__qualname__ = "token_logprobs"
    return token_logprobs
