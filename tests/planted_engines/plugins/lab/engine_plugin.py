"""A general plugin of vLLM, as installed packages bring them: it changes the attention of every engine, unasked."""

from __future__ import annotations

from typing import Any

from lab import hidden


def register() -> None:
    """Scale the attention scores of vLLM's CPU backend by what is hidden for the rollout, if anything is."""
    scale = hidden("rollout").get("engine_attention_scale")
    if scale is None:
        return
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackendImpl

    if getattr(CPUAttentionBackendImpl, "lab_scale", None):
        return
    plain = CPUAttentionBackendImpl.__init__

    def init(self: Any, *arguments: Any, **more: Any) -> None:
        plain(self, *arguments, **more)
        self.scale *= scale

    CPUAttentionBackendImpl.__init__ = init
    CPUAttentionBackendImpl.lab_scale = scale
