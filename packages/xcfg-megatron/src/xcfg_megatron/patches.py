"""What Megatron-core needs changed to run where there is no GPU; applied in the worker process alone, and recorded."""

from __future__ import annotations

import torch

CURRENT_DEVICE = "torch.cuda.current_device returns the CPU device"


def apply_cpu_patches(device: str) -> list[str]:
    """Patch for a CPU; return what was changed. Call before megatron.core is imported."""
    if device.startswith("cuda") or torch.cuda.is_available():
        return []
    torch.cuda.current_device = lambda: torch.device("cpu")  # type: ignore[assignment, return-value]
    return [CURRENT_DEVICE]
