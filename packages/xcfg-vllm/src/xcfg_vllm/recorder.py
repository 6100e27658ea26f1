"""What entered the model on one rank, forward by forward; lives in the worker process."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

Forward = tuple[list[str], list[int], list[int], list[int]]
"""(request ids, tokens of each, token ids of all, positions of all)."""


class Recorder:
    """Stands in for `_model_forward` of a V1 model runner, which every real forward goes through.

    The runner lays the scheduled tokens of its requests out one behind the other, in the order of its input batch;
    the arguments of the call are read, not the schedule.
    """

    def __init__(self, runner: Any) -> None:
        """Take the place of the runner's method."""
        self.runner = runner
        self.original = runner._model_forward
        self.forwards: list[Forward] = []
        self.head_rows: dict[int, int] = {}
        self.linear_inputs: dict[str, int] = {}
        runner._model_forward = self
        self._head = runner.model.compute_logits
        runner.model.compute_logits = self._compute_logits
        for module in runner.model.modules():
            # A compiled model runs no hooks: nothing is seen there, and nothing is claimed.
            if type(module).__name__.endswith("ParallelLinear"):
                module.register_forward_pre_hook(self._linear)

    def __call__(self, input_ids: Any = None, positions: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Take down the real tokens of this forward and run it."""
        runner = self.runner
        names = list(runner.input_batch.req_ids)
        starts = runner.query_start_loc.np[: len(names) + 1]
        counts = [int(stop - start) for start, stop in pairwise(starts)]
        total = int(starts[-1]) if len(names) else 0
        if input_ids is not None and positions is not None and total <= len(input_ids):
            self.forwards.append((names, counts, input_ids[:total].tolist(), positions[..., :total].tolist()))
        return self.original(input_ids, positions, *args, **kwargs)

    def _compute_logits(self, hidden: Any, *args: Any, **kwargs: Any) -> Any:
        rows = int(hidden.shape[0])
        self.head_rows[rows] = self.head_rows.get(rows, 0) + 1
        return self._head(hidden, *args, **kwargs)

    def _linear(self, module: Any, inputs: tuple[Any, ...]) -> None:
        name = str(inputs[0].dtype).removeprefix("torch.")
        self.linear_inputs[name] = self.linear_inputs.get(name, 0) + 1

    def take(self) -> dict[str, Any]:
        """Return what was taken down since the last call, and forget it."""
        found = {
            "forwards": self.forwards,
            "head_rows": {str(key): value for key, value in self.head_rows.items()},
            "linear_inputs": self.linear_inputs,
        }
        self.forwards, self.head_rows, self.linear_inputs = [], {}, {}
        return found
