"""The stand-in for vLLM's FlashAttention; imported by vLLM through its registry, only where attention is injected."""

from __future__ import annotations

from typing import Any

import torch
from vllm.v1.attention.backends.flash_attn import FlashAttentionBackend, FlashAttentionImpl

from xcfg_vllm.inject.attention import PlainPages


class InjectedFlashAttention(PlainPages, FlashAttentionImpl):  # type: ignore[misc]  # vllm is not typed here
    """Keys and values in plain pages, the operator in place of the kernel."""

    def __init__(self, *items: Any, **named: Any) -> None:
        """As vLLM's own; ValueError for what the operator has no word for."""
        super().__init__(*items, **named)
        self.check()

    def do_kv_cache_update(self, layer: Any, key: Any, value: Any, kv_cache: torch.Tensor, slot_mapping: Any) -> None:
        """Write this step's keys and values. kv_cache: [blocks, 2, tokens of a block, heads, head size]."""
        self.write(self.plain(kv_cache, self.block_size(kv_cache)), key, value, slot_mapping)

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
        if attn_metadata is not None:
            self.attend(query, self.plain(kv_cache, self.block_size(kv_cache)), attn_metadata, output)
            return output
        return output.fill_(0)

    @staticmethod
    def block_size(cache: torch.Tensor) -> int:
        """Return the tokens of a block; ValueError for a layout that is not FlashAttention's."""
        if cache.dim() != 5 or cache.shape[1] != 2:
            raise ValueError(
                f"a cache of shape {tuple(cache.shape)} is not laid out as this version of xcfg-vllm knows it"
            )
        return int(cache.shape[2])


class FlashBackend(FlashAttentionBackend):  # type: ignore[misc]  # vllm is not typed here
    """vLLM's backend with another implementation."""

    @staticmethod
    def get_impl_cls() -> type[InjectedFlashAttention]:
        """Return the implementation of every attention layer."""
        return InjectedFlashAttention
