"""Whether a backend left its inputs as they were: other columns of a score are computed from the same tensors.

Torch counts the writes to a tensor, and that count is compared. Tensors made in inference mode have no count: of those
one column in STRIDE is kept and compared. What a kernel of another library writes into a counted tensor is not seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xcfg.errors import WorkerError

STRIDE = 4093
"""A prime, so that columns of a tile are met at every place."""


class Untouched:
    """What inputs were before a call. Names no library: what is no tensor of torch is not looked at."""

    def __init__(self, inputs: Sequence[Any]) -> None:
        """Take the positional arguments of the call."""
        self.before = [(item, _mark(item)) for item in inputs]

    def check(self, backend: str) -> None:
        """Raise WorkerError where one of them was written to."""
        for place, (item, mark) in enumerate(self.before):
            if mark is not None and _changed(mark, _mark(item)):
                raise WorkerError(
                    f"{backend!r} wrote into its argument {place}, which other columns of the score are computed from",
                    hint="A backend leaves what it is handed as it was: work on a copy.",
                )


def _mark(item: Any) -> Any:
    """Return the count of writes, else a sample of the columns; None of what is no tensor."""
    if not hasattr(item, "is_inference"):
        return None
    return item[..., ::STRIDE].clone() if item.is_inference() else int(item._version)


def _changed(before: Any, after: Any) -> bool:
    if isinstance(before, int):
        return bool(before != after)
    both_nan = (before != before) & (after != after)
    return bool(((before != after) & ~both_nan).any())
