"""Two sequences of equal length change places on their way into the model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from xcfg_torch.adapter import TorchAdapter

from faulty_engines import XCFG_PRELOAD as XCFG_PRELOAD

FIRST, SECOND = 1, 2


class Adapter(TorchAdapter):
    """Swaps two rows of the batch that holds sequences 1 and 2, on the training side."""

    def build(self, spec: Any, context: Any) -> Any:
        report = super().build(spec, context)
        if spec.side == "training":
            engine = self.engine
            forward = engine.forward

            def swapped(batch: Any, **more: Any) -> Any:
                rows = {cell.piece.sequence: cell.row for cell in batch.cells}
                if FIRST in rows and SECOND in rows:
                    ids = batch.input_ids.copy()
                    ids[[rows[FIRST], rows[SECOND]]] = ids[[rows[SECOND], rows[FIRST]]]
                    batch = replace(batch, input_ids=ids)
                return forward(batch, **more)

            engine.forward = swapped
        return report
