"""Stops in the middle of a score for as long as a flag file exists, and says which process it is.

FAULT_FLAG: the file. FAULT_SIDE, FAULT_RANK: which worker and which rank of it. The process id is written to
FAULT_FLAG.pid once the first batch has been scored.
"""

from __future__ import annotations

import os
import time
from functools import wraps
from pathlib import Path
from typing import Any

from xcfg_torch.adapter import TorchAdapter

from faulty_engines import XCFG_PRELOAD as XCFG_PRELOAD


class Adapter(TorchAdapter):
    """A good engine that can be held."""

    def build(self, spec: Any, context: Any) -> Any:
        report = super().build(spec, context)
        flag = Path(os.environ.get("FAULT_FLAG", "/nonexistent"))
        if (spec.side, context.rank) == (os.environ.get("FAULT_SIDE"), int(os.environ.get("FAULT_RANK", "0"))):
            operator = self.engine.operator.function

            @wraps(operator)
            def held(*arguments: Any) -> Any:
                values = operator(*arguments)
                if flag.exists():
                    told = flag.with_suffix(".tmp")
                    told.write_text(str(os.getpid()))
                    told.rename(flag.with_suffix(".pid"))
                while flag.exists():
                    time.sleep(0.02)
                return values

            self.engine.operator.function = held
        return report
