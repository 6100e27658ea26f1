"""Frozen rollouts (xcfg.identity.rollout): what `xcfg freeze` and `xcfg_dumps.capture` write, read back as a dump."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from xcfg.dumps import Folder, list_folder
from xcfg.errors import ArtifactError, IdentityError
from xcfg.identity.rollout import MANIFEST_FILE, TENSORS_FILE, read_rollout

RECORDED = {"recorded_logprob": "logp_rollout", "recorded_training_logprob": "logp_train"}


class FrozenReader:
    """Reads the folder of a frozen rollout: the rollout side, and the trainer's if it was captured."""

    def detect(self, path: Path) -> str:
        """Return why the folder is a frozen rollout: its two files."""
        found = (path / MANIFEST_FILE).is_file() and (path / TENSORS_FILE).is_file()
        return "a folder with manifest.json and rollout.safetensors (frozen rollout)" if found else ""

    def folder(self, path: Path) -> Folder:
        """Return the two files of the rollout; whatever else lies beside them is not read."""
        return list_folder(path, (MANIFEST_FILE, TENSORS_FILE))

    def read(self, path: Path) -> Iterator[dict[str, Any]]:
        """Yield one batch. Raises ArtifactError when the rollout is altered or holds no log probability."""
        try:
            rollout = read_rollout(path)
        except IdentityError as error:
            raise ArtifactError(error.message, hint=error.hint) from None
        names = np.empty(rollout.sequence_count, dtype=object)
        names[:] = [item.request_id for item in rollout.manifest.sequences]
        batch: dict[str, Any] = {
            "sample_id": names[rollout.sequence_index()],
            "position": rollout.tensors["position_ids"],
            "token_id": rollout.token_ids,
            "active": rollout.active,
            "weight_version": rollout.tensors["weight_version"],
        }
        batch |= {column: rollout.tensors[name] for name, column in RECORDED.items() if name in rollout.tensors}
        if not batch.keys() & set(RECORDED.values()):
            raise ArtifactError(
                f"{str(path)!r} holds no recorded log probabilities", hint="It was frozen from token ids alone."
            )
        yield batch
