"""The backend of `selected_logprob` that leaves vLLM's own in place; of its layers see inject/native.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def engine_owned() -> EngineOwned:
    """Return the marker of the engine's own log probability."""
    return EngineOwned()


class EngineOwned:
    """What vLLM's sampler computes, as a function; the adapter injects nothing where this backend is bound."""

    def __call__(self, logits: torch.Tensor, selected: torch.Tensor) -> torch.Tensor:
        """Logits [N, V], selected int64 [N] -> float32 [N], nats: log_softmax in float32, then gather."""
        import torch

        return logits.log_softmax(dim=-1, dtype=torch.float32).gather(-1, selected[:, None])[:, 0]
