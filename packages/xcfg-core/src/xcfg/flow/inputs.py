"""The start of every journey: experiment file, numerical contract, frozen rollout, plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from xcfg.config import load_experiment
from xcfg.contract import Contract, load_contract
from xcfg.errors import IdentityError, NothingSelectedError, UsageError
from xcfg.flow.operators import check_operators
from xcfg.identity.rollout import Rollout, make_rollout, read_rollout
from xcfg.planning import plan_experiment, select_cases, slice_issues
from xcfg.plugin._resolve import resolve
from xcfg.plugin.known import KNOB_PREFIXES
from xcfg.plugin.manager import PluginManager
from xcfg.plugin.protocols import ProfileExpander
from xcfg.schema.codec import digest, evolve, plain
from xcfg.schema.experiment import Combination, ControlsInput, Experiment, FrozenIdentity, InlineIdentity
from xcfg.schema.identity import CheckpointRef, IdentityDigests, TokenizerRef
from xcfg.schema.plan import ExperimentCase, ExperimentPlan, PlanIssue


@dataclass(frozen=True)
class Selection:
    """Which cases of a plan a command wants. The baseline always stays: other cases are read against it."""

    filter: str | None = None
    slice: str | None = None
    axes: tuple[str, ...] = ()
    profile: str | None = None


@dataclass(frozen=True)
class Loaded:
    """Everything a journey starts from; nothing has been started yet."""

    experiment: Experiment
    contract: Contract
    rollout: Rollout
    plan: ExperimentPlan
    all_cases: int


def load_inputs(
    file: Path,
    manager: PluginManager,
    selection: Selection | None = None,
    *,
    combinations: Sequence[Combination] = (),
    root: Path | None = None,
) -> Loaded:
    """Return the loaded and planned experiment. Raises UsageError, IdentityError, NothingSelectedError.

    combinations: plan the baseline and these combinations of align entries in place of what the file asks for.
    root: the folder of runs, where a profile may look for what earlier cases said; None when nothing is to run.
    """
    experiment = load_experiment(file)
    for requirement in experiment.requires:
        manager.require_plugin(requirement)
    contract = load_contract(experiment.contract.source, experiment.contract.version)
    experiment = evolve(experiment, contract=contract.ref)
    if combinations:
        none = ControlsInput(reference=experiment.controls.reference)
        experiment = evolve(experiment, combinations=tuple(combinations), controls=none)
    rollout = rollout_of(experiment)
    digests = identity_digests(rollout)
    plan = plan_experiment(experiment, manager.knobs(), digests, providers=KNOB_PREFIXES)
    plan = evolve(plan, issues=(*plan.issues, *slice_issues(plan, experiment, manager.knobs())))
    slices: tuple[str, ...] = ("",)
    if selection is not None and selection.profile is not None:
        experiment, slices, issues = _profiled(experiment, plan, manager, selection, root)
        plan = plan_experiment(experiment, manager.knobs(), digests, providers=KNOB_PREFIXES)
        plan = evolve(plan, issues=(*plan.issues, *issues))
    check_operators(experiment, manager)
    count = len(plan.cases)
    if selection is not None:
        plan = evolve(plan, cases=_selected(plan, experiment, manager, selection, slices))
    if not plan.cases:
        raise NothingSelectedError("no case is left to run", hint=f"The plan has {count} cases; see `xcfg plan`.")
    return Loaded(experiment, contract, rollout, plan, count)


def _profiled(
    experiment: Experiment, plan: ExperimentPlan, manager: PluginManager, selection: Selection, root: Path | None
) -> tuple[Experiment, tuple[str, ...], tuple[PlanIssue, ...]]:
    """Return what the profile stands for: experiment, slices, issues. Raises UsageError, NothingSelectedError."""
    provided = manager.profile(selection.profile or "")
    profile = provided.record
    if not profile.factory:
        raise UsageError(f"the profile {profile.name!r} of {provided.plugin!r} is only listed: it expands nothing")
    if selection.slice is not None:
        raise UsageError(
            "--profile and --slice exclude each other",
            hint="A profile plans cases and slices of its own; choose among them with --filter or --axis.",
        )
    expand: ProfileExpander = resolve(profile.factory, owner=provided.plugin)
    return expand(profile, experiment, plan.cases[0], manager.knobs(), root)


def _selected(
    plan: ExperimentPlan,
    experiment: Experiment,
    manager: PluginManager,
    selection: Selection,
    slices: tuple[str, ...],
) -> tuple[ExperimentCase, ...]:
    """Return the chosen cases, of any of `slices`; the baseline stays in front, for the others are read against it."""
    found: set[str] = set()
    nothing: NothingSelectedError | None = None
    for name in slices:
        try:
            chosen = select_cases(
                plan,
                experiment=experiment,
                knobs=manager.knobs(),
                slice_name=name or selection.slice or "",
                filter_expression=selection.filter or "",
                axes=selection.axes,
            )
        except NothingSelectedError as error:
            nothing = nothing or error
        else:
            found.update(case.case_id for case in chosen)
    if nothing is not None and not found:
        raise nothing
    baseline = plan.cases[0]
    return tuple(case for case in plan.cases if case is baseline or case.case_id in found)


def rollout_of(experiment: Experiment) -> Rollout:
    """Return the frozen rollout that the experiment names, or its inline matrices in the same form."""
    identity = experiment.identity
    if isinstance(identity, FrozenIdentity):
        folder = Path(experiment.base_dir) / identity.rollout.path
        rollout = read_rollout(folder, sha256=identity.rollout.sha256)
        if identity.checkpoint is None:
            return rollout
        moved = evolve(rollout.manifest, checkpoint=evolve(rollout.manifest.checkpoint, uri=identity.checkpoint))
        return Rollout(moved, rollout.tensors, rollout.sha256, rollout.path)
    return inline_rollout(identity)


def inline_rollout(identity: InlineIdentity) -> Rollout:
    """Return inline matrices as a frozen rollout; tokens that attention_mask hides are padding and dropped."""
    keep = np.asarray(identity.attention_mask, dtype=np.bool_)
    count, width = keep.shape
    positions = (
        np.asarray(identity.position_ids, dtype=np.int64)
        if identity.position_ids
        else np.maximum(np.cumsum(keep, axis=1) - 1, 0)
    )
    active = np.asarray(identity.active_mask, dtype=np.bool_)
    if bool((active & ~keep).any()):
        raise IdentityError(
            "the inline identity is not valid: active_mask marks a position that attention_mask hides",
            hint="A hidden position is padding: make it inactive, or attend to it.",
        )
    first = np.argmax(active, axis=1)
    generated = np.arange(width)[None, :] >= np.where(active.any(axis=1), first, width)[:, None]

    def flat(matrix: object) -> np.ndarray:
        return np.asarray(matrix)[keep]

    tensors = {
        "token_ids": flat(identity.token_ids),
        "offsets": np.concatenate(([0], np.cumsum(keep.sum(axis=1)))),
        "active_mask": flat(active),
        "attention_mask": np.ones(int(keep.sum()), dtype=np.bool_),
        "position_ids": flat(positions),
        "selected_token_ids": flat(identity.selected_token_ids),
        "segment": flat(generated.astype(np.int8)),
        "weight_version": np.zeros(int(keep.sum()), dtype=np.int32),
    }
    return make_rollout(
        tensors,
        checkpoint=CheckpointRef(uri=identity.checkpoint_id, model_version=identity.model_version),
        tokenizer=TokenizerRef(tokenizer_id=identity.tokenizer_id, policy=identity.tokenizer_policy),
        request_ids=[f"row-{index}" for index in range(count)],
        pre_update_state=identity.pre_update_state,
        cache_metadata=identity.cache_metadata,
        packing_metadata=identity.packing_metadata,
        attesters={"tokenizer": "manifest", "masks": "manifest", "weights": "engine", "token_ids": "engine"},
    )


def identity_digests(rollout: Rollout) -> IdentityDigests:
    """Return the digests that stand for the logical problem in every case id: no path enters."""
    manifest = rollout.manifest
    checkpoint = manifest.checkpoint
    named = {"model_version": checkpoint.model_version, "weight_version": checkpoint.weight_version}
    return IdentityDigests(
        rollout=rollout.sha256,
        checkpoint=checkpoint.digest or digest({"uri": checkpoint.uri, **named}),
        tokenizer=digest(plain(manifest.tokenizer)),
        sampling=digest(plain(manifest.sampling)),
    )
