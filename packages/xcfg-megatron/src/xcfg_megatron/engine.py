"""One live rank, and what its hooks saw since it was last cleared."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from xcfg.plugin.operators import BoundOperator

from xcfg_megatron.convert import Piece, Shape
from xcfg_megatron.options import MegatronOptions
from xcfg_megatron.parallel import Ranks

if TYPE_CHECKING:
    from xcfg_megatron.head import InjectedHead


@dataclass
class Engine:
    """One rank: the model, where it stands, and what its hooks saw.

    operators: by operation; selected_logprob is always there. entered: token ids of every forward, as this rank was
    handed them. rotary: (positions, offset) that the rotary embedding was asked for. linear_inputs: dtype of the inputs
    of linear layers. softmax_inputs: dtype in which scores entered Megatron's softmax. columns: how many columns of
    the vocabulary a row's log probability was summed over. calls: of slots (`slot.norm`) and of watched functions.
    head: the operator in the place of the output layer, None where the model's own forms logits.
    """

    model: Any
    config: Any
    shape: Shape
    pieces: list[Piece]
    operators: dict[str, BoundOperator]
    options: MegatronOptions
    ranks: Ranks
    device: str
    dtype: str
    layer_spec: str
    patches: list[str]
    linear_inputs: Counter[str] = field(default_factory=Counter)
    softmax_inputs: Counter[str] = field(default_factory=Counter)
    columns: Counter[int] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)
    entered: list[torch.Tensor] = field(default_factory=list)
    rotary: list[tuple[int, int]] = field(default_factory=list)
    forwards: int = 0
    last_fold: str = ""
    head: InjectedHead | None = None

    @property
    def operator(self) -> BoundOperator:
        """The selected log probability."""
        return self.operators["selected_logprob"]

    @property
    def scorer(self) -> BoundOperator:
        """What log probabilities come from: the operator in the place of the head, or the selected log probability."""
        return self.operator if self.head is None else self.head.operator

    def clear(self) -> None:
        """Forget what the hooks saw."""
        for counter in (self.linear_inputs, self.softmax_inputs, self.columns, self.calls):
            counter.clear()
        self.entered.clear()
        self.rotary.clear()
        self.forwards = 0
        for operator in self.operators.values():
            operator.clear()
        if self.head is not None:
            self.head.stand_in.calls = 0
