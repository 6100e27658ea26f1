"""Two sides' engine arguments against the tables of their runtimes: what is known of each, before a model is loaded."""

from __future__ import annotations

from xcfg.arguments.check import check_sides
from xcfg.arguments.settings import Setting, SideArguments, understand

__all__ = ["Setting", "SideArguments", "check_sides", "understand"]
