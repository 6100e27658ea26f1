"""The one place where Megatron-core and torch are changed to run where there is no GPU.

Applied in the worker process alone, never in the process that supervises; every patch is recorded in the provenance
and in the mechanism of every score.
"""

from __future__ import annotations

from typing import Any

import torch

CURRENT_DEVICE = "torch.cuda.current_device returns the CPU device"
ROTARY_SLICE = "rotary_pos_embedding.get_pos_emb_on_this_cp_rank selects the zigzag on the CPU, without pinned memory"

ROTARY_ROWS: dict[int, torch.Tensor] = {}


def apply_cpu_patches(device: str) -> list[str]:
    """Patch for a CPU; return what was changed. Call before megatron.core is imported."""
    if device.startswith("cuda") or torch.cuda.is_available():
        return []
    torch.cuda.current_device = lambda: torch.device("cpu")  # type: ignore[assignment, return-value]
    return [CURRENT_DEVICE]


def patch_rotary_slice(device: str) -> list[str]:
    """Replace Megatron's selection of this rank's rotary rows, which pins memory and calls .cuda().

    Return what was changed. The rows are those of parallel.zigzag, as in Megatron; ROTARY_ROWS keeps, by length, which
    were selected.
    """
    if device.startswith("cuda"):
        return []
    from megatron.core.models.common.embeddings import rotary_pos_embedding

    from xcfg_megatron.parallel import zigzag

    def on_this_rank(pos_emb: torch.Tensor, seq_dim: int, cp_group: Any) -> torch.Tensor:
        rows = zigzag(pos_emb.shape[seq_dim], cp_group.rank(), cp_group.size())
        ROTARY_ROWS[pos_emb.shape[seq_dim]] = rows
        return pos_emb.index_select(seq_dim, rows)

    rotary_pos_embedding.get_pos_emb_on_this_cp_rank = on_this_rank
    return [ROTARY_SLICE]
