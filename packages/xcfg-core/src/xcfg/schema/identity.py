"""The logical problem that both sides must score, and the manifest of a frozen rollout.

A frozen rollout is a folder with `manifest.json` (RolloutManifest) and `rollout.safetensors`: ragged flat
tensors over T tokens of S sequences.

| tensor | dtype, shape | meaning |
|---|---|---|
| token_ids | int64 [T] | unpadded ids, prompts included |
| offsets | int64 [S + 1] | sequence s is token_ids[offsets[s]:offsets[s + 1]] |
| active_mask | bool [T] | response tokens that are compared; never the first of a sequence |
| attention_mask | bool [T] | logical mask over the unpadded sequence |
| position_ids | int64 [T] | logical positions, 0-based |
| selected_token_ids | int64 [T] | the token at this position, scored from the logits one before |
| segment | int8 [T] | 0 prompt, 1 generated, 2 observation |
| weight_version | int32 [T] | version of the weights that sampled the token |
| recorded_logprob | float32 [T] | optional, from sampling; NaN where nothing was recorded |
| recorded_training_logprob | float32 [T] | optional, from the trainer; shown by `xcfg compare`, used by no run |
"""

from __future__ import annotations

from typing import Any

from xcfg.schema._base import Record

ROLLOUT_SCHEMA = "xcfg.frozen_rollout.v1"
SEGMENT_PROMPT, SEGMENT_GENERATED, SEGMENT_OBSERVATION = 0, 1, 2


class CheckpointRef(Record):
    """uri: `builtin:NAME` or a folder; digest: SHA-256 over the per-tensor digests of the stored weights."""

    uri: str
    model_version: str = ""
    weight_version: int = 0
    digest: str = ""


class TokenizerRef(Record):
    """Which tokenizer made the ids, the digest of its files and the tokenization policy."""

    tokenizer_id: str = ""
    digest: str = ""
    policy: str = ""


MODEL_S_OWN = ("soft_cap", "logit_scale")
"""Transforms of a chain that a checkpoint's own head makes of its logits, e.g. `soft_cap:30.0`; they come first."""


class SamplingRecord(Record):
    """How recorded values were made.

    transform_chain: what the engine applied before it recorded, in order, e.g. ["temperature:0.7", "top_p:0.9"];
    what the model itself does (MODEL_S_OWN) follows from the checkpoint and need not stand here.
    extra: `stop_ids`, the token ids that ended a sequence, themselves active; missing where none was set.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    max_new_tokens: int | None = None
    logprobs_mode: str = "raw_logprobs"
    transform_chain: tuple[str, ...] = ()
    extra: dict[str, Any] = {}


class SequenceRecord(Record):
    """One sequence: a stable request id, its number of tokens and of active tokens."""

    request_id: str
    length: int
    active_tokens: int


class RolloutManifest(Record):
    """Everything about a frozen rollout that is not a flat tensor; its own SHA-256 names the rollout.

    tensors_sha256: of the file rollout.safetensors. attesters: field -> engine | manifest.
    inactive_other_version: tokens made inactive since another weight version sampled them. generator: what
    sampled: runtime, settings and `finish_reasons` per sequence (`stop` after a stop id, `length` at max_new_tokens).
    """

    schema_version: str
    checkpoint: CheckpointRef
    tokenizer: TokenizerRef
    sampling: SamplingRecord
    sequences: tuple[SequenceRecord, ...]
    token_count: int
    active_count: int
    tensors_sha256: str
    pre_update_state: str = "pre-update"
    cache_metadata: dict[str, Any] = {}
    packing_metadata: dict[str, Any] = {}
    attesters: dict[str, str] = {}
    inactive_other_version: int = 0
    generator: dict[str, Any] = {}


class SequenceAttestation(Record):
    """What the scoring process itself consumed for one sequence: digests over little-endian int64 bytes.

    token_ids, position_ids: of the unpadded row that entered the model. selected_ids: of the ids handed to the
    selected-logprob operator on active positions.
    """

    index: int
    length: int
    token_ids: str
    position_ids: str
    selected_ids: str


class IdentityDigests(Record):
    """The logical problem as digests: this, and no path, enters a case id."""

    rollout: str
    checkpoint: str
    tokenizer: str
    sampling: str
