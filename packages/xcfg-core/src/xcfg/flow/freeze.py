"""The freeze journey: sample once with a real engine, keep the tokens and what the engine recorded."""

from __future__ import annotations

import math
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from xcfg.errors import ExecutionError, IdentityError, LaunchError, UsageError, did_you_mean
from xcfg.flow.checkpoints import Checkpoint, find_checkpoint
from xcfg.flow.evidence_gate import EvidenceRefusedError, evidence_gate
from xcfg.flow.launching import launch_spec, place, resolution_context
from xcfg.flow.options import Event, ignore
from xcfg.flow.prompts import check_length, check_vocabulary, read_prompts
from xcfg.flow.scratch import scratch_folder
from xcfg.identity.checkpoint import end_of_sequence_ids, tokenizer_digest, vocabulary_size
from xcfg.identity.rollout import Rollout, make_rollout, read_rollout, staging_folder, write_rollout
from xcfg.operators import OperatorSession, SemanticOperatorCatalog
from xcfg.planning import complete_settings
from xcfg.plugin.known import KNOB_PREFIXES
from xcfg.plugin.manager import PluginManager
from xcfg.running.generated import check_answers
from xcfg.running.launch import LaunchSpec
from xcfg.running.pool import WorkerPool
from xcfg.runtime.sides import request_knobs, side_knobs, unsupported
from xcfg.schema._base import Value
from xcfg.schema.identity import CheckpointRef, SamplingRecord, TokenizerRef
from xcfg.schema.names import Target
from xcfg.schema.operators import OperatorChoice
from xcfg.schema.runtime import RuntimeDescriptor
from xcfg.schema.worker import ScoreRequest

LARGEST_SEED = 2**53 - 1
"""The largest integer that canonical JSON holds; a seed is part of the identity of its engine."""
LOGPROBS_MODES = ("raw_logprobs", "processed_logprobs")


@dataclass(frozen=True)
class FreezeOptions:
    """What is sampled and how.

    settings: knob path -> value for the rollout side. stop_ids: token ids that end a sequence beside the
    end-of-sequence ids of the checkpoint, which ignore_eos leaves out. timeout: seconds.
    """

    checkpoint: str
    prompts: Path
    output: Path
    runtime: str = "torch"
    devices: tuple[str, ...] = ("cpu",)
    settings: dict[str, Value] = field(default_factory=dict)
    max_new_tokens: int = 64
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    logprobs_mode: str = "raw_logprobs"
    stop_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    limit: int | None = None
    timeout: float = 3600.0
    on_event: Callable[[Event], None] = ignore


def freeze(manager: PluginManager, options: FreezeOptions) -> Rollout:
    """Sample the prompts, write the frozen rollout to options.output (which must not exist) and return it.

    Raises LaunchError where the engine does not run what options.settings ask for, for the manifest names them.
    Raises ExecutionError where options.output cannot be written: before an engine is started, as far as that can be
    known, and with the path of the finished sample where another program took the name meanwhile.
    """
    _check(options)
    if os.path.lexists(options.output):
        raise UsageError(
            f"{str(options.output)!r} exists", hint="A frozen rollout is never overwritten; name another folder."
        )
    prompts = read_prompts(options.prompts)[: options.limit]
    descriptor: RuntimeDescriptor = manager.runtime(options.runtime).record
    if not descriptor.generates:
        raise UsageError(f"the runtime {options.runtime!r} does not sample", hint="Use --runtime torch.")
    checkpoint = find_checkpoint(options.checkpoint, manager)
    check_vocabulary(prompts, checkpoint, options.prompts)
    check_length(prompts, checkpoint, options.max_new_tokens)
    with ExitStack() as stack:
        with _disk_errors(options.output):
            staging = stack.enter_context(staging_folder(options.output))
        sampled = _sample(manager, descriptor, checkpoint, prompts, options)
        rollout = _rollout(sampled, prompts, checkpoint, descriptor, options)
        with _disk_errors(options.output, staging):
            write_rollout(rollout, options.output, staging=staging)
    return rollout


@contextmanager
def _disk_errors(folder: Path, staging: Path | None = None) -> Iterator[None]:
    """Turn an OSError while `folder` is written into an ExecutionError; what is whole in `staging` is kept."""
    try:
        yield
    except OSError as error:
        kept = _kept(folder, staging) if staging is not None else None
        raise ExecutionError(
            f"the frozen rollout {str(folder)!r} could not be written: {error.strerror or error}",
            hint=f"The sample is whole in {str(kept)!r}: move it to where you want it."
            if kept is not None
            else "Name a new folder (--output) where you may write and that has space.",
        ) from error


def _kept(folder: Path, staging: Path) -> Path | None:
    """Return the new name beside `folder` under which the rollout in `staging` is kept; None if it is not whole."""
    name = folder.with_name(f"{folder.name}-{secrets.token_hex(4)}")
    try:
        read_rollout(staging)
        return staging.rename(name)
    except (OSError, IdentityError):
        return None


def _check(options: FreezeOptions) -> None:
    faults = []
    if options.max_new_tokens < 1:
        faults.append("max_new_tokens must be at least 1")
    if not 0 < options.temperature < math.inf:
        faults.append("temperature must be finite and above 0 (greedy sampling has no log probability to compare)")
    if not 0 < options.top_p <= 1:
        faults.append("top_p must be in (0, 1]")
    if options.top_k < 0:
        faults.append("top_k must be 0 (off) or positive")
    if options.logprobs_mode not in LOGPROBS_MODES:
        faults.append(f"logprobs_mode must be one of {', '.join(LOGPROBS_MODES)}")
    if not 0 <= options.seed <= LARGEST_SEED:
        faults.append(f"seed must be from 0 to {LARGEST_SEED}")
    if any(item < 0 for item in options.stop_ids):
        faults.append("stop_ids must be token ids from 0")
    if options.limit is not None and options.limit < 1:
        faults.append("limit must be at least 1")
    if faults:
        raise UsageError("; ".join(faults), hint="See `xcfg freeze --help`.")


def _sample(
    manager: PluginManager,
    descriptor: RuntimeDescriptor,
    checkpoint: Checkpoint,
    prompts: Sequence[dict[str, Any]],
    options: FreezeOptions,
) -> list[dict[str, Any]]:
    launch, request = _launch(manager, descriptor, checkpoint, prompts, options)
    gate = evidence_gate(launch.spec.knobs, launch.spec.operators, launch.spec.side, manager.knobs())
    with scratch_folder() as scratch:
        pool = WorkerPool(
            scratch, build_timeout=options.timeout, score_timeout=options.timeout, on_event=options.on_event
        )
        try:
            return pool.generate(launch, request, check=gate).generated.get(0, [])
        except EvidenceRefusedError as error:
            raise LaunchError(
                f"the engine does not run what was asked for: {error.message}",
                hint="Nothing was sampled. Leave the setting out (--set), or ask for what the engine runs.",
            ) from None
        finally:
            pool.close()


def _launch(
    manager: PluginManager,
    descriptor: RuntimeDescriptor,
    checkpoint: Checkpoint,
    prompts: Sequence[dict[str, Any]],
    options: FreezeOptions,
) -> tuple[LaunchSpec, ScoreRequest]:
    definitions = manager.knobs()
    for path in options.settings:
        if path in definitions and definitions[path].targets is Target.TRAINING:
            raise UsageError(
                f"{path!r} acts on the training side, and freeze runs the rollout side",
                hint=did_you_mean(
                    path.replace("training.", "rollout."),
                    [name for name, knob in definitions.items() if knob.targets is not Target.TRAINING],
                ),
            )
    knobs = side_knobs(complete_settings(options.settings, definitions, KNOB_PREFIXES), definitions, "rollout")
    refused = unsupported(descriptor, "rollout", knobs)
    placement = place(descriptor, "rollout", knobs, {}, options.devices)
    refused |= placement.unsupported
    if refused:
        raise UsageError(
            "; ".join(f"{path}: {why}" for path, why in sorted(refused.items())),
            hint="Change it with --set PATH=VALUE.",
        )
    catalog = SemanticOperatorCatalog.from_provided(manager.operator_backends(), runtimes=(descriptor.name,))
    context = resolution_context(descriptor, knobs, placement, strict=True, allow_smoke=False)
    choice = OperatorChoice(backend=str(knobs["logp.backend"]))
    session = OperatorSession(catalog, descriptor.policies)
    bindings = {"selected_logprob": session.resolve("selected_logprob", "rollout", choice, context)}
    launch = launch_spec(
        descriptor,
        "rollout",
        knobs=knobs,
        options={},
        placement=placement,
        bindings=bindings,
        checkpoint=checkpoint,
        definitions=definitions,
        seed=options.seed,
    )
    request = ScoreRequest(
        id="freeze",
        arm="recorded",
        knobs=request_knobs(knobs, definitions),
        generate={"prompts": list(prompts), **_sampling(options, checkpoint)},
    )
    return launch, request


def _sampling(options: FreezeOptions, checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the fields of a generate request beside the prompts."""
    return {
        "max_new_tokens": options.max_new_tokens,
        "temperature": options.temperature,
        "top_k": options.top_k,
        "top_p": options.top_p,
        "seed": options.seed,
        "logprobs_mode": options.logprobs_mode,
        "stop_ids": list(stop_ids(options, checkpoint)),
    }


def stop_ids(options: FreezeOptions, checkpoint: Checkpoint) -> tuple[int, ...]:
    """Return the token ids that end a sequence: those of the checkpoint unless they are ignored, and those given."""
    own = () if options.ignore_eos or checkpoint.folder is None else end_of_sequence_ids(checkpoint.folder)
    size = vocabulary_size(checkpoint.folder) if checkpoint.folder is not None else None
    beyond = [item for item in options.stop_ids if size is not None and item >= size]
    if beyond:
        raise UsageError(
            f"stop_ids: {beyond[0]} is no token id of {checkpoint.uri!r}",
            hint=f"Its vocabulary has {size} ids, from 0.",
        )
    return tuple(sorted({*own, *options.stop_ids}))


def _rollout(
    sampled: Sequence[dict[str, Any]],
    prompts: Sequence[dict[str, Any]],
    checkpoint: Checkpoint,
    descriptor: RuntimeDescriptor,
    options: FreezeOptions,
) -> Rollout:
    request = _sampling(options, checkpoint)
    check_answers(sampled, prompts, request)  # a program of the user's own need not have checked them
    heads = [list(item["prompt_ids"]) for item in sampled]
    tails = [list(item["token_ids"]) for item in sampled]
    ids = np.concatenate([np.asarray(head + tail, dtype=np.int64) for head, tail in zip(heads, tails, strict=True)])
    lengths = [len(head) + len(tail) for head, tail in zip(heads, tails, strict=True)]
    generated = np.concatenate([np.arange(length) >= len(head) for head, length in zip(heads, lengths, strict=True)])
    recorded = np.full(len(ids), np.nan, dtype=np.float32)
    recorded[generated] = np.concatenate([np.asarray(item["logprobs"], dtype=np.float32) for item in sampled])
    return make_rollout(
        {
            "token_ids": ids,
            "offsets": np.concatenate(([0], np.cumsum(lengths))),
            "active_mask": generated,
            "attention_mask": np.ones(len(ids), dtype=np.bool_),
            "position_ids": np.concatenate([np.arange(length) for length in lengths]),
            "selected_token_ids": ids,
            "segment": generated.astype(np.int8),
            "weight_version": np.zeros(len(ids), dtype=np.int32),
            "recorded_logprob": recorded,
        },
        checkpoint=CheckpointRef(uri=checkpoint.uri, digest=checkpoint.digest),
        tokenizer=_tokenizer(checkpoint, prompts),
        sampling=SamplingRecord(
            temperature=options.temperature,
            top_k=options.top_k,
            top_p=options.top_p,
            seed=options.seed,
            max_new_tokens=options.max_new_tokens,
            logprobs_mode=options.logprobs_mode,
            transform_chain=tuple(sampled[0]["transforms"]),
            extra={"stop_ids": request["stop_ids"]} if request["stop_ids"] else {},
        ),
        request_ids=[item.get("id", f"prompt-{index}") for index, item in enumerate(prompts)],
        attesters={
            "token_ids": "engine",
            "recorded_logprob": "engine",
            "masks": "manifest",
            "position_ids": "manifest",
            "tokenizer": "manifest",
        },
        generator={
            "runtime": descriptor.name,
            "settings": dict(options.settings),
            "finish_reasons": [item.get("finish_reason", "") for item in sampled],
        },
    )


def _tokenizer(checkpoint: Checkpoint, prompts: Sequence[dict[str, Any]]) -> TokenizerRef:
    if checkpoint.folder is None:
        return TokenizerRef(policy="token-ids")
    text = any("text" in prompt for prompt in prompts)
    found = tokenizer_digest(checkpoint.folder)
    return TokenizerRef(
        tokenizer_id=checkpoint.uri if found else "", digest=found, policy="add_special_tokens" if text else "token-ids"
    )
