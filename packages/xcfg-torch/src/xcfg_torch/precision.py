"""float64 that stays float64: Hugging Face models cast norms, softmax and rotary angles to float32.

In bfloat16 those casts raise the precision; in float64 they would lower it to float32, and the reference
would be no better than what it judges. While the mode is active every such cast goes to float64 instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

_LOW = (torch.float32,)
_SOFTMAX = (functional.softmax, functional.log_softmax, torch.softmax, torch.log_softmax)


class KeepFloat64(TorchFunctionMode):
    """While active, `x.float()`, `x.to(torch.float32)` and `softmax(x, dtype=torch.float32)` yield float64.

    Constants that a model holds in float32 (rotary inverse frequencies) keep their float32 values and are
    widened: every engine computes with those. promoted: how many casts were redirected.
    """

    def __init__(self) -> None:
        """Start with no redirected cast."""
        super().__init__()
        self.promoted = 0

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Redirect casts to float32; everything else runs as it is."""
        kwargs = dict(kwargs or {})
        if func is torch.Tensor.float:
            self.promoted += 1
            return args[0].double()
        if func is torch.Tensor.to or func is torch.Tensor.type or func in _SOFTMAX:
            args, kwargs = self._promote(args, kwargs)
        return func(*args, **kwargs)

    def _promote(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        changed = tuple(torch.float64 if _is_low(item) else item for item in args)
        if _is_low(kwargs.get("dtype")):
            kwargs["dtype"] = torch.float64
            self.promoted += 1
        self.promoted += sum(_is_low(item) for item in args)
        return changed, kwargs


def _is_low(item: Any) -> bool:
    return isinstance(item, torch.dtype) and item in _LOW
