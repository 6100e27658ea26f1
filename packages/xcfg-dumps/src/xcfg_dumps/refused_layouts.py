"""Layouts that are known and hold too little: which part is missing, and what to export instead.

Read for the layout: vllm-project/vime at 8c1c944b and THUDM/slime at b2d74b11, data/archive.py (RolloutArchive: the
.straw.json is an index with format `vime.straw-debug` or `slime.straw-debug`, and the samples are records of a straw
pool). radixark/miles at c0e82595, miles/backends/training_utils/debug_dump.py: policy_loss_debug/*.pt has samples of
train_log_probs, old_log_probs and rollout_log_probs, with tokens only where the batch has unconcat_tokens, and `index`
counts within a micro-batch. radixark/miles, miles/utils/debug_utils/run_megatron: rank_*.json has
`logprob_entries[batch][position]`, the same keys from Megatron (worker/output.py at 23a5a189) and from SGLang
(sglang_output.py at 045129d0). The token of an entry is the one after global_position in sglang_output.py, and the one
at it with the labels of worker/batch.py at 15507c6f.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from xcfg.errors import ArtifactError

from xcfg_dumps import records

POLICY_LOSS = (
    "{} is a policy_loss_debug dump of miles: one call of the loss, whose samples have no name but their place in a "
    "micro-batch, and no token ids or ids of which nothing says whether a context-parallel rank has all"
)
TRAIN_DATA = "Dump the step with --save-debug-train-data; that file has tokens, log_probs and rollout_log_probs."


class StrawIndex:
    """Recognises the index of a straw archive (vime, slime); reading one says where the samples lie."""

    def detect(self, path: Path) -> str:
        """Return why: its keys are those of RolloutArchive."""
        found = {"format", "version", "manifest", "root", "storage_owner"} <= records.keys(path)
        return "the index of a straw archive (format, manifest, root, storage_owner)" if found else ""

    def read(self, path: Path) -> Iterator[dict[str, Any]]:
        """Raise ArtifactError."""
        yield from ()
        _, index = next(iter(records.documents(path)))
        raise ArtifactError(
            f"{path.name} holds no samples: it is an index ({index.get('format')!r:.40}, version "
            f"{index.get('version')!r:.10}) into the straw pool {index.get('root')!r:.200}",
            hint="Export it where vime or slime is installed: RolloutArchive(path).export_pt('new.pt'); that is read.",
        )


class LogprobEntries:
    """Recognises rank_*.json of miles' run_megatron; reading one says what it leaves open."""

    def detect(self, path: Path) -> str:
        """Return why: the keys of the file, or of the first in a folder."""
        first = next(iter(sorted(path.glob("rank_*.json"))), path) if path.is_dir() else path
        return "it has logprob_entries (miles run_megatron)" if records.keys(first) >= {"logprob_entries"} else ""

    def read(self, path: Path) -> Iterator[dict[str, Any]]:
        """Raise ArtifactError."""
        yield from ()
        raise ArtifactError(
            f"{path.name} does not say which engine scored it (Megatron and SGLang write the same keys), nor whether "
            "token_id stands at global_position or after it (both were written), nor what its samples are called",
            hint="Export both sides as canonical columns from the script that knows: sample_id, position, token_id, "
            f"active and logp_rollout or logp_train. In a training loop: {TRAIN_DATA}",
        )
