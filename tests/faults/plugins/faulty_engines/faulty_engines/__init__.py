"""Engines that break exactly one thing; every other line is the embedded runtime's own."""

from __future__ import annotations

XCFG_PRELOAD = ("torch", "transformers.modeling_utils", "transformers.models.auto.modeling_auto")
"""What a build imports: forked workers then need not import it again."""
