"""The methods that vLLM adds to the worker of every rank; xcfg calls them by name through collective_rpc.

What they return crosses a process boundary as msgpack where the engine has workers of its own, so it is made of
plain lists, dicts, text and numbers.
"""

from __future__ import annotations

from typing import Any

from xcfg_vllm import inject


class WorkerExtension:
    """Mixed into the engine's worker class (`worker_extension_cls`); its names must not be the worker's own."""

    rank: int
    model_runner: Any
    vllm_config: Any

    def xcfg_begin(self) -> bool:
        """Start, or start anew, to take down what enters the model."""
        from xcfg_vllm.recorder import Recorder

        runner = self.model_runner
        if not isinstance(getattr(runner, "_model_forward", None), Recorder):
            Recorder(runner)
        runner._model_forward.take()
        inject.reset()
        return True

    def xcfg_taken(self) -> dict[str, Any]:
        """Return what entered since xcfg_begin."""
        found: dict[str, Any] = self.model_runner._model_forward.take()
        return {**found, "operators": inject.counts()}

    def xcfg_facts(self) -> dict[str, Any]:
        """Return what this rank is made of: types, dtypes, shapes, groups."""
        from xcfg_vllm.facts import read_facts

        return read_facts(self.rank, self.model_runner, self.vllm_config)

    def xcfg_weights(self, checkpoint: str) -> dict[str, Any]:
        """Return the digest of every logical tensor; collective over the tensor-parallel ranks."""
        from xcfg_vllm.weights import weight_digests

        return weight_digests(self.model_runner.model, checkpoint, self.vllm_config.model_config.dtype)

    def xcfg_fold(self) -> str:
        """Return a digest of this rank's own weights, packed layers included."""
        from xcfg_vllm.weights import local_fold

        return local_fold(self.model_runner.model)
