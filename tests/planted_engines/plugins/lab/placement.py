"""Placements as of the runtimes that are changed, without the option that only this package knows."""

from __future__ import annotations

from typing import Any

from xcfg.schema.codec import evolve
from xcfg_megatron.placement import placement as place_megatron
from xcfg_torch.placement import placement as place_torch

OPTION = "model_overrides"


def _known(request: Any) -> Any:
    return evolve(request, options={name: value for name, value in request.options.items() if name != OPTION})


def torch(request: Any) -> Any:
    """Place the embedded runtime."""
    return place_torch(_known(request))


def megatron(request: Any) -> Any:
    """Place Megatron-core."""
    return place_megatron(_known(request))
