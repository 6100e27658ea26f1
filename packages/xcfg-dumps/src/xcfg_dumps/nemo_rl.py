"""NeMo-RL: `train_data_step{N}.jsonl`, one record per sample, both sides.

Read for the layout: NVIDIA-NeMo/RL at 7ea279ab (2026-08-22, after v0.7.0), nemo_rl/algorithms/grpo.py and ppo.py
(log_data), nemo_rl/utils/logger.py (log_batched_dict_as_jsonl writes batches of one, so every value is a list
of one element), nemo_rl/models/policy/lm_policy.py. Log probabilities are aligned to token_ids and index 0 is a
dummy 0 on both sides; rows are padded to the batch, input_lengths says how far they count; a token is trained on
where token_loss_mask and sample_loss_mask are both 1. Under force_on_policy_ratio prev_logprobs is all
zeros, which is refused. The distillation loop logs text only under the same name.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from xcfg.errors import ArtifactError

from xcfg_dumps import records
from xcfg_dumps.samples import Sample, batches, floats, mask, number, refuse_filler, whole

KEYS = frozenset(("token_ids", "token_loss_mask", "generation_logprobs", "prev_logprobs"))
SKIPPED = "NeMo-RL skips prev_logprobs under force_on_policy_ratio=True and logs zeros; switch it off for a step."
SIDES = {"rollout": "generation_logprobs", "training": "prev_logprobs"}


class NemoRlReader:
    """Reads the training data log of GRPO and PPO."""

    def detect(self, path: Path) -> str:
        """Return why the file is such a log: the keys of its first record."""
        return "its records have generation_logprobs and prev_logprobs (NeMo-RL)" if records.keys(path) >= KEYS else ""

    def read(self, path: Path) -> Iterator[dict[str, Any]]:
        """Yield batches of both sides. Raises ArtifactError, naming the line."""
        yield from batches((_sample(where, record) for where, record in records.lines(path)), path.name)


def _sample(where: str, record: dict[str, Any]) -> Sample:
    missing = sorted((KEYS | {"input_lengths", "sample_loss_mask", "idx"}) - set(record))
    if missing:
        raise ArtifactError(f"{where} has no {', '.join(missing)}; there are {', '.join(record)[:300]}")
    tokens = whole(_only(record["token_ids"], where), f"{where}: token_ids")
    length = number(_only(record["input_lengths"], where), f"{where}: input_lengths")
    weight = mask([_only(record["sample_loss_mask"], where)], f"{where}: sample_loss_mask")
    active = mask(_only(record["token_loss_mask"], where), f"{where}: token_loss_mask") & weight
    scores = {side: floats(_only(record[key], where), f"{where}: {key}") for side, key in SIDES.items()}
    lengths = {len(tokens), len(active), *map(len, scores.values())}
    if len(lengths) > 1 or not 0 < length <= len(tokens):
        shown = ", ".join(f"{SIDES[side]} {len(values)}" for side, values in scores.items())
        raise ArtifactError(
            f"{where}: columns of different lengths: token_ids {len(tokens)}, token_loss_mask {len(active)}, {shown}, "
            f"input_lengths {length}"
        )
    active = active[:length].copy()
    active[0] = False
    refuse_filler(scores["training"][:length], active, f"{where}: prev_logprobs", SKIPPED)
    cut = {side: values[:length].copy() for side, values in scores.items()}
    for values in cut.values():
        values[0] = np.nan
    return Sample(str(number(record["idx"], f"{where}: idx")), tokens[:length], active, cut)


def _only(value: Any, where: str) -> Any:
    """Return the one element of a batch of one; what is no list stands for itself."""
    if isinstance(value, list) and len(value) == 1:
        return value[0]
    if isinstance(value, list) and value and isinstance(value[0], list):
        raise ArtifactError(f"{where} holds {len(value)} samples", hint="NeMo-RL writes one sample per line.")
    return value
