"""The experiment file, v1 and v2 as people type them, and the one normalised form that the planner reads."""

from __future__ import annotations

from typing import Any, Literal

from xcfg.schema._base import Input, Record, Value
from xcfg.schema.knobs import Constraint
from xcfg.schema.operators import OperatorChoice

V1 = "cross_config.experiment_config.v1"
V2 = "cross_config.experiment_config.v2"
MAX_CASES = 256
MAX_CASES_LIMIT = 4096


class InlineIdentity(Input):
    """The identity of a v1 file, twelve keys: a small fixture as rectangular matrices [sequences, tokens].

    selected_token_ids[s][p] is the token at position p, scored from the logits at p - 1.
    """

    checkpoint_id: str
    model_version: str
    tokenizer_policy: str
    token_ids: list[list[int]]
    selected_token_ids: list[list[int]]
    active_mask: list[list[bool]]
    pre_update_state: str
    attention_mask: list[list[bool]]
    tokenizer_id: str = ""
    position_ids: list[list[int]] = []
    cache_metadata: dict[str, Any] = {}
    packing_metadata: dict[str, Any] = {}


class RolloutRef(Input):
    """A frozen rollout by path (relative to the experiment file) and the SHA-256 of its manifest."""

    path: str
    sha256: str


class FrozenIdentity(Input):
    """A v2 identity: a frozen rollout, and optionally another place of the same checkpoint."""

    rollout: RolloutRef
    checkpoint: str | None = None


class InterventionV1(Input):
    """Values of one knob that are tried beside the baseline."""

    path: str
    values: list[Value]


class InterventionV2(Input):
    """As v1; `side` sets a knob of both sides on one side only. Operator paths take ids or {backend, options}."""

    path: str
    values: list[Any]
    side: Literal["rollout", "training"] | None = None


class AlignInput(Input):
    """Make the group of knob `path` equal on both sides, to the value of `to`."""

    path: str
    to: Literal["rollout", "training", "reference"]


class ConstraintInput(Input):
    """A constraint as in KnobDefinition: a cell that matches `when` and not `require` is filtered."""

    code: str
    when: dict[str, list[Value]]
    require: dict[str, list[Value]] = {}
    reason: str = ""


class ControlsInput(Input):
    """Extra scorings of the baseline, how many of each; reference: score the precision budget.

    repeats: in its own process, while that lives. fresh_processes: in processes that have scored nothing. shuffled: in
    other batches. cold, warm: with the runtime's cache emptied, and filled by the same tokens. at_end: after all else.
    """

    repeats: int = 0
    fresh_processes: int = 0
    shuffled: int = 0
    cold: int = 0
    warm: int = 0
    at_end: int = 0
    reference: bool = True


class LimitsInput(Input):
    """max_cases: at most 4096, checked before the plan is expanded."""

    max_cases: int = MAX_CASES


class RuntimeOptionsInput(Input):
    """Verbatim engine arguments per side, inline."""

    rollout: dict[str, Any] = {}
    training: dict[str, Any] = {}


class ExperimentV1(Input):
    """`cross_config.experiment_config.v1`: the fields of the first version, unchanged."""

    schema_version: Literal["cross_config.experiment_config.v1"]
    experiment_id: str
    scenario_id: str
    identity: InlineIdentity
    baseline: dict[str, Any]
    contract_source: str = "ws1"
    contract_version: str = "current"
    strategy: Literal["one_at_a_time", "pairwise"] = "one_at_a_time"
    strict_fallback: bool = True
    interventions: list[InterventionV1] = []
    pairwise_paths: list[tuple[str, str]] = []
    operators: dict[str, dict[str, Any]] = {}
    scenario: dict[str, Any] = {}


class ExperimentV2(Input):
    """`cross_config.experiment_config.v2`: v1 plus plugin knobs and the optional fields of section 1."""

    schema_version: Literal["cross_config.experiment_config.v2"]
    experiment_id: str
    scenario_id: str
    identity: dict[str, Any]
    baseline: dict[str, Any]
    contract_source: str = "ws1"
    contract_version: str = "current"
    strategy: Literal["one_at_a_time", "pairwise", "product", "zip"] = "one_at_a_time"
    strict_fallback: bool = True
    interventions: list[InterventionV2] = []
    pairwise_paths: list[tuple[str, str]] = []
    operators: dict[str, dict[str, Any]] = {}
    scenario: dict[str, Any] = {}
    align: list[AlignInput] = []
    fixed: dict[str, Any] = {}
    constraints: list[ConstraintInput] = []
    slices: dict[str, dict[str, list[Any]]] = {}
    controls: ControlsInput = ControlsInput()
    limits: LimitsInput = LimitsInput()
    runtime_options: dict[str, Any] = {}
    requires: list[str] = []


class Axis(Record):
    """One varied path. `path` may be `operators.<op>.<side>`; `side` marks a one-sided setting."""

    path: str
    values: tuple[Any, ...]
    side: str | None = None

    @property
    def key(self) -> str:
        """The path as it stands in a delta: `batch.size`, or `batch.size@rollout` when one-sided."""
        return f"{self.path}@{self.side}" if self.side else self.path


class Align(Record):
    """A requested alignment, normalised."""

    path: str
    to: str


class Combination(Record):
    """Align entries that one case of a search applies together, and how often that case is scored once more.

    align: positions in the experiment's `align`, ascending; none is the production point.
    """

    align: tuple[int, ...] = ()
    repeats: int = 0


class ContractRef(Record):
    """Which numerical contract an experiment is judged by; digest is over its canonical JSON."""

    source: str
    version: str
    digest: str


class Experiment(Record):
    """A loaded experiment: same shape for v1 and v2; aliases not yet normalised, nested baseline flattened.

    base_dir: folder of the file, against which identity paths are resolved (not part of any id).
    combinations: set by a search, never by a file: the plan is the baseline and these, not the strategy's cells.
    """

    schema_version: str
    experiment_id: str
    scenario_id: str
    contract: ContractRef
    strategy: str
    strict_fallback: bool
    baseline: dict[str, Value]
    identity: InlineIdentity | FrozenIdentity
    base_dir: str = "."
    source: str = ""
    interventions: tuple[Axis, ...] = ()
    pairwise_paths: tuple[tuple[str, str], ...] = ()
    operators: dict[str, dict[str, OperatorChoice]] = {}
    scenario: dict[str, Any] = {}
    align: tuple[Align, ...] = ()
    fixed: dict[str, Any] = {}
    constraints: tuple[Constraint, ...] = ()
    slices: dict[str, dict[str, tuple[Any, ...]]] = {}
    controls: ControlsInput = ControlsInput()
    max_cases: int = MAX_CASES
    runtime_options: dict[str, dict[str, Any]] = {}
    requires: tuple[str, ...] = ()
    combinations: tuple[Combination, ...] = ()
