"""The methods that vLLM adds to the worker of every rank; xcfg calls them by name through collective_rpc.

What they return crosses a process boundary as msgpack where the engine has workers of its own, so it is made of
plain lists, dicts, text and numbers.
"""

from __future__ import annotations

from typing import Any

from xcfg_vllm.inject import registry


class WorkerExtension:
    """Mixed into the engine's worker class (`worker_extension_cls`); its names must not be the worker's own."""

    rank: int
    model_runner: Any
    vllm_config: Any
    _xcfg_recorder: Any
    _xcfg_replay: Any
    _xcfg_random: Any
    _xcfg_held: list[Any]

    def xcfg_begin(self, processor: bool = False) -> bool:
        """Start, or start anew, to take down what enters the model and what is called.

        processor: at the first call, whether the engine forces tokens by itself through a logits processor.
        """
        if not hasattr(self, "_xcfg_recorder"):
            self._xcfg_watch(processor)
        self._xcfg_recorder.take()
        self._xcfg_random = random_state()
        registry.reset()
        return True

    def _xcfg_watch(self, processor: bool) -> None:
        from xcfg_vllm.facts import has_native_replay, runner_kind
        from xcfg_vllm.force import V1Replay, V2Replay
        from xcfg_vllm.recorder import V1Recorder, V2Recorder

        runner = self.model_runner
        if runner_kind(runner) == "v1":
            self._xcfg_recorder = V1Recorder(runner)
            self._xcfg_replay = None if processor else V1Replay(runner)
        else:
            self._xcfg_recorder = V2Recorder(runner)
            self._xcfg_replay = None if has_native_replay(runner) else V2Replay(runner.sampler)

    def xcfg_taken(self) -> dict[str, Any]:
        """Return what entered, how often each operator was called, and what it stated, since xcfg_begin.

        Generators are put back: a forced token was drawn before it was overwritten.
        """
        restore(self._xcfg_random)
        return {**self._xcfg_recorder.take(), "operators": registry.counts()}

    def xcfg_facts(self) -> dict[str, Any]:
        """Return what this rank is made of: types, dtypes, shapes, groups."""
        from xcfg_vllm.facts import read_facts

        return read_facts(self.rank, self.model_runner, self.vllm_config)

    def xcfg_weights(self, checkpoint: str) -> dict[str, Any]:
        """Return the digest of every logical tensor; collective over the tensor-parallel ranks."""
        from xcfg_vllm.weights import weight_digests

        return weight_digests(self.model_runner.model, checkpoint, self.vllm_config.model_config.dtype)

    def xcfg_spoil(self) -> int:
        """Negate every parameter of this rank that is not packed away, for a reload to mend; return how many."""
        from xcfg_vllm.weights import spoil

        return spoil(self.model_runner.model)

    def xcfg_hold(self) -> int:
        """Keep hold of the handler of every packed layer, so that no new one can take its address; return how many."""
        self._xcfg_held = self._handlers()
        return len(self._xcfg_held)

    def xcfg_repacked(self) -> bool:
        """Return whether every packed layer has another handler than when xcfg_hold was called."""
        held, self._xcfg_held = self._xcfg_held, []
        return not any(old is new for old, new in zip(held, self._handlers(), strict=True))

    def _handlers(self) -> list[Any]:
        return [module.cpu_linear for module in self.model_runner.model.modules() if hasattr(module, "cpu_linear")]

    def xcfg_fold(self, handlers: bool = True) -> str:
        """Return a digest of this rank's own weights; handlers: with the identity of every packed layer's handler."""
        from xcfg_vllm.weights import local_fold

        return local_fold(self.model_runner.model, handlers=handlers)


def random_state() -> list[Any]:
    """Return the state of the generators of this process: torch's on the CPU and on a GPU, and numpy's."""
    import numpy as np
    import torch

    cuda = torch.cuda.get_rng_state() if torch.cuda.is_available() else None
    return [torch.get_rng_state(), cuda, np.random.get_state()]


def restore(state: list[Any]) -> None:
    """Put the generators back."""
    import numpy as np
    import torch

    torch.set_rng_state(state[0])
    if state[1] is not None:
        torch.cuda.set_rng_state(state[1])
    np.random.set_state(state[2])
