"""What entered the model on one rank, forward by forward; lives in the worker process."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

DIGITS = 6
"""Decimals to which a temperature, which the engine holds in float32, is told."""
Forward = tuple[list[str], list[int], list[int], list[int]]
"""(request ids, tokens of each, token ids of all, positions of all); the requests lie one behind the other."""


class Recorder:
    """Takes down the forwards of a runner, the rows of its head and the dtypes that its layers were handed.

    linear_inputs: dtypes at every linear layer in the first forward of a window, after which the hooks come off, for
    they cost more than all else; head_inputs: dtypes of the hidden states that left every forward. A compiled model
    runs no hooks and shows head_inputs alone.
    """

    def __init__(self, runner: Any) -> None:
        """Watch the head and the linear layers of a live runner."""
        self.runner = runner
        self.forwards: list[Forward] = []
        self.head_rows: dict[int, int] = {}
        self.head_inputs: dict[str, int] = {}
        self.linear_inputs: dict[str, int] = {}
        self.temperatures: set[float] = set()
        self._head = runner.model.compute_logits
        runner.model.compute_logits = self._compute_logits
        self._linears = [item for item in runner.model.modules() if type(item).__name__.endswith("ParallelLinear")]
        self._hooks: list[Any] = []

    def _compute_logits(self, hidden: Any, *args: Any, **kwargs: Any) -> Any:
        rows = int(hidden.shape[0])
        self.head_rows[rows] = self.head_rows.get(rows, 0) + 1
        _count(self.head_inputs, hidden)
        self._unhook()
        return self._head(hidden, *args, **kwargs)

    def _unhook(self) -> None:
        while self._hooks:
            self._hooks.pop().remove()

    def _linear(self, module: Any, inputs: tuple[Any, ...]) -> None:
        _count(self.linear_inputs, inputs[0])

    def take(self) -> dict[str, Any]:
        """Return what was taken down since the last call, and forget it."""
        found = {
            "forwards": self.forwards,
            "head_rows": {str(key): value for key, value in self.head_rows.items()},
            "head_inputs": self.head_inputs,
            "linear_inputs": self.linear_inputs,
            "temperatures": sorted(self.temperatures),
        }
        self.temperatures = set()
        self._unhook()
        self._hooks = [item.register_forward_pre_hook(self._linear) for item in self._linears]
        self.forwards, self.head_rows, self.head_inputs, self.linear_inputs = [], {}, {}, {}
        return found


class V1Recorder(Recorder):
    """Stands in for `_model_forward`, which every real forward of a V1 runner goes through.

    The arguments of the call are read, not the schedule.
    """

    def __init__(self, runner: Any) -> None:
        """Take the place of the runner's method."""
        super().__init__(runner)
        self._forward = runner._model_forward
        runner._model_forward = self._record

    def _record(self, input_ids: Any = None, positions: Any = None, *args: Any, **kwargs: Any) -> Any:
        names = list(self.runner.input_batch.req_ids)
        starts = self.runner.query_start_loc.np[: len(names) + 1]
        counts = [int(stop - start) for start, stop in pairwise(starts)]
        total = int(starts[-1]) if names else 0
        if input_ids is not None and positions is not None and total <= len(input_ids):
            self.forwards.append((names, counts, input_ids[:total].tolist(), positions[..., :total].tolist()))
            held = self.runner.input_batch.temperature_cpu[: len(names)].tolist()
            self.temperatures.update(round(float(item), DIGITS) for item in held)
        return self._forward(input_ids, positions, *args, **kwargs)


class V2Recorder(Recorder):
    """Stands behind `prepare_inputs` of a V2 runner.

    The buffers that it returns are those that the model, or the CUDA graph that replays it, reads.
    """

    def __init__(self, runner: Any) -> None:
        """Take the place of the runner's method."""
        super().__init__(runner)
        self._prepare = runner.prepare_inputs
        runner.prepare_inputs = self._record

    def _record(self, *args: Any, **kwargs: Any) -> Any:
        batch = self._prepare(*args, **kwargs)
        counts = [int(count) for count in batch.num_scheduled_tokens[: len(batch.req_ids)]]
        total = sum(counts)
        self.forwards.append(
            (list(batch.req_ids), counts, batch.input_ids[:total].tolist(), batch.positions[:total].tolist())
        )
        held = self.runner.sampler.sampling_states.temperature.np[batch.idx_mapping_np]
        self.temperatures.update(round(float(item), DIGITS) for item in held)
        return batch


def _count(table: dict[str, int], tensor: Any) -> None:
    name = str(tensor.dtype).removeprefix("torch.")
    table[name] = table.get(name, 0) + 1
