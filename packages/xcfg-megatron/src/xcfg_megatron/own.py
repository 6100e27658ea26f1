"""The stand-in for operators that Megatron-core builds itself. Imports nothing of it."""

from __future__ import annotations

from typing import Any


class EnginesOwn:
    """Stands for what Megatron-core builds itself; there is nothing to call outside the model."""

    def __call__(self, *arguments: Any) -> Any:
        """Refuse: the engine's own operator runs inside its modules."""
        raise RuntimeError("this backend names what Megatron-core builds; it is called inside the model alone")
