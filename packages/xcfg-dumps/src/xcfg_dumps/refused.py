"""Files that people have and that hold nothing to compare, or cannot be opened safely: why, and what to export.

Read for the layout: verl-project/verl at 1dda039b (2026-08-22), verl/trainer/ppo/ray_trainer.py
(trainer.rollout_data_dir writes JSONL of input, output, gts, score, step: decoded text) and verl/protocol.py
(DataProto.save_to_disk is pickle.dump; verl/utils/skip/rollout_skip.py writes it as gen_batch.dp).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from xcfg.errors import ArtifactError

from xcfg_dumps import records
from xcfg_dumps.parquet import CAPTURE
from xcfg_dumps.ptfile import is_pt, open_pt
from xcfg_dumps.refused_layouts import POLICY_LOSS, TRAIN_DATA
from xcfg_dumps.slime import RolloutReader, TrainReader


class TextOnly:
    """Recognises verl's rollout_data_dir and other records of text without ids; reading it is an error."""

    def detect(self, path: Path) -> str:
        """Return why: its records have text under the names of verl, NeMo-RL's distillation or TRL."""
        keys = records.keys(path)
        if {"input", "output", "score"} <= keys and "token_ids" not in keys:
            return "its records have input, output and score (verl rollout_data_dir)"
        if {"content", "input_lengths"} <= keys and "token_ids" not in keys:
            return "its records have content and no token_ids (NeMo-RL distillation)"
        if {"prompt", "completion"} <= keys and "token_ids" not in keys:
            return "its records have prompt and completion (TRL)"
        return ""

    def read(self, path: Path) -> Iterator[dict[str, Any]]:
        """Raise ArtifactError."""
        yield from ()
        raise ArtifactError(
            f"{path.name} holds text only ({self.detect(path) or 'named by hand'}): no token ids and no log "
            "probabilities, and tokenising text again gives other ids",
            hint=CAPTURE,
        )


class Pickle:
    """Recognises bare pickles, such as a verl DataProto; reading one is an error, since it would run code."""

    def detect(self, path: Path) -> str:
        """Return why: the first bytes are those of a pickle."""
        try:
            with path.open("rb") as stream:
                head = stream.read(1 << 16)
        except OSError:
            return ""
        if head[:1] != b"\x80" or head[1:2] not in (b"\x02", b"\x03", b"\x04", b"\x05") or len(head) < 4:
            return ""
        if head[2:8] == bytes(6):  # the length of a safetensors header
            return ""
        kind = " of a verl DataProto" if b"verl.protocol" in head else ""
        return f"its first bytes are those of a bare pickle{kind}"

    def read(self, path: Path) -> Iterator[dict[str, Any]]:
        """Raise ArtifactError."""
        yield from ()
        why = self.detect(path)
        if not why:
            raise ArtifactError(f"{str(path)!r} cannot be read, or is no pickle")
        raise ArtifactError(
            f"{path.name} is not opened: {why}, and opening a pickle runs whatever it names",
            hint="Where the object is at hand, export prompts, responses, response_mask, rollout_log_probs and "
            f"old_log_probs as safetensors or npz columns. {CAPTURE}",
        )


class OtherTorch:
    """Recognises torch archives of another layout; reading one says what it holds, or which global it names."""

    def detect(self, path: Path) -> str:
        """Return why: a torch archive that neither reader of slime recognises."""
        known = not is_pt(path) or RolloutReader().detect(path) or TrainReader().detect(path)
        return "" if known else "a torch archive of an unknown layout"

    def read(self, path: Path) -> Iterator[dict[str, Any]]:
        """Raise ArtifactError."""
        yield from ()
        document = open_pt(path).load()
        keys = ", ".join(map(str, document)) if isinstance(document, dict) else type(document).__name__
        if isinstance(document, dict) and {"samples", "pg_loss", "ppo_kl"} <= set(document):
            raise ArtifactError(POLICY_LOSS.format(path.name), hint=TRAIN_DATA)
        raise ArtifactError(
            f"{path.name} is no dump that is known: it holds {keys[:300]}",
            hint="Known .pt layouts: slime and miles rollout and training dumps. Export the canonical columns as "
            f"safetensors otherwise. {CAPTURE}",
        )
