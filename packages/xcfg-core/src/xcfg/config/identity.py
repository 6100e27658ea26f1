"""The `identity` of an experiment: inline matrices, or (v2) a frozen rollout by digest."""

from __future__ import annotations

import re
from typing import Any

from xcfg.config.typed import convert_at
from xcfg.errors import ConfigError
from xcfg.schema.experiment import FrozenIdentity, InlineIdentity

_SHA256 = re.compile(r"[0-9a-f]{64}")
_MATRICES = ("token_ids", "selected_token_ids", "active_mask", "attention_mask", "position_ids")
_NON_EMPTY = ("checkpoint_id", "model_version", "tokenizer_policy", "pre_update_state")
_IDS = ("token_ids", "selected_token_ids", "position_ids")


def parse_identity(document: dict[str, Any], *, source: str, frozen_allowed: bool) -> InlineIdentity | FrozenIdentity:
    """Return the identity; `rollout` makes it a frozen one, else it is the twelve inline keys.

    Raises ConfigError with the JSON path of the fault.
    """
    if "rollout" not in document:
        return _inline(document, source)
    if not frozen_allowed:
        raise ConfigError(
            "a frozen rollout needs v2",
            source=source,
            path="$.identity.rollout",
            hint='Use schema_version "cross_config.experiment_config.v2", or give the inline matrices.',
        )
    return _frozen(document, source)


def _frozen(document: dict[str, Any], source: str) -> FrozenIdentity:
    identity = convert_at(document, FrozenIdentity, source=source, path="$.identity")
    rollout = identity.rollout
    if not rollout.path or "\0" in rollout.path:
        raise ConfigError(
            "the path of the frozen rollout is empty or holds a null character",
            source=source,
            path="$.identity.rollout.path",
            hint="Give the folder that `xcfg freeze` wrote, relative to the experiment file.",
        )
    if not _SHA256.fullmatch(rollout.sha256):
        raise ConfigError(
            f"{rollout.sha256!r} is no SHA-256",
            source=source,
            path="$.identity.rollout.sha256",
            hint="Give the 64 lowercase hex digits that `xcfg freeze` printed.",
        )
    if identity.checkpoint is not None and (not identity.checkpoint or "\0" in identity.checkpoint):
        raise ConfigError(
            "the checkpoint is empty",
            source=source,
            path="$.identity.checkpoint",
            hint="Remove it or name one.",
        )
    return identity


def _inline(document: dict[str, Any], source: str) -> InlineIdentity:
    identity = convert_at(document, InlineIdentity, source=source, path="$.identity")
    for name in _NON_EMPTY:
        if not getattr(identity, name).strip():
            raise ConfigError(
                f"{name} is empty",
                source=source,
                path=f"$.identity.{name}",
                hint="Name it; it is part of the identity.",
            )
    _check_shapes(identity, source)
    for name in _IDS:
        _check_not_negative(getattr(identity, name), source, f"$.identity.{name}")
    return identity


def _check_shapes(identity: InlineIdentity, source: str) -> None:
    rows = len(identity.token_ids)
    width = len(identity.token_ids[0]) if rows else 0
    if not width:
        raise ConfigError(
            "token_ids is empty", source=source, path="$.identity.token_ids", hint="Give at least one token."
        )
    for name in _MATRICES:
        matrix = getattr(identity, name)
        if name == "position_ids" and not matrix:
            continue
        if len(matrix) != rows:
            raise ConfigError(
                f"{name} has {len(matrix)} rows, token_ids has {rows}",
                source=source,
                path=f"$.identity.{name}",
                hint="All matrices have one shape, [sequences, tokens].",
            )
        for index, row in enumerate(matrix):
            if len(row) != width:
                raise ConfigError(
                    f"row {index} has {len(row)} values, the first row of token_ids has {width}",
                    source=source,
                    path=f"$.identity.{name}[{index}]",
                    hint="The matrices are rectangular: pad shorter sequences and mask the padding.",
                )


def _check_not_negative(matrix: list[list[int]], source: str, path: str) -> None:
    for index, row in enumerate(matrix):
        if row and min(row) < 0:
            raise ConfigError(
                f"{min(row)} is negative",
                source=source,
                path=f"{path}[{index}][{row.index(min(row))}]",
                hint="Ids and positions start at 0; padding is told by attention_mask.",
            )
