"""The engine's own layers as backends of the operators: nothing is injected, so there is nothing to call."""

from __future__ import annotations

from typing import Any


def engine_owned() -> EngineOwnedLayer:
    """Return the marker of a layer that vLLM brings itself."""
    return EngineOwnedLayer()


class EngineOwnedLayer:
    """Stands for what runs inside vLLM."""

    def __call__(self, *items: Any, **named: Any) -> Any:
        """Raise: the layer lives in the engine alone."""
        raise NotImplementedError("this backend is a layer of vLLM; it exists only inside the engine")
