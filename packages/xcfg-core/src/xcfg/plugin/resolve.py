"""The public name of `resolve`, for stages and workers."""

from __future__ import annotations

from xcfg.plugin._resolve import resolve

__all__ = ["resolve"]
