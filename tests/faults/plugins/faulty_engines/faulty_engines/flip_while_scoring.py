"""One weight bit flips while a score runs: at the first call of the operator."""

from __future__ import annotations

from functools import wraps
from typing import Any

from xcfg_torch.adapter import TorchAdapter

from faulty_engines import XCFG_PRELOAD as XCFG_PRELOAD
from faulty_engines.flips import flip_one_bit


class Adapter(TorchAdapter):
    """Its memory rots while it works."""

    def build(self, spec: Any, context: Any) -> Any:
        report = super().build(spec, context)
        operator = self.engine.operator.function

        @wraps(operator)
        def flipping(*arguments: Any) -> Any:
            self.engine.operator.function = operator
            flip_one_bit(self.engine.model)
            return operator(*arguments)

        self.engine.operator.function = flipping
        return report
