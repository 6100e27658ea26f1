"""From a planned case to the side scores it needs, or the reason why it cannot be honoured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from xcfg.errors import UsageError
from xcfg.flow.checkpoints import Checkpoint
from xcfg.flow.defaults import with_defaults
from xcfg.flow.injection import ENGINES_OWN, injection
from xcfg.flow.inputs import Loaded
from xcfg.flow.launching import launch_spec, place, resolution_context
from xcfg.flow.options import RunOptions
from xcfg.flow.runtimes import Runtimes
from xcfg.operators import OperatorResolutionError, OperatorSession, SemanticOperatorCatalog
from xcfg.plugin.builtin.knobs import LOGP_BACKEND
from xcfg.plugin.manager import PluginManager
from xcfg.plugin.readback import ATTENTION, HEAD, attention_path
from xcfg.running.external import EXTERNAL, programs
from xcfg.running.launch import LaunchSpec
from xcfg.runtime.environment import scoring_environment
from xcfg.runtime.keys import score_facts, score_key
from xcfg.runtime.option_knobs import asked_options, not_injected, option_conflicts, with_options, without_choice
from xcfg.runtime.sides import request_knobs, side_knobs, unsupported
from xcfg.schema._base import Value
from xcfg.schema.knobs import KnobDefinition
from xcfg.schema.names import Arm, Role, Side
from xcfg.schema.operators import OperatorBinding, OperatorChoice
from xcfg.schema.plan import ExperimentCase
from xcfg.schema.runtime import Placement, RuntimeDescriptor
from xcfg.schema.worker import ScoreRequest

RECORDED_RUNTIME = "recorded"
SELECTED_LOGPROB = "selected_logprob"
MODEL_DEFAULT = "model_default"
CACHES = (Role.COLD.value, Role.WARM.value)


@dataclass(frozen=True)
class ScoreJob:
    """One side score to be had: from the store, from a worker, or (recorded) from the rollout itself.

    table: its name in a case, safe as part of a file name: the arm, or `plain_sdpa_bfloat16` and the like.
    """

    key: str
    facts: dict[str, Any]
    arm: str
    table: str
    side: str
    knobs: dict[str, Value]
    bindings: dict[str, OperatorBinding]
    launch: LaunchSpec | None
    request: ScoreRequest
    label: str


@dataclass(frozen=True)
class PreparedCase:
    """A case with its jobs by arm, or with the reason why there are none.

    reference: jobs of the precision budget, by table (`plain_eager_float32`, `plain_sdpa_bfloat16`).
    """

    case: ExperimentCase
    jobs: dict[str, ScoreJob] = field(default_factory=dict)
    reference: dict[str, ScoreJob] = field(default_factory=dict)
    unsupported: dict[str, str] = field(default_factory=dict)
    verdict_arm: str = ""

    @property
    def keys(self) -> list[str]:
        """Keys of every side score that the case needs, verdict arms first."""
        return [job.key for job in (*self.jobs.values(), *self.reference.values())]


class Preparer:
    """Turns cases into jobs; holds what is equal for all cases of one run."""

    def __init__(
        self,
        loaded: Loaded,
        manager: PluginManager,
        options: RunOptions,
        runtimes: Runtimes,
        checkpoint: Checkpoint,
        rollout_folder: str,
    ) -> None:
        """Keep what every case shares; nothing is started."""
        self.loaded, self.options, self.runtimes = loaded, options, runtimes
        self.checkpoint, self.rollout_folder = checkpoint, rollout_folder
        self.definitions: dict[str, KnobDefinition] = manager.knobs()
        self.backends = manager.operator_backends()
        self.devices = {
            "rollout": options.rollout_devices,
            "training": options.training_devices,
            "reference": options.training_devices,
        }

    @cached_property
    def verdict_arm(self) -> str:
        """rollout_decode where the rollout runtime replays, else rollout_prefill; fixed for the experiment."""
        descriptor = self.runtimes.rollout
        decode = descriptor.forced_replay and Arm.ROLLOUT_DECODE.value in descriptor.arms["rollout"]
        return Arm.ROLLOUT_DECODE.value if decode else Arm.ROLLOUT_PREFILL.value

    def prepare(self, case: ExperimentCase) -> PreparedCase:
        """Return the jobs of `case`; a value that a runtime cannot honour makes the case unsupported."""
        reasons: dict[str, str] = {}
        jobs: dict[str, ScoreJob] = {}
        for side in ("training", "rollout"):
            descriptor = self.runtimes.of(side)
            knobs = _derived(side_knobs(case.knobs, self.definitions, side), case, side, descriptor)
            knobs = self._asked(case, side, descriptor, knobs, reasons)
            options = {path for path in knobs if self.definitions[path].option_of}
            mine = {path: value for path, value in knobs.items() if path not in options}
            refused = unsupported(descriptor, side, mine)
            reasons.update(with_defaults(refused, side, case, self.loaded.experiment, descriptor, self.definitions))
            if reasons:
                continue
            placement = self._place(descriptor, side, knobs, case.runtime_options.get(side, {}))
            reasons.update(placement.unsupported)
            bindings = self._bind(case, side, descriptor, knobs, placement, reasons)
            if reasons:
                continue
            for arm in self._arms(side):
                jobs[arm] = self._job(case, descriptor, side, arm, knobs, placement, bindings)
        if case.role in CACHES and (lacking := self._lacks_cache(case)):
            reasons[f"controls.{case.role}"] = lacking
        if not reasons and self.verdict_arm not in jobs:
            reasons["rollout"] = f"the runtime cannot supply the verdict arm {self.verdict_arm}"
        if reasons:
            return PreparedCase(case=case, unsupported=reasons, verdict_arm=self.verdict_arm)
        self._add_recorded(jobs)
        return PreparedCase(case=case, jobs=jobs, reference=self._reference(case), verdict_arm=self.verdict_arm)

    def _lacks_cache(self, case: ExperimentCase) -> str:
        """Return why a control of the cache has nothing to act on; empty where a side keeps one."""
        sides = [(self.runtimes.of(side), side) for side in ("rollout", "training")]
        if any(_keeps_cache(descriptor, case.knobs, side) for descriptor, side in sides):
            return ""
        off = [f"{item.cache} is off, so {item.name} keeps nothing between requests" for item, _ in sides if item.cache]
        return "; ".join(off) or "neither runtime declares a cache that outlives one request"

    def _arms(self, side: str) -> tuple[str, ...]:
        return self.runtimes.of(side).arms[side]

    def _place(
        self, descriptor: RuntimeDescriptor, side: str, knobs: Mapping[str, Value], options: Mapping[str, Any]
    ) -> Placement:
        return place(descriptor, side, knobs, options, self.devices[side])

    def _asked(
        self,
        case: ExperimentCase,
        side: str,
        descriptor: RuntimeDescriptor,
        knobs: dict[str, Value],
        reasons: dict[str, str],
    ) -> dict[str, Value]:
        """Return `knobs` without the options of operators that this side is not asked for."""
        if not any(self.definitions[path].option_of for path in knobs):
            return knobs
        reasons.update(not_injected(knobs, self.definitions, descriptor))
        reasons.update(without_choice(knobs, self.definitions, descriptor, case.operators))
        catalog = SemanticOperatorCatalog.from_provided(self.backends, runtimes=(descriptor.name,))
        kept = {path: value for path, value in knobs.items() if not self.definitions[path].option_of}
        for operation, choices in case.operators.items():
            if operation not in descriptor.operators:
                continue
            choice = choices[side]
            named = descriptor.policies.get(operation, {}).get(
                "production" if choice.backend in ENGINES_OWN else choice.backend, choice.backend
            )
            entry = catalog.find(operation, named)
            asked = asked_options(knobs, self.definitions, operation, entry.descriptor if entry is not None else None)
            reasons.update(option_conflicts(choice, asked))
            kept |= asked
        return kept

    def _bind(
        self,
        case: ExperimentCase,
        side: str,
        descriptor: RuntimeDescriptor,
        knobs: Mapping[str, Value],
        placement: Placement,
        reasons: dict[str, str],
    ) -> dict[str, OperatorBinding]:
        catalog = SemanticOperatorCatalog.from_provided(self.backends, runtimes=(descriptor.name,))
        session = OperatorSession(catalog, descriptor.policies)
        context = resolution_context(
            descriptor,
            knobs,
            placement,
            strict=self.loaded.experiment.strict_fallback,
            allow_smoke=self.options.allow_smoke,
        )
        bound = {}
        for operation, choices in case.operators.items():
            outside = injection(descriptor, operation, choices[side].backend)
            if outside is not None:
                if not outside.ok:
                    reasons[f"operators.{operation}.{side}"] = outside.detail
                continue
            asked = {path: value for path, value in knobs.items() if self.definitions[path].option_of == operation}
            try:
                bound[operation] = session.resolve(operation, side, with_options(choices[side], asked), context)
            except OperatorResolutionError as error:
                reasons[f"operators.{operation}.{side}"] = error.message
        return bound

    def _job(
        self,
        case: ExperimentCase,
        descriptor: RuntimeDescriptor,
        side: str,
        arm: str,
        knobs: dict[str, Value],
        placement: Placement,
        bindings: dict[str, OperatorBinding],
        table: str = "",
    ) -> ScoreJob:
        table = table or arm
        options = case.runtime_options.get(side, {})
        launch = launch_spec(
            descriptor,
            side,
            knobs=knobs,
            options=options,
            placement=placement,
            bindings=bindings,
            checkpoint=self.checkpoint,
            definitions=self.definitions,
            rollout=self.rollout_folder,
            fresh=case.role == Role.FRESH.value,
            last=case.role == Role.AT_END.value,
            memory_budget=self.options.memory_budget,
        )
        facts = score_facts(
            runtime=descriptor.name,
            side=side,
            arm=arm,
            role=case.role,
            index=case.index,
            knobs=knobs,
            options=options,
            bindings=bindings,
            checkpoint=self.checkpoint.digest,
            rollout=self.loaded.rollout.sha256,
            placement=placement,
            columns=self.options.columns,
            environment=scoring_environment(
                sources=tuple(descriptor.sources),
                devices=tuple(placement.devices),
                programs=programs(placement.command, options if descriptor.name == EXTERNAL.name else {}),
            ),
        )
        key = score_key(facts)
        request = ScoreRequest(
            id=key[:16],
            arm=arm,
            knobs=request_knobs(knobs, self.definitions),
            columns=self.options.columns,
            shuffle_seed=case.index + 1 if case.role == Role.SHUFFLED.value else None,
            cache=case.role if case.role in CACHES and _keeps_cache(descriptor, knobs, side) else "",
        )
        label = f"{case.label} · {arm}" if table == arm else table
        return ScoreJob(key, facts, arm, table, side, knobs, bindings, launch, request, label)

    def _add_recorded(self, jobs: dict[str, ScoreJob]) -> None:
        rollout = self.loaded.rollout
        if "recorded_logprob" not in rollout.tensors:
            return
        facts = {"runtime": RECORDED_RUNTIME, "arm": Arm.RECORDED.value, "rollout": rollout.sha256}
        key = score_key(facts)
        request = ScoreRequest(id=key[:16], arm=Arm.RECORDED.value)
        jobs[Arm.RECORDED.value] = ScoreJob(
            key, facts, Arm.RECORDED.value, Arm.RECORDED.value, Side.ROLLOUT.value, {}, {}, None, request, "recorded"
        )

    def _reference(self, case: ExperimentCase) -> dict[str, ScoreJob]:
        """Return the jobs of the precision budget: one precise score, and plain eager and sdpa per compute dtype.

        Where they cannot be scored there is no budget and the event says why; the case itself loses nothing.
        """
        descriptor = self.runtimes.reference
        if descriptor is None or not self.loaded.plan.reference or self.checkpoint.folder is None:
            return {}
        dtypes = sorted({str(case.knobs["rollout.dtype"]), str(case.knobs["training.compute_dtype"])})
        precise = "float64" if "float32" in dtypes else "float32"
        wanted = [(precise, "eager"), *((dtype, attention) for dtype in dtypes for attention in ("eager", "sdpa"))]
        try:
            jobs = [self._reference_job(descriptor, dtype, attention) for dtype, attention in wanted]
        except UsageError as error:
            self.options.on_event({"event": "no_reference", "label": case.label, "reason": error.message})
            return {}
        return {job.table: job for job in jobs}

    def _reference_job(self, descriptor: RuntimeDescriptor, dtype: str, attention: str) -> ScoreJob:
        name = f"plain_{attention}_{dtype}"
        knobs: dict[str, Value] = {
            "batch.size": 1,
            "training.attention_backend": attention,
            "training.compute_dtype": dtype,
        }
        side = Side.REFERENCE.value
        placement = self._place(descriptor, side, knobs, {})
        # A plain score rounds like anybody's float32 log-softmax; only the float64 score may be better than that.
        choice = OperatorChoice(backend="reference" if dtype == "float64" else "production")
        stand_in = ExperimentCase(
            case_id="", label=name, knobs=knobs, delta={}, operators={SELECTED_LOGPROB: {side: choice}}
        )
        reasons = dict(placement.unsupported)
        bindings = self._bind(stand_in, side, descriptor, knobs, placement, reasons)
        if reasons:
            raise UsageError(
                f"the precision budget cannot be scored: {reasons}",
                hint="Set controls.reference to false to do without.",
            )
        return self._job(stand_in, descriptor, side, Arm.REFERENCE.value, knobs, placement, bindings, table=name)


def _keeps_cache(descriptor: RuntimeDescriptor, knobs: Mapping[str, Value], side: str) -> bool:
    """Whether the runtime keeps a cache from one request to the next under these knobs, of a side or of a case."""
    return bool(descriptor.cache) and knobs.get(f"{descriptor.cache}@{side}", knobs.get(descriptor.cache)) is True


def _derived(
    knobs: dict[str, Value], case: ExperimentCase, side: str, descriptor: RuntimeDescriptor
) -> dict[str, Value]:
    """Return `knobs` as the operator mapping has them: the mapping is what is executed.

    logp.backend follows it; an engine that takes no operator and is asked for its own has nothing to set and nothing
    to read back. An attention backend that is left to the model is not asked for where another one is injected, nor is
    the engine's own log probability where an operator takes its place together with the head's.
    """
    knobs = _without_default_attention(knobs, case, side, descriptor)
    choice = case.operators.get(SELECTED_LOGPROB, {}).get(side)
    if choice is None or LOGP_BACKEND not in knobs:
        return knobs
    unasked = SELECTED_LOGPROB not in descriptor.operators or _injects(HEAD, case, side, descriptor)
    if unasked and choice.backend in ENGINES_OWN:
        return {path: value for path, value in knobs.items() if path != LOGP_BACKEND}
    return {**knobs, LOGP_BACKEND: choice.backend}


def _without_default_attention(
    knobs: dict[str, Value], case: ExperimentCase, side: str, descriptor: RuntimeDescriptor
) -> dict[str, Value]:
    injected = _injects(ATTENTION, case, side, descriptor)
    path = attention_path(side)
    return {name: value for name, value in knobs.items() if not injected or (name, value) != (path, MODEL_DEFAULT)}


def _injects(operation: str, case: ExperimentCase, side: str, descriptor: RuntimeDescriptor) -> bool:
    choice = case.operators.get(operation, {}).get(side)
    return choice is not None and choice.backend not in ENGINES_OWN and operation in descriptor.operators
