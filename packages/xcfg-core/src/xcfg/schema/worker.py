"""The worker protocol `xcfg.worker.v1`: plain files in one exchange folder, so that any command can speak it.

The supervisor makes the folder and sets XCFG_EXCHANGE to it (and RANK, WORLD_SIZE, LOCAL_RANK where it starts
the ranks itself). Every file appears by rename, so a file that is there is whole.

    construct.json             WorkerSpec                       supervisor
    ready-<rank>.json          BuildReport                      each rank, once its engine stands
    request-<id>.json          ScoreRequest                     supervisor
    scores-<id>-<rank>.safetensors   flat columns               each rank that owns or replicates tokens
    generated-<id>-<rank>.json       JSON list, one per prompt  instead of scores (plugin.protocols.Generator)
    done-<id>-<rank>.json      ScoreReport                      each rank, after its tensors
    stop                       empty                            supervisor: leave with exit code 0

A report with a non-empty `error` ends the request (or the build) for every rank.
"""

from __future__ import annotations

from typing import Any

from xcfg.schema._base import Record, Value
from xcfg.schema.identity import SequenceAttestation
from xcfg.schema.operators import OperatorBinding
from xcfg.schema.runtime import KnobApplication

PROTOCOL = "xcfg.worker.v1"


class WorkerSpec(Record):
    """How to build one engine. Knob values are those of this side, without `@side`.

    checkpoint: local folder. rollout: folder of the frozen rollout. devices: `cpu` or `cuda:N`, by local rank.
    memory_bytes: of this machine, or what --memory-gib allows; None: nobody says.
    """

    protocol: str
    runtime: str
    adapter: str
    side: str
    knobs: dict[str, Value]
    options: dict[str, Any]
    operators: dict[str, OperatorBinding]
    checkpoint: str
    checkpoint_uri: str
    rollout: str
    world_size: int
    devices: tuple[str, ...] = ("cpu",)
    seed: int = 0
    memory_bytes: int | None = None


class WeightReport(Record):
    """Effective weights. method: digest (exact, per Hugging Face-named tensor) or probe (RECORDED).

    tensors: name -> SHA-256 over the bytes after unsharding, unfusing, unpadding, in `dtype`.
    aliases: tensors that share storage with another (tied embeddings), name -> name.
    fold: a cheap digest of this rank's local parameters and buffers, for the read-only proof.
    """

    method: str
    dtype: str
    tensors: dict[str, str] = {}
    aliases: dict[str, str] = {}
    fold: str = ""
    local_parameters: int = 0
    total_parameters: int = 0


class BuildReport(Record):
    """What one rank says once its engine stands."""

    rank: int
    world_size: int
    compute_dtype: str = ""
    applications: tuple[KnobApplication, ...] = ()
    weights: WeightReport | None = None
    provenance: dict[str, Any] = {}
    coordinates: dict[str, int] = {}
    seconds: float = 0.0
    error: str = ""
    error_kind: str = ""
    traceback: str = ""


class ScoreRequest(Record):
    """Score the frozen rollout in one arm. knobs: request-lifecycle values of this side.

    columns: optional columns wanted. shuffle_seed: regroup the sequences before batching (control).
    generate: instead of scoring, sample (freeze); its fields are listed at plugin.protocols.Generator.
    cache: `cold`: empty what a cache holds, then score; `warm`: score twice without emptying it, and answer with the
    second time; empty: as the runtime does by itself. Only a runtime that declares a cache is asked.
    """

    id: str
    arm: str
    knobs: dict[str, Value] = {}
    columns: tuple[str, ...] = ()
    shuffle_seed: int | None = None
    score_dtype: str = "float32"
    generate: dict[str, Any] = {}
    cache: str = ""


class RankRecord(Record):
    """One rank of one score. ranges: half-open [start, stop) spans of flat token indices that it owns."""

    rank: int
    world_size: int
    role: str
    coordinates: dict[str, int]
    ranges: tuple[tuple[int, int], ...]
    parallelism: str
    dtype: str
    padding_side: str
    cache_mode: str
    active_tokens: int


class ScoreReport(Record):
    """What one rank says after one request. tensors_sha256: of its scores file, empty for role none.

    single_token_forwards, forwards: counted calls of the model. transforms: the chain actually applied, the model's
    own soft cap and logit scale first (`soft_cap:30.0`, `logit_scale:0.0625`): both sides must have the same.
    fold_before, fold_after: of parameters and buffers; before may be the one at the end of the previous score or of
    the build, since a change in between then shows in this score's after. state_unchanged: whether those, modes and
    generators are after the request as they were before; None where nobody looked.
    mechanism: how it was scored, in words of the runtime. `vocabulary` {"policy": mask | include, "real", "padded"} is
    compared between the sides: whether columns that pad the vocabulary take part in the sums; another word than these
    counts as a sum over other columns. `vocabulary_shard` [start, stop): the ids, padding included, that this rank's
    head holds; `head_padding` {"rows", "largest_norm"}: its rows beyond the vocabulary. `determinism` {"flags",
    "libraries"} is what xcfg.read_determinism() returns in the process that scored, and is held against a claim of
    determinism; `serve` fills it in where the adapter did not. `cache` {"control": cold | warm, "brought_tokens"}
    answers ScoreRequest.cache. `backward` {"rows", "broken_rows", "max_abs", "rel_l2", "ran"}: where a knob of the
    backward was planned, how far the gradient of the log probability with respect to the logits lies from float64's on
    some rows of the score; a run's summary shows it.
    broken: the engine cannot serve another request (a sticky device error); the supervisor discards the worker.
    """

    request_id: str
    rank: int
    record: RankRecord | None = None
    compute_dtype: str = ""
    applications: tuple[KnobApplication, ...] = ()
    attestations: tuple[SequenceAttestation, ...] = ()
    transforms: tuple[str, ...] | None = None
    fold_before: str = ""
    fold_after: str = ""
    state_unchanged: bool | None = None
    forwards: int = 0
    single_token_forwards: int = 0
    counters: dict[str, int] = {}
    mechanism: dict[str, Any] = {}
    tensors_sha256: str = ""
    seconds: float = 0.0
    timeline: tuple[dict[str, Any], ...] = ()
    error: str = ""
    error_kind: str = ""
    traceback: str = ""
    broken: bool = False


SCORE_COLUMNS: dict[str, str] = {
    "selected_logprob": "float32 or float64 [T]; NaN where not scored",
    "active": "bool [T]",
    "selected_logit": "float32 [T]",
    "logsumexp": "float32 [T]",
    "exact_logprob": "float64 [T], nats: the log probability in float64 of the logits that were formed",
    "entropy": "float32 [T], nats",
    "token_rank": "int32 [T], 1 is the most likely",
    "kept_mass": "float32 [T], probability kept by top-k/top-p of the sampling record",
    "phase": "int8 [T], see names.Phase",
    "step_batch": "int32 [T], real batch of the decode step",
    "step_batch_padded": "int32 [T], padded batch of the decode step",
    "weight_version": "int32 [T]",
    "routed_experts": "int16 [T, layers, k]",
}
OPTIONAL_COLUMNS = ("selected_logit", "logsumexp", "exact_logprob", "entropy", "token_rank", "kept_mass")
