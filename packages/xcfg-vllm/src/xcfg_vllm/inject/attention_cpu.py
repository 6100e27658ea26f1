"""The stand-in for vLLM's CPU attention; imported by vLLM through its registry, only where attention is injected."""

from __future__ import annotations

from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend, CPUAttentionBackendImpl

from xcfg_vllm.inject.attention import PlainPages


class InjectedCpuAttention(PlainPages, CPUAttentionBackendImpl):  # type: ignore[misc]  # vllm is not typed here
    """Keys and values in plain pages, the operator in place of the kernel."""


class CpuBackend(CPUAttentionBackend):  # type: ignore[misc]  # vllm is not typed here
    """vLLM's CPU backend with another implementation."""

    @staticmethod
    def get_impl_cls() -> type[InjectedCpuAttention]:
        """Return the implementation of every attention layer."""
        return InjectedCpuAttention
