"""Which attention really ran: a watch over the functions that attention modules call, by layer.

What the configuration says is no evidence: a registered replacement or a silent fallback keeps the name. The
watch sees `scaled_dot_product_attention`, a softmax over scores (the eager path) or a flash-attention call
while an attention module runs, whoever calls it.

Looking at every torch call costs a decode step of a small model 5 to 7 %. So every call of an attention module
is counted by layer and kind of input, and watched in samples, in every score anew.
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


class Sampler:
    """Counts calls by kind, and says which to look at: of every kind the first, fourth, sixteenth, 64th ...

    So every kind that occurs is looked at, and what changes as a context grows is seen before it is four times as long.
    """

    def __init__(self) -> None:
        """Start with nothing counted."""
        self.counts: dict[tuple[Any, ...], int] = {}

    def clear(self) -> None:
        """Forget all counts, so that the next call of every kind is looked at again."""
        self.counts.clear()

    def take(self, kind: tuple[Any, ...]) -> bool:
        """Count a call of `kind`; return whether it is to be looked at."""
        self.counts[kind] = count = self.counts.get(kind, 0) + 1
        # A power of four has one bit set, at an even place.
        return count & (count - 1) == 0 and count.bit_length() % 2 == 1


class AttentionWatch(TorchFunctionMode):
    """Counts attention modules by layer, and the kernels of those calls that it watches.

    kernels: the kernel that SDPA's own dispatcher names for what it was called with -> watched calls.
    """

    def __init__(self) -> None:
        """Start with empty counts and no layer running."""
        super().__init__()
        self._chosen: dict[tuple[Any, ...], str] = {}
        self._running: list[int] = []
        self._sampler = Sampler()
        self.kernel_calls: dict[int, Counter[str]] = {}
        self.kernels: Counter[str] = Counter()

    def clear(self) -> None:
        """Forget all counts, so that the next call of every layer is watched again."""
        self._sampler.clear()
        self.kernel_calls.clear()
        self.kernels.clear()

    def enter_layer(self, index: int, mask: Any, dtype: Any, single: bool) -> bool:
        """Count a call of the attention module of layer `index`; return whether it is watched, until leave_layer.

        single: one query per row. Kernels are chosen by dtype, mask and one query against many; what else changes
        from call to call is the length.
        """
        # Once per layer and step, so the form of the mask is kept raw and spelled only when somebody asks.
        kind = (index, None if mask is None else (mask.dtype, mask.ndim), dtype, single)
        if not self._sampler.take(kind):
            return False
        self._running.append(index)
        self.kernel_calls.setdefault(index, Counter())["watched"] += 1
        self.__enter__()  # type: ignore[no-untyped-call]
        return True

    def leave_layer(self) -> None:
        """Say that the watched module that started last ended."""
        self._running.pop()
        self.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    @property
    def calls(self) -> dict[int, Counter[str]]:
        """Layer -> kind (`modules`, `watched`, `sdpa`, `eager`, `flash`) -> calls."""
        found: dict[int, Counter[str]] = {}
        for (index, *_), count in self._sampler.counts.items():
            found.setdefault(index, Counter())["modules"] += count
        for index, counts in self.kernel_calls.items():
            found[index].update(counts)
        return found

    @property
    def masks(self) -> Counter[str]:
        """What the modules were given (`none` or `4d`) -> calls."""
        found: Counter[str] = Counter()
        for (_, form, *_), count in self._sampler.counts.items():
            found["none" if form is None else f"{form[1]}d"] += count
        return found

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
            self.kernel_calls[self._running[-1]][kind] += 1
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
    calls = watch.calls
    silent = layers - len(calls)
    for counts in calls.values():
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
