"""From the rows of a dump to a frozen rollout: whole sequences that an engine can score again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xcfg.dumps.rows import Rows
from xcfg.errors import ArtifactError, UsageError
from xcfg.identity.rollout import Rollout, make_rollout
from xcfg.schema.codec import evolve
from xcfg.schema.identity import (
    SEGMENT_GENERATED,
    SEGMENT_OBSERVATION,
    SEGMENT_PROMPT,
    CheckpointRef,
    SamplingRecord,
    TokenizerRef,
)


def frozen_rollout(
    rows: Rows,
    *,
    checkpoint: CheckpointRef,
    tokenizer: TokenizerRef | None = None,
    sampling: SamplingRecord | None = None,
    weight_version: int | None = None,
    facts: Mapping[str, Any] | None = None,
) -> Rollout:
    """Return `rows` (one side or both) as a frozen rollout; the scores become its recorded columns, as float32.

    facts: what else the manifest's `generator` says about the dump.

    weight_version: the version that `checkpoint` has; tokens of another one become inactive and are counted. It
    must be given where active tokens name several. Raises UsageError for that, ArtifactError where a sequence
    lacks rows (its prompt, say), because nothing can score what is not there, or where no token is active.
    """
    if not rows.count:
        raise ArtifactError(f"{rows.source!r} holds no token", hint="There is nothing to freeze.")
    _refuse_gaps(rows)
    columns = rows.columns
    active: NDArray[np.bool_] = columns["active"]
    versions = columns.get("weight_version")
    version = _version(rows, weight_version, checkpoint.weight_version)
    if not bool((active if versions is None else active & (versions == version)).any()):
        raise ArtifactError(
            f"{rows.source!r} has no active token" + (f" of weight version {version}" if active.any() else ""),
            hint="A frozen rollout has tokens to compare.",
        )
    tensors: dict[str, NDArray[np.generic]] = {
        "token_ids": columns["token_id"],
        "offsets": rows.offsets,
        "active_mask": active,
        "attention_mask": np.ones(rows.count, dtype=np.bool_),
        "position_ids": columns["position"],
        "selected_token_ids": columns["token_id"],
        "segment": _segments(rows),
        "weight_version": np.full(rows.count, version, dtype=np.int32) if versions is None else versions,
    }
    for tensor, score in (("recorded_logprob", "logp_rollout"), ("recorded_training_logprob", "logp_train")):
        if score in columns:
            tensors[tensor] = columns[score]
    return make_rollout(
        tensors,
        checkpoint=evolve(checkpoint, weight_version=version),
        tokenizer=tokenizer,
        sampling=sampling,
        request_ids=list(rows.sample_ids),
        attesters=dict.fromkeys(("token_ids", "recorded_logprob", "masks", "position_ids", "tokenizer"), "manifest"),
        generator={"dump": rows.source, "compute_dtypes": dict(rows.dtypes), **(facts or {})},
    )


def _refuse_gaps(rows: Rows) -> None:
    """Each sequence must hold positions 0, 1, 2, … without a gap."""
    offsets, position = rows.offsets, rows.columns["position"]
    expected = np.arange(rows.count) - np.repeat(offsets[:-1], np.diff(offsets))
    bad = np.flatnonzero(position != expected)
    if len(bad):
        row = int(bad[0])
        raise ArtifactError(
            f"sample {rows.sample_of(row)!r} of {rows.source!r} has no row at position {int(expected[row])}",
            hint="To score it again an engine needs every token from position 0, the prompt included; export the "
            "prompt ids as rows that are not active.",
        )


def _version(rows: Rows, wanted: int | None, otherwise: int) -> int:
    """Return the weight version that the checkpoint has; `otherwise` where the dump names none."""
    versions = rows.columns.get("weight_version")
    found = np.zeros(0, dtype=np.int32) if versions is None else np.unique(versions[rows.columns["active"]])
    if wanted is not None and versions is None:
        raise UsageError(
            f"{rows.source!r} names no weight version", hint="Leave --weight-version out, or dump the column."
        )
    if wanted is None and len(found) > 1:
        shown = ", ".join(map(str, found[:8].tolist()))
        raise UsageError(
            f"the active tokens of {rows.source!r} come from several weight versions: {shown}",
            hint="Say which one the checkpoint is, with --weight-version N; the tokens of others are then not active.",
        )
    if wanted is not None:
        return wanted
    return int(found[0]) if len(found) else otherwise


def _segments(rows: Rows) -> NDArray[np.int8]:
    """Prompt before a sequence's first active token, generated where active, observation after it otherwise."""
    active = rows.columns["active"]
    offsets = rows.offsets
    seen = np.cumsum(active)
    before = np.repeat(seen[offsets[:-1]] - active[offsets[:-1]], np.diff(offsets))
    inactive = np.where(seen > before, SEGMENT_OBSERVATION, SEGMENT_PROMPT)
    return np.where(active, SEGMENT_GENERATED, inactive).astype(np.int8)
