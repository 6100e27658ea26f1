"""The stand-in for vLLM's FlashAttention; imported by vLLM through its registry, only where attention is injected."""

from __future__ import annotations

import torch
from vllm.v1.attention.backends.flash_attn import FlashAttentionBackend, FlashAttentionImpl

from xcfg_vllm.inject.attention import PlainPages


class InjectedFlashAttention(PlainPages, FlashAttentionImpl):  # type: ignore[misc]  # vllm is not typed here
    """Keys and values in plain pages, the operator in place of the kernel."""

    def block_size(self, cache: torch.Tensor) -> int:
        """Return the tokens of a block. cache: [blocks, 2, tokens of a block, heads, head size], or ValueError."""
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
