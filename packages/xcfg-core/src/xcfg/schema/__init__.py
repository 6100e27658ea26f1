"""The values that flow between the stages: frozen Structs without behaviour. Imports errors only.

`Input`, `Record` and `Value` are what plugins build their own Structs from.
"""

from __future__ import annotations

from xcfg.schema._base import Input, Record, Value

__all__ = ["Input", "Record", "Value"]
