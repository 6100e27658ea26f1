"""What really entered the model: hooks on the live modules, read forward by forward.

Ids are taken at the embedding, positions at the rotary module, the mask at the decoder: what a wrapper was
asked for and changed on the way would show there. All of that, and every call of an attention module, is taken at
every forward. The inputs of the matmuls (seven modules a block, 5 microseconds each) and the functions that
attention calls are looked at in samples, see Sampler: the first call of every kind in every score, then the
fourth, sixteenth, 64th ...
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from xcfg.errors import WorkerError

from xcfg_torch.attention import AttentionWatch, Sampler
from xcfg_torch.load import COARSE_FIRST, Anatomy, dtype_name
from xcfg_torch.precision import KeepFloat64


@dataclass
class Seen:
    """One forward, as it entered. input_ids [B, C]; position_ids [B or 1, C]; attention_mask [B, K].

    cached: tokens already in the KV cache. layer_mask: whether the attention layers were given a mask.
    """

    input_ids: torch.Tensor
    position_ids: torch.Tensor | None = None
    attention_mask: torch.Tensor | None = None
    cached: int = 0
    layer_mask: bool = False


class Observer:
    """Hooks on one model, its counters since `clear`, and the last forward.

    linear_inputs: dtype -> calls of matmuls in decoder blocks, in `sampled_forwards` of `forwards`.
    linear_weights: dtype of those matmuls' weights while they ran. head_rows: rows of the head's input -> calls.
    head_outputs, model_outputs: dtype of the logits as they left the head, and the model -> calls.
    """

    def __init__(self, parts: Anatomy) -> None:
        """Attach the hooks; they stay until `detach`."""
        self.parts = parts
        self.watch = AttentionWatch()
        self.keep = KeepFloat64()
        self.float64 = False
        self._single = False
        self._watched: list[Any] = []
        self._forwards = Sampler()
        self._linears = [
            module for block in parts.blocks for module in block.modules() if isinstance(module, torch.nn.Linear)
        ]
        self._temporary: list[Any] = []
        self.clear()
        self._last: Seen | None = None
        self._handles: list[Any] = []
        self._attach()

    def clear(self) -> None:
        """Forget all counters."""
        self.watch.clear()
        self._forwards.clear()
        self.forwards = 0
        self.single_token_forwards = 0
        self.sampled_forwards = 0
        self.linear_inputs: Counter[str] = Counter()
        self.linear_weights: Counter[str] = Counter()
        self.head_rows: Counter[int] = Counter()
        self.head_outputs: Counter[str] = Counter()
        self.model_outputs: Counter[str] = Counter()

    def detach(self) -> None:
        """Remove every hook."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def take(self) -> Seen:
        """Return what entered at the last forward, once; WorkerError when the embedding was not reached."""
        if self._last is None:
            raise WorkerError("a forward ended and its embedding was never called", hint="This model embeds elsewhere.")
        last, self._last = self._last, None
        return last

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Run forwards under no_grad, watched, and in float64 throughout when the model is float64."""
        with torch.no_grad(), self.keep if self.float64 else nullcontext():
            try:
                yield
            finally:
                self._after_forward()

    def compute_dtype(self) -> str:
        """Return the coarsest dtype that entered a matmul of a decoder block; empty when none was seen."""
        return next((name for name in COARSE_FIRST if self.linear_inputs[name]), "")

    def _attach(self) -> None:
        parts = self.parts
        add = self._handles.append
        add(parts.model.get_input_embeddings().register_forward_pre_hook(self._on_embedding))
        add(parts.decoder.register_forward_pre_hook(self._on_decoder, with_kwargs=True))
        for rotary in parts.rotary:
            add(rotary.register_forward_pre_hook(self._on_rotary, with_kwargs=True))
        for index, module in parts.attention:
            add(module.register_forward_pre_hook(self._attention_hook(index), with_kwargs=True))
        head = parts.model.get_output_embeddings()
        if head is not None:
            add(head.register_forward_hook(self._on_head))

    def _on_decoder(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        cache = kwargs.get("past_key_values")
        mask = kwargs.get("attention_mask")
        self._last = None
        self._entering = {
            "cached": int(cache.get_seq_length()) if cache is not None else 0,
            "attention_mask": mask.detach().clone() if isinstance(mask, torch.Tensor) else None,
            "position_ids": kwargs.get("position_ids"),
        }

    def _on_embedding(self, module: Any, args: tuple[Any, ...]) -> None:
        ids = args[0].detach().clone()
        self._last = Seen(input_ids=ids, **getattr(self, "_entering", {}))
        self._single = ids.shape[1] == 1
        if self._forwards.take((self._single, self._last.cached > 0, self._last.attention_mask is None)):
            self.sampled_forwards += 1
            self._temporary += [module.register_forward_pre_hook(self._on_linear) for module in self._linears]
        self.forwards += 1
        self.single_token_forwards += int(self._single and self._last.cached > 0)

    def _on_rotary(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        positions = kwargs.get("position_ids", args[1] if len(args) > 1 else None)
        if self._last is not None and isinstance(positions, torch.Tensor):
            self._last.position_ids = positions.detach().clone()

    def _attention_hook(self, index: int) -> Any:
        watch = self.watch

        def enter(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            mask = kwargs.get("attention_mask")
            hidden = args[0] if args else kwargs.get("hidden_states")
            if mask is not None and self._last is not None:
                self._last.layer_mask = True
            if watch.enter_layer(index, mask, getattr(hidden, "dtype", None), self._single):
                # Only a watched call needs to be told that it ended.
                self._watched.append(module.register_forward_hook(self._leave_watched))

        return enter

    def _leave_watched(self, module: Any, args: tuple[Any, ...], output: Any) -> None:
        self._watched.pop().remove()
        self.watch.leave_layer()

    def _after_forward(self) -> None:
        """Remove what was attached for this forward alone, also after an error inside it."""
        while self._watched:
            self._watched.pop().remove()
            self.watch.leave_layer()
        while self._temporary:
            self._temporary.pop().remove()

    def _on_linear(self, module: Any, args: tuple[Any, ...]) -> None:
        self.linear_inputs[dtype_name(args[0].dtype)] += 1
        self.linear_weights[dtype_name(module.weight.dtype)] += 1

    def _on_head(self, module: Any, args: tuple[Any, ...], output: Any) -> None:
        self.head_outputs[dtype_name(output.dtype)] += 1
        self.head_rows[args[0].numel() // args[0].shape[-1]] += 1
