"""The stand-in for vLLM's FlashAttention; imported by vLLM through its registry, only where attention is injected."""

from __future__ import annotations

from vllm.v1.attention.backends.flash_attn import FlashAttentionBackend, FlashAttentionImpl

from xcfg_vllm.inject.attention import PlainPages


class InjectedFlashAttention(PlainPages, FlashAttentionImpl):  # type: ignore[misc]  # vllm is not typed here
    """Keys and values in plain pages, the operator in place of the kernel."""


class FlashBackend(FlashAttentionBackend):  # type: ignore[misc]  # vllm is not typed here
    """vLLM's backend with another implementation."""

    @staticmethod
    def get_impl_cls() -> type[InjectedFlashAttention]:
        """Return the implementation of every attention layer."""
        return InjectedFlashAttention
