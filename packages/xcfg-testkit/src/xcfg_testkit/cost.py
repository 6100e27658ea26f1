"""Time and peak memory of one call, measured the same way for a backend and for production."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

Operator = Callable[["torch.Tensor", "torch.Tensor"], "torch.Tensor"]


@dataclass(frozen=True)
class Cost:
    """What a call costs.

    seconds: the fastest of three calls. peak_bytes: the most memory that one call held at a time, beside its inputs;
    -1 where it could not be seen.
    """

    seconds: float
    peak_bytes: int


def production(logits: torch.Tensor, selected: torch.Tensor) -> torch.Tensor:
    """Torch's log_softmax in float32 and gather: what both engines do when nobody asks for anything else."""
    import torch

    return torch.log_softmax(logits.float(), dim=-1).gather(-1, selected.unsqueeze(-1)).squeeze(-1)


def measure(function: Operator, logits: torch.Tensor, selected: torch.Tensor) -> Cost:
    """Return the cost of one call, after one that is not counted."""
    import torch

    def synchronize() -> None:
        if logits.is_cuda:
            torch.cuda.synchronize()

    function(logits, selected)
    seconds = []
    for _ in range(3):
        synchronize()
        start = time.perf_counter()
        function(logits, selected)
        synchronize()
        seconds.append(time.perf_counter() - start)
    peak = _cuda_peak if logits.is_cuda else _cpu_peak
    return Cost(min(seconds), peak(function, logits, selected))


def _cuda_peak(function: Operator, logits: torch.Tensor, selected: torch.Tensor) -> int:
    import torch

    torch.cuda.reset_peak_memory_stats(logits.device)
    before = torch.cuda.memory_allocated(logits.device)
    function(logits, selected)
    return torch.cuda.max_memory_allocated(logits.device) - before


def _cpu_peak(function: Operator, logits: torch.Tensor, selected: torch.Tensor) -> int:
    """The running maximum over the allocations and releases that torch's profiler saw, in their order."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as recorded:
        function(logits, selected)
    if recorded.profiler is None or recorded.profiler.kineto_results is None:
        return -1
    events = [event for event in recorded.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak
