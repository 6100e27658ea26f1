"""The stand-in for vLLM's CPU attention; imported by vLLM through its registry, only where attention is injected."""

from __future__ import annotations

from typing import Any

import torch
from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend, CPUAttentionBackendImpl

from xcfg_vllm.inject.attention import PlainPages


class InjectedCpuAttention(PlainPages, CPUAttentionBackendImpl):  # type: ignore[misc]  # vllm is not typed here
    """Keys and values in plain pages, the operator in place of the kernel."""

    def __init__(self, *items: Any, **named: Any) -> None:
        """As vLLM's own; ValueError for what the operator has no word for."""
        super().__init__(*items, **named)
        self.check()

    def do_kv_cache_update(self, layer: Any, key: Any, value: Any, kv_cache: torch.Tensor, slot_mapping: Any) -> None:
        """Write this step's keys and values. kv_cache: [blocks, heads, tokens of a block, 2 * head size]."""
        self.write(self.plain(kv_cache, kv_cache.shape[2]), key, value, slot_mapping)

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
        """Attend; without metadata (vLLM warms up) the output stays as it is."""
        if attn_metadata is not None:
            self.attend(query, self.plain(kv_cache, kv_cache.shape[2]), attn_metadata, output)
        return output


class CpuBackend(CPUAttentionBackend):  # type: ignore[misc]  # vllm is not typed here
    """vLLM's CPU backend with another implementation."""

    @staticmethod
    def get_impl_cls() -> type[InjectedCpuAttention]:
        """Return the implementation of every attention layer."""
        return InjectedCpuAttention
