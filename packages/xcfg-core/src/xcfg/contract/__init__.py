"""The numerical contract: one packaged data file that gives the source of every figure, and its loader."""

from __future__ import annotations

from xcfg.contract.loader import available, load_contract
from xcfg.schema.contract import Contract

__all__ = ["Contract", "available", "load_contract"]
