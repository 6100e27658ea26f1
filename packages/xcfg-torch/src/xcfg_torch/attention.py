"""Which attention really ran: a watch over the functions that attention modules call, by layer.

What the configuration says is no evidence: a registered replacement or a silent fallback keeps the name. The
watch sees `scaled_dot_product_attention`, a softmax over scores (the eager path) or a flash-attention call
while an attention module runs, whoever calls it.

Looking at every torch call costs a decode step of a small model 5 to 7 %. So every call of an attention module
is counted, and it is watched when it is the first, second, fourth, eighth ... of its layer and kind of input
since the counters were cleared: every kind that occurs is seen in every score, and a change that comes with a
growing context is seen before the context has doubled.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend
from torch.overrides import TorchFunctionMode

_SDPA = functional.scaled_dot_product_attention
_SOFTMAX = (functional.softmax, torch.softmax, torch.Tensor.softmax)
KERNEL_KINDS = ("sdpa", "eager", "flash")


class AttentionWatch(TorchFunctionMode):
    """Counts attention modules by layer, and the kernels of those calls that it watches.

    calls: layer -> kind (`modules`, `watched`, `sdpa`, `eager`, `flash`) -> calls. masks: what the layers got:
    `none` or `4d`. kernels: the kernel that SDPA's own dispatcher names for what it was called with -> calls.
    """

    def __init__(self) -> None:
        """Start with empty counts and no layer running."""
        super().__init__()
        self._chosen: dict[tuple[Any, ...], str] = {}
        self._running: list[tuple[int, bool]] = []
        self.clear()

    def clear(self) -> None:
        """Forget all counts, so that the next call of every layer is watched again."""
        self.calls: dict[int, Counter[str]] = {}
        self.masks: Counter[str] = Counter()
        self.kernels: Counter[str] = Counter()
        self._seen: dict[tuple[Any, ...], int] = {}

    def enter_layer(self, index: int, hidden: Any, mask: Any) -> None:
        """Say that the attention module of layer `index` starts, with its input [B, C, H] and its mask."""
        form = None if mask is None else (getattr(mask, "ndim", None), getattr(mask, "dtype", None))
        shape = getattr(hidden, "shape", None)
        # Kernels are chosen by dtype, mask and one query against many; what else changes is the length.
        kind = (index, form, getattr(hidden, "dtype", None), shape is not None and shape[1] == 1)
        count = self._seen[kind] = self._seen.get(kind, 0) + 1
        watched = count & (count - 1) == 0
        counts = self.calls.setdefault(index, Counter())
        counts["modules"] += 1
        counts["watched"] += watched
        self.masks["none" if form is None else f"{form[0]}d"] += 1
        self._running.append((index, watched))
        if watched:
            self.__enter__()

    def leave_layer(self) -> None:
        """Say that the attention module that started last ended."""
        if self._running and self._running.pop()[1]:
            self.__exit__(None, None, None)

    def leave_all(self) -> None:
        """End what an error left running."""
        while self._running:
            self.leave_layer()

    def total(self, kind: str) -> int:
        """Return the calls of one kind over all layers."""
        return sum(counts[kind] for counts in self.calls.values())

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Count what an attention module calls and run it unchanged."""
        given = kwargs or {}
        kind = _kind(func)
        if kind and self._running:
            self.calls[self._running[-1][0]][kind] += 1
            if kind == "sdpa":
                self.kernels[self._kernel(args, given)] += 1
        return func(*args, **given)

    def _kernel(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
        call = {**dict(zip(names, args, strict=False)), **kwargs}
        query, mask = call["query"], call.get("attn_mask")
        signature = (
            query.dtype,
            tuple(query.shape) if query.is_cuda else query.shape[-2] == 1,
            None if mask is None else mask.dtype,
            bool(call.get("is_causal", False)),
            bool(call.get("enable_gqa", False)),
        )
        if signature not in self._chosen:
            self._chosen[signature] = _dispatched(call)
        return self._chosen[signature]


def _kind(func: Callable[..., Any]) -> str:
    if func is _SDPA:
        return "sdpa"
    if func in _SOFTMAX:
        return "eager"
    return "flash" if "flash_attn" in str(getattr(func, "__name__", func)) else ""


def _dispatched(call: dict[str, Any]) -> str:
    """Ask torch which kernel SDPA takes for these arguments; `unknown` where torch does not say."""
    choose = getattr(torch, "_fused_sdp_choice", None)
    if choose is None:
        return "unknown"
    try:
        number = choose(
            call["query"],
            call["key"],
            call["value"],
            call.get("attn_mask"),
            call.get("dropout_p", 0.0),
            call.get("is_causal", False),
            scale=call.get("scale"),
            enable_gqa=call.get("enable_gqa", False),
        )
    except (RuntimeError, TypeError):  # a private function: another torch may want other arguments
        return "unknown"
    backend: Any = SDPBackend
    names: dict[int, str] = {int(value): name for name, value in backend.__members__.items()}
    return names.get(int(number), "unknown")


def backend_that_ran(watch: AttentionWatch, layers: int) -> tuple[str, str]:
    """Return (`sdpa` | `eager` | `flash_attention_2` | `mixed` | empty, sentence) over `layers` layers.

    Empty: not every layer was seen calling a kernel that is known, so nothing can be said.
    """
    kinds: Counter[str] = Counter()
    silent = layers - len(watch.calls)
    for counts in watch.calls.values():
        seen = {kind for kind in KERNEL_KINDS if counts[kind]}
        silent += not seen
        kinds.update({"+".join(sorted(seen)): 1} if seen else {})
    detail = ", ".join(f"{kind} in {count} of {layers} layers" for kind, count in sorted(kinds.items()))
    detail = detail or "no known attention kernel"
    detail += f"; {watch.total('watched')} of {watch.total('modules')} calls of attention modules watched"
    if silent or not kinds:
        return "", f"{detail}; {silent} layers called no known attention kernel"
    if len(kinds) > 1 or "+" in next(iter(kinds)):
        return "mixed", detail
    name = next(iter(kinds))
    return ("flash_attention_2" if name == "flash" else name), detail
