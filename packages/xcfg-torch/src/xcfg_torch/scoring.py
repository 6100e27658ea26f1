"""From rows of logits to the columns of a score: the selected-logprob operator, and optional columns.

An operator in the place of the head is handed rows of hidden states and the head's weights instead, and has the columns
beside its values that it offers itself (xcfg.plugin.protocols.HeadColumns).

Memory: only `row_chunk` rows are widened at a time. With V entries of vocabulary that is row_chunk * V * 8 bytes for
torch.log_softmax_gather (two float32 copies), and at most row_chunk * V * 40 where top-k, top-p or optional columns
are wanted: 0.3 and 1.6 GB at the default 256 rows and V = 152,000, however many tokens a batch has.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from xcfg.errors import UsageError, WorkerError, did_you_mean
from xcfg.identity.rollout import Rollout
from xcfg.plugin.operators import BoundOperator, check_values
from xcfg.plugin.protocols import HeadColumns
from xcfg.plugin.stated import scored_ids
from xcfg.schema.names import Phase
from xcfg.schema.worker import OPTIONAL_COLUMNS

from xcfg_torch.backward import BackwardProbe
from xcfg_torch.transforms import apply_chain, chain_of

SCORE_DTYPES = {"float32": torch.float32, "float64": torch.float64}
COLUMN_DTYPES = {"token_rank": torch.int32, "exact_logprob": torch.float64}
"""Of the optional columns that are not float32."""


class ScoreSheet:
    """The flat columns over T tokens of one request, filled row by row.

    selected: int64 [T], the ids that were handed to the operator, or that it says it scored; -1 where none was.
    """

    def __init__(
        self,
        rollout: Rollout,
        operator: BoundOperator,
        *,
        columns: Sequence[str],
        dtype: str,
        chain: Sequence[str],
        row_chunk: int,
        weight: torch.Tensor | None = None,
        backward: BackwardProbe | None = None,
    ) -> None:
        """Make empty columns: NaN, 0 and -1. UsageError for a column that nobody knows.

        weight: of the head [V, K], where rows are hidden states and `operator` is a linear_selected_logprob.
        backward: looks at the gradient of the same calls, after each.
        """
        unknown = [name for name in columns if name not in OPTIONAL_COLUMNS]
        if unknown:
            raise UsageError(f"there is no column {unknown[0]!r}", hint=did_you_mean(unknown[0], OPTIONAL_COLUMNS))
        total = len(rollout.token_ids)
        sampling = rollout.manifest.sampling
        self.rollout = rollout
        self.operator = operator
        self.weight = weight
        self.backward = backward
        self.chain = tuple(chain)
        self.sampler = chain_of(sampling.temperature, sampling.top_k, sampling.top_p)
        self.row_chunk = row_chunk
        self.selected: NDArray[np.int64] = np.full(total, -1, dtype=np.int64)
        self.wanted = tuple(columns)
        self.columns: dict[str, torch.Tensor] = {
            "selected_logprob": torch.full((total,), torch.nan, dtype=SCORE_DTYPES[dtype]),
            "active": torch.from_numpy(rollout.active.copy()),
            "phase": torch.zeros(total, dtype=torch.int8),
            "weight_version": torch.from_numpy(rollout.tensors["weight_version"].astype(np.int32)),
        }
        for name in columns:
            kind = COLUMN_DTYPES.get(name, torch.float32)
            self.columns[name] = torch.full((total,), torch.nan if kind.is_floating_point else 0, dtype=kind)

    def track_steps(self) -> None:
        """Add the columns of a decode replay."""
        for name in ("step_batch", "step_batch_padded"):
            self.columns[name] = torch.zeros(len(self.selected), dtype=torch.int32)

    def score(self, flat: NDArray[np.int64], logits: torch.Tensor, phase: Phase) -> None:
        """Score tokens `flat` [N] from logits [N, V], or from hidden states [N, K] beside a weight; each token once."""
        for start in range(0, len(flat), self.row_chunk):
            part = slice(start, start + self.row_chunk)
            self._score_rows(flat[part], logits[part], phase)

    def _score_rows(self, flat: NDArray[np.int64], logits: torch.Tensor, phase: Phase) -> None:
        if bool((self.selected[flat] >= 0).any()):
            raise WorkerError("a token was scored twice in one request")
        ids = self.rollout.tensors["selected_token_ids"][flat].astype(np.int64)
        entries = logits.shape[-1] if self.weight is None else self.weight.shape[0]
        if int(ids.max()) >= entries:
            raise WorkerError(
                f"the token id {int(ids.max())} is outside the {entries} logits of the model",
                hint="The rollout was frozen with another tokenizer or checkpoint.",
            )
        selected = torch.from_numpy(ids).to(logits.device)
        processed = apply_chain(logits, self.chain)
        head = () if self.weight is None else (self.weight,)
        values = call_operator(self.operator, processed, *head, selected)
        where = torch.from_numpy(flat)
        self.columns["selected_logprob"][where] = values.to(self.columns["selected_logprob"].dtype).cpu()
        self.columns["phase"][where] = int(phase)
        self.selected[flat] = scored_ids(self.operator.function, selected).cpu().numpy()
        if self.wanted:
            found = (
                self._optional(logits, processed, selected)
                if self.weight is None
                else cast("HeadColumns", self.operator.function).columns(logits, self.weight, selected)
            )
            for name in self.wanted:
                self.columns[name][where] = found[name].to(self.columns[name].dtype).cpu()
        if self.backward is not None:
            self.backward.look(processed, selected)

    def _optional(self, raw: torch.Tensor, logits: torch.Tensor, selected: torch.Tensor) -> dict[str, torch.Tensor]:
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
        picked = wide.gather(-1, selected[:, None])
        found: dict[str, torch.Tensor] = {"selected_logit": picked[:, 0]}
        if "logsumexp" in self.wanted:
            found["logsumexp"] = wide.logsumexp(dim=-1)
        if "exact_logprob" in self.wanted:
            exact = logits.double()
            found["exact_logprob"] = exact.gather(-1, selected[:, None])[:, 0] - exact.logsumexp(dim=-1)
            del exact
        if "entropy" in self.wanted:
            found["entropy"] = self._entropy(logits, wide)
        if "token_rank" in self.wanted:
            found["token_rank"] = 1 + (wide > picked).sum(dim=-1)
        if "kept_mass" in self.wanted:
            found["kept_mass"] = kept_mass(raw, self.sampler)
        return found

    def _entropy(self, logits: torch.Tensor, wide: torch.Tensor) -> torch.Tensor:
        """Return [N], nats: the operator's own where it has one, which it then states beside what its call did."""
        own = getattr(self.operator.function, "entropy", None)
        if own is None:
            return entropies(wide)
        found: torch.Tensor = own(logits)
        self.operator.restate()
        return found


def entropies(wide: torch.Tensor) -> torch.Tensor:
    """Return the entropy [N], nats, of rows of logits [N, V]."""
    found: torch.Tensor = torch.special.entr(wide.softmax(dim=-1)).sum(dim=-1)
    return found


def kept_mass(logits: torch.Tensor, chain: Sequence[str]) -> torch.Tensor:
    """Return [N] the probability, after temperature alone, of the tokens that top-k and top-p keep."""
    if not any(item.startswith(("top_k", "top_p")) for item in chain):
        return torch.ones(len(logits), device=logits.device)
    scaled = apply_chain(logits, [item for item in chain if item.startswith("temperature")])
    kept = torch.isfinite(apply_chain(logits, chain))
    probability = scaled.to(torch.promote_types(scaled.dtype, torch.float32)).softmax(dim=-1)
    return (probability * kept).sum(dim=-1)


def call_operator(operator: BoundOperator, *inputs: torch.Tensor) -> torch.Tensor:
    """Return the operator's [N] values; WorkerError when it returns another shape or no float32/float64.

    inputs: logits, or hidden states and the head's weights; then the selected ids [N].
    """
    selected = inputs[-1]
    values: torch.Tensor = operator(*inputs)
    check_values(values, selected, operator.binding.backend_id)
    return values
