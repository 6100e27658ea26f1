"""What every analysis of a run reads: the cube, its rows, and what lies in a cell."""

from __future__ import annotations

from xcfg.schema.cube import CUBE, ArmCell, AxisCell, Cube, Row

__all__ = ["CUBE", "ArmCell", "AxisCell", "Cube", "Row"]
