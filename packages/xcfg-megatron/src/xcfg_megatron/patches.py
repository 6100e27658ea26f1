"""The one place where Megatron-core and torch are changed to run where there is no GPU.

Applied in the worker process alone, never in the process that supervises; every patch is recorded in the provenance
and in the mechanism of every score.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

CURRENT_DEVICE = "torch.cuda.current_device returns the CPU device"
ROTARY_SLICE = "rotary_pos_embedding.get_pos_emb_on_this_cp_rank selects the zigzag on the CPU, without pinned memory"

ROTARY_WATCH = "rotary_pos_embedding.get_pos_emb_on_this_cp_rank is wrapped to show the rows that it takes"

ROTARY_ROWS: dict[int, torch.Tensor] = {}
"""Length -> the rows that were taken, int64 on the CPU. Megatron keeps an embedding that it computed, for a length."""


def apply_cpu_patches(device: str) -> list[str]:
    """Patch for a CPU; return what was changed. Call before megatron.core is imported."""
    if device.startswith("cuda") or torch.cuda.is_available():
        return []
    torch.cuda.current_device = lambda: torch.device("cpu")  # type: ignore[assignment, return-value]
    return [CURRENT_DEVICE]


def patch_rotary_slice(device: str) -> list[str]:
    """Let ROTARY_ROWS see Megatron's selection of this rank's rotary rows; return what was changed.

    On a CPU it is replaced, since it pins memory and calls .cuda(); the rows are those of parallel.zigzag. On CUDA
    Megatron's own keeps its place.
    """
    from megatron.core.models.common.embeddings import rotary_pos_embedding

    from xcfg_megatron.parallel import zigzag

    ROTARY_ROWS.clear()
    if device.startswith("cuda"):
        plain = rotary_pos_embedding.get_pos_emb_on_this_cp_rank
        rotary_pos_embedding.get_pos_emb_on_this_cp_rank = seeing_rows(getattr(plain, "xcfg_plain", plain))
        return [ROTARY_WATCH]

    def on_this_rank(pos_emb: torch.Tensor, seq_dim: int, cp_group: Any) -> torch.Tensor:
        rows = zigzag(pos_emb.shape[seq_dim], cp_group.rank(), cp_group.size())
        ROTARY_ROWS[pos_emb.shape[seq_dim]] = rows
        return pos_emb.index_select(seq_dim, rows)

    rotary_pos_embedding.get_pos_emb_on_this_cp_rank = on_this_rank
    return [ROTARY_SLICE]


def seeing_rows(plain: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Return `plain`, which takes this rank's rows of a tensor, keeping in ROTARY_ROWS what it takes of row numbers."""

    def seeing(pos_emb: torch.Tensor, seq_dim: int, cp_group: Any) -> torch.Tensor:
        length = pos_emb.shape[seq_dim]
        shape = [length if dim == seq_dim else 1 for dim in range(pos_emb.dim())]
        numbers = torch.arange(length, device=pos_emb.device).view(shape)
        ROTARY_ROWS[length] = plain(numbers, seq_dim, cp_group).flatten().cpu()
        return plain(pos_emb, seq_dim, cp_group)

    seeing.xcfg_plain = plain  # type: ignore[attr-defined]
    return seeing
