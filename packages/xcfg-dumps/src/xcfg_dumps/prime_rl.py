"""prime-rl: `token_exports/step_N/rank_R.jsonl`, one record per sequence, both sides.

Read for the layout: PrimeIntellect-ai/prime-rl at 559b4477 (2026-08-21, v0.8.1.dev9), src/prime_rl/trainer/rl/
token_export.py (schema_version 1), train.py and trainer/batch.py. All columns are per token and aligned to
token_ids; trainer_logprobs were shifted right, so index 0 holds a filler; what is not finite was written as null.
Both sides are at the sampling temperature. A folder step_N with a file per rank is one dump. With
`enable_token_export` the trainer writes sequences that have a trained token only, so a rank may have no file. At
004274ec an empty file STABLE appears in the folder once every rank has written the step.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from xcfg.dumps import Folder, list_folder
from xcfg.errors import ArtifactError

from xcfg_dumps import records
from xcfg_dumps.samples import Sample, batches, floats, mask, number, whole

PATTERN = "rank_*.jsonl"
STABLE = "STABLE"
KEYS = frozenset(("token_ids", "position_ids", "loss_mask", "inference_logprobs", "trainer_logprobs"))
SIDES = {"rollout": "inference_logprobs", "training": "trainer_logprobs"}


class PrimeRlReader:
    """Reads a token export, or a step's folder of them."""

    def detect(self, path: Path) -> str:
        """Return why the file, or the first of the folder, is a token export: the keys of its first record."""
        first = next(iter(_files(path)), path)
        found = records.keys(first) >= KEYS
        return "its records have inference_logprobs and trainer_logprobs (prime-rl token export)" if found else ""

    def folder(self, path: Path) -> Folder:
        """Return the files of all ranks, and whether the trainer has called the step finished."""
        finished = (path / STABLE).exists()
        remark = "" if finished else "no STABLE in it: the trainer may not have finished writing the step"
        return list_folder(path, (PATTERN,), markers=(STABLE,), remark=remark)

    def read(self, path: Path) -> Iterator[dict[str, Any]]:
        """Yield batches of both sides. Raises ArtifactError, naming the line."""
        yield from batches(_samples(path), path.name)


def _files(path: Path) -> list[Path]:
    return list(list_folder(path, (PATTERN,)).files) if path.is_dir() else [path]


def _samples(path: Path) -> Iterator[Sample]:
    for file in _files(path):
        for where, record in records.lines(file):
            yield _sample(where, record)


def _sample(where: str, record: dict[str, Any]) -> Sample:
    missing = sorted((KEYS | {"step", "rank", "export_sequence_idx"}) - set(record))
    if missing:
        raise ArtifactError(f"{where} has no {', '.join(missing)}; there are {', '.join(record)[:300]}")
    if record.get("schema_version") != 1:
        raise ArtifactError(f"{where} has schema_version {record.get('schema_version')!r}", hint="Known: 1.")
    rank = number(record["rank"], f"{where}: rank")
    index = number(record["export_sequence_idx"], f"{where}: export_sequence_idx")
    tokens = whole(record["token_ids"], f"{where}: token_ids")
    positions = whole(record["position_ids"], f"{where}: position_ids")
    if not np.array_equal(positions, np.arange(len(tokens))):
        raise ArtifactError(f"{where}: position_ids do not count from 0 to {len(tokens) - 1}")
    active = mask(record["loss_mask"], f"{where}: loss_mask").copy()
    active[:1] = False
    scores = {side: floats(record[key], f"{where}: {key}") for side, key in SIDES.items()}
    columns = {"rank": np.full(len(tokens), rank, dtype=np.int64)}
    if "entropy" in record:
        columns["entropy"] = floats(record["entropy"], f"{where}: entropy")
    return Sample(f"step{number(record['step'], f'{where}: step')}-rank{rank}-{index}", tokens, active, scores, columns)
