"""`attention` in place of vLLM's paged attention, by overriding the platform's own backend.

The implementation keeps vLLM's block tables, slots and cache memory and lays keys and values out in it in a plain way
of its own, [block, token, 2, head, head size], since kernels pack them to suit themselves. Every request of a step is
handed to the operator by itself with all the keys and values that it may see.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from xcfg.plugin.operators import BoundOperator

PLATFORMS = {"cpu": ("CPU_ATTN", "CpuBackend"), "cuda": ("FLASH_ATTN", "FlashBackend")}
"""Device type -> vLLM's name of the backend that is overridden, and the class here that stands in for it."""
OPERATOR: list[BoundOperator] = []


def install(operation: str, operator: BoundOperator) -> Callable[[], None]:
    """Override the backend that vLLM picks by default on this platform; return the undoing."""
    from vllm.platforms import current_platform
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    kind = str(current_platform.device_type)
    if kind not in PLATFORMS:
        raise ValueError(f"attention can be injected on {', '.join(PLATFORMS)}, not on {kind}")
    name, stand_in = PLATFORMS[kind]
    OPERATOR[:] = [operator]
    backend = getattr(AttentionBackendEnum, name)
    register_backend(backend, f"{__name__}_{kind}.{stand_in}")
    undo: Callable[[], None] = backend.clear_override
    return undo


class PlainPages:
    """Mixed into an implementation in front of vLLM's: writes and reads the cache, calls the operator."""

    num_kv_heads: int
    head_size: int
    scale: float

    def __init__(self, *items: Any, **named: Any) -> None:
        """As vLLM's own; ValueError for what the operator has no word for."""
        super().__init__(*items, **named)
        self.check()

    def check(self) -> None:
        """Refuse what the operator's contract has no word for; ValueError."""
        odd = {
            "a sliding window": getattr(self, "sliding_window", None) not in (None, -1, (-1, -1)),
            "ALiBi slopes": getattr(self, "alibi_slopes", None) is not None,
            "a soft cap": bool(getattr(self, "logits_soft_cap", 0)),
            "attention sinks": getattr(self, "sinks", None) is not None,
            "a quantised cache": str(getattr(self, "kv_cache_dtype", "auto")).startswith(("fp8", "int8", "nvfp4")),
        }
        found = [name for name, present in odd.items() if present]
        if found:
            raise ValueError(f"an injected attention has no {', '.join(found)}")

    def block_size(self, cache: torch.Tensor) -> int:
        """Return the tokens of a block; ValueError for a cache of neither shape.

        cache: [blocks, 2, tokens of a block, heads, head size], as FlashAttention has it in vLLM 0.25, or
        [blocks, heads, tokens of a block, 2 * head size], as it has it in 0.32, and the CPU.
        """
        shape = tuple(cache.shape)
        paired = len(shape) == 5 and shape[1] == 2
        joined = len(shape) == 4 and (shape[1], shape[3]) == (self.num_kv_heads, 2 * self.head_size)
        if not paired and not joined:
            raise ValueError(f"a cache of shape {shape} is not laid out as this version of xcfg-vllm knows it")
        return int(shape[2])

    def do_kv_cache_update(self, layer: Any, key: Any, value: Any, kv_cache: torch.Tensor, slot_mapping: Any) -> None:
        """Write this step's keys and values."""
        self.write(self.plain(kv_cache), key, value, slot_mapping)

    def forward(
        self,
        layer: Any,
        query: torch.Tensor,
        key: Any,
        value: Any,
        kv_cache: torch.Tensor,
        attn_metadata: Any,
        output: torch.Tensor,
        *items: Any,
        **named: Any,
    ) -> torch.Tensor:
        """Attend; without metadata (vLLM warms up) the output is zero."""
        if attn_metadata is None:
            return output.fill_(0)
        self.attend(query, self.plain(kv_cache), attn_metadata, output)
        return output

    def plain(self, cache: torch.Tensor) -> torch.Tensor:
        """Return the cache of one layer as a view [blocks, tokens of a block, 2, heads, head size].

        The view has the memory's own order, so a cache whose blocks do not lie one behind the other is a ValueError.
        """
        block_size = self.block_size(cache)
        width = self.num_kv_heads * block_size * 2 * self.head_size
        blocks = cache.numel() // width
        if blocks * width != cache.numel():
            raise ValueError(f"a cache of shape {tuple(cache.shape)} does not hold blocks of {block_size} tokens")
        shape = (blocks, block_size, 2, self.num_kv_heads, self.head_size)
        order = sorted(range(1, cache.dim()), key=lambda dim: (cache.shape[dim] > 1, cache.stride(dim)), reverse=True)
        memory = cache.permute(0, *order)
        if not memory.is_contiguous():
            raise ValueError(f"the blocks of a cache of strides {cache.stride()} do not lie one behind the other")
        return memory.view(shape)

    def write(self, pages: torch.Tensor, key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor) -> None:
        """Put key and value [T, heads, head size] into their slots; a slot below zero is padding."""
        slots = slots[: len(key)].long()
        real = slots >= 0
        block, token = slots[real] // pages.shape[1], slots[real] % pages.shape[1]
        pages[block, token, 0] = key[: len(slots)][real].to(pages.dtype)
        pages[block, token, 1] = value[: len(slots)][real].to(pages.dtype)

    def attend(self, query: torch.Tensor, pages: torch.Tensor, metadata: Any, output: torch.Tensor) -> None:
        """Fill output [T, heads, head size] or [T, heads * head size], request by request."""
        starts = metadata.query_start_loc.tolist()
        lengths = metadata.seq_lens.tolist()
        size = pages.shape[1]
        for row, (start, stop) in enumerate(pairwise(starts)):
            if stop == start:
                continue
            length = int(lengths[row])
            mine = pages[metadata.block_table[row, : -(-length // size)].long()].flatten(0, 1)[:length]
            found = OPERATOR[0](query[start:stop], mine[:, 0], mine[:, 1], self.scale, length - (stop - start))
            output[start:stop] = found.reshape(output[start:stop].shape).to(output.dtype)
