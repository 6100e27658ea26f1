"""The built engine of one rank, and the one place that calls the model."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from xcfg.plugin.operators import BoundOperator

from xcfg_torch.backward import BackwardProbe
from xcfg_torch.batching import Batch
from xcfg_torch.fsdp import Sharding
from xcfg_torch.head import Head
from xcfg_torch.load import Anatomy, dtype_name
from xcfg_torch.observe import Observer, Seen
from xcfg_torch.options import TorchOptions


@dataclass
class Engine:
    """One rank: the model with its hooks, the operators, and what was asked for at construction.

    operator: of selected_logprob. head: what is bound as linear_selected_logprob, if anything is.
    last_fold: of the weights when they were last looked at, at the end of the build or of the previous score. A score
    starts from it: what changes in between shows at that score's end, so each boundary is folded once.
    backward: of the last score, where a knob of the backward was planned for it.
    """

    parts: Anatomy
    observer: Observer
    operator: BoundOperator
    options: TorchOptions
    sharding: Sharding
    side: str
    rank: int
    device: str
    dtype: str
    attention: str
    pad_id: int
    last_fold: str = ""
    head: Head | None = None
    backward: BackwardProbe | None = None

    @property
    def model(self) -> Any:
        """The causal LM."""
        return self.parts.model

    @property
    def injected_head(self) -> Head | None:
        """The head in whose place an operator stands, None where the model's own forms logits."""
        return self.head if self.head is not None and self.head.stand_in is not None else None

    @property
    def scorer(self) -> BoundOperator:
        """The operator that makes log probabilities: of the head where one is injected there, else of the logits."""
        return self.operator if self.injected_head is None else self.injected_head.operator

    def tensor(self, array: NDArray[Any]) -> torch.Tensor:
        """Return a copy of `array` on the engine's device."""
        return torch.from_numpy(np.array(array)).to(self.device)

    def keep_argument(self, columns: NDArray[np.int64]) -> dict[str, torch.Tensor]:
        """Return {"logits_to_keep": columns} where the model's forward knows it, else nothing."""
        if "logits_to_keep" not in inspect.signature(type(self.model).forward).parameters:
            return {}
        return {"logits_to_keep": self.tensor(columns)}

    def forward(self, batch: Batch, *, cache: bool, columns: NDArray[np.int64] | None = None) -> tuple[Any, Seen]:
        """Run one batch from an empty cache; return the model's output and what entered.

        columns: compute head logits only for these columns, int64 sorted.
        """
        mask = (
            {}
            if batch.attention_mask is None
            else {"attention_mask": self.tensor(batch.attention_mask.astype(np.int64))}
        )
        keep = {} if columns is None else self.keep_argument(columns)
        return self.call(
            input_ids=self.tensor(batch.input_ids),
            position_ids=self.tensor(batch.position_ids),
            use_cache=cache,
            **mask,
            **keep,
        )

    def call(self, **arguments: Any) -> tuple[Any, Seen]:
        """Call the model under the observer; return its output and what entered.

        Where an operator stands in the place of the head, `output.logits` are the final hidden states.
        """
        with self.observer.watching(), self.sharding.counting():
            output = self.model(**arguments)
            self.observer.model_outputs[dtype_name(output.logits.dtype)] += 1
        if self.head is not None:
            self.head.check(output.logits)
        return output, self.observer.take()
