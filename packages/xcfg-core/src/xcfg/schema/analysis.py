"""The document of `xcfg analyze` and `xcfg minimize`: what explains a drift, and the smallest fix."""

from __future__ import annotations

from typing import Any

from xcfg.schema._base import Record
from xcfg.schema.gradient import GradientSummary
from xcfg.schema.minimization import Minimization
from xcfg.schema.result import AssessmentResult, Interval
from xcfg.schema.rules import Findings

ANALYSIS = "xcfg.analysis.v1"
OUTCOMES = {
    "CHANGES_GAP": "the gap between the sides changed, corrected over all tests that were made",
    "EXONERATED": "exercised, and the verdict edge is equal bit for bit or its change lies within the floor",
    "NO_CHANGE_SHOWN": "the side moved; no change of the gap was shown, and none as large as the interval is excluded",
    "BELOW_RESOLUTION": "the change is no larger than what repeating the baseline gives",
    "NOT_EXERCISED": "the case could not have shown an effect, or nobody knows whether it could",
    "COUPLED_WITH_OTHER_FACTORS": "something that the case does not declare changed with it",
    "OUTSIDE_THE_KNOBS": "case and baseline ran in unequal surroundings, so the change is nobody's",
    "NOT_COMPARABLE": "it ran, and its status forbids to hold it against the baseline: identity, scores or contract",
    "VARIANT_DID_NOT_APPLY": "there are no figures: the setting did not run, or the case failed",
    "INSUFFICIENT_EVIDENCE": "too few sequences carry the change for an interval",
}
"""What the effect of a case can be."""


class TokenEvidence(Record):
    """One token that shows a fault; both log probabilities as recorded, nats."""

    sample_id: str
    position: int
    token_id: int
    training: float
    rollout: float


class SignatureFinding(Record):
    """A fault that was recognised, by the name of its signature.

    confidence: 1 minus the larger of two probabilities: of such a fit on these tokens without the fault, and of such
    a share of the drift on natural bfloat16 drift. effect: nats that the form takes away on the tokens concerned
    (root mean square), with a 95 % cluster bootstrap over sequences. explained: share of the squared drift that is
    gone when the form is taken away; findings are named in the order in which they were taken.
    """

    name: str
    confidence: float
    where: str
    says: str = ""
    effect: Interval | None = None
    explained: float | None = None
    parameters: dict[str, float] = {}
    tokens: int = 0
    evidence: tuple[TokenEvidence, ...] = ()
    fix: str = ""
    next_command: str = ""
    refuted_by: str = ""


class UnansweredSignature(Record):
    """A signature that could not be tried on this dump, and what it would need."""

    name: str
    reason: str


class View(Record):
    """The drift by one property of the tokens. spread: largest over smallest rms of the rows with enough tokens."""

    by: str
    spread: float
    rows: tuple[dict[str, Any], ...] = ()


class Cause(Record):
    """A knob that was found to change the gap.

    effect: change of `quantity` between case and baseline, nats or nats^2; negative where the gap shrinks.
    evidence: ids of the cases. value: what the case sets the knob to. p_value: corrected over the family. diagnosis:
    empty where the change opens the gap further than production has it, or closes it in a run of profiles.
    """

    knob: str
    side: str
    diagnosis: str
    effect: float | None = None
    interval: Interval | None = None
    evidence: tuple[str, ...] = ()
    value: Any = None
    quantity: str = ""
    direction: str = ""
    p_value: float | None = None
    says: str = ""
    refuted_by: str = ""


class Movement(Record):
    """How far one arm of a case lies from the same arm of the baseline, over active tokens, nats.

    differing: tokens whose bits differ. rms: root mean square over all active tokens, 0 where the bits are equal.

    of_logits, of_sum: rms of what the logits moved and of what the sum behind them rounded otherwise, which add up to
    the movement of each token; None unless both scores have the column exact_logprob.
    """

    arm: str
    tokens: int
    differing: int
    mean_abs: float
    rms: float
    max_abs: float
    of_logits: float | None = None
    of_sum: float | None = None


class GapChange(Record):
    """One quantity of the verdict edge, case against baseline: mean d^2 (nats^2), mean |d| (nats) or k3.

    change: difference of the token means with its interval; None where there are too few sequences. p_value: of no
    change; p_adjusted: after Holm's correction over all changes of the analysis.
    """

    quantity: str
    baseline: float
    case: float
    change: Interval | None = None
    p_value: float | None = None
    p_adjusted: float | None = None


class Effect(Record):
    """What one case shows. outcome: one of OUTCOMES.

    knobs: axis keys that the case changes. yardstick: the smaller of its own and the baseline's threshold, nats; over,
    baseline_over: tokens over it. movement: of arms that were scored anew. reason: why the outcome is what it is.
    """

    case_id: str
    label: str
    knobs: tuple[str, ...]
    side: str
    outcome: str
    reason: str = ""
    direction: str = ""
    exercised: str = ""
    yardstick: float | None = None
    over: int | None = None
    baseline_over: int | None = None
    tokens: int = 0
    movement: tuple[Movement, ...] = ()
    gap: tuple[GapChange, ...] = ()
    coupled: tuple[str, ...] = ()


class Interaction(Record):
    """What knobs do together beyond what each does alone: (both - second) - (first - baseline), of mean d^2.

    Of a case with more than two changes: the case less all its single changes. among: the pairs of its knobs; what they
    do is measured as one sum, and this case tells them apart no further. Empty where the two knobs are the pair.
    """

    knobs: tuple[str, ...]
    cases: tuple[str, ...]
    change: Interval | None = None
    p_value: float | None = None
    p_adjusted: float | None = None
    outcome: str = ""
    among: tuple[tuple[str, str], ...] = ()


class Floor(Record):
    """What a control of the baseline, asked for nothing new, differs by.

    kind: repeat, fresh, shuffled, cold, warm, at_end. status: measured, not_planned, or why there is no figure.
    movement: the largest by arm. gap: quantity -> largest |change|. own_process: whether its processes are what the
    kind asks for (the baseline's for a repeat, others for fresh); None where no process said its id. finding: what is
    wrong with it.
    """

    kind: str
    status: str
    cases: tuple[str, ...] = ()
    movement: tuple[Movement, ...] = ()
    gap: dict[str, float] = {}
    own_process: bool | None = None
    reason: str = ""
    finding: str = ""


class Analysis(Record):
    """`xcfg analyze --json`, `xcfg minimize --json`; the lists that belong to runs are empty for a dump.

    status: of the comparison (schema.names.Status), for a run of its baseline. figures: the numbers other stacks chart,
    by their names with the reducer at the end. insufficient_data: signatures that lacked a column.

    For a run: exonerated, not_exercised, below_resolution, unresolved, not_measured and not_comparable are axis keys;
    unresolved are knobs that move their side while no change of the gap was shown. outside: what no knob explains.
    not_varied: where the cause of an excess was not found, settings in which the sides differ and that no case varies.
    gradients: label -> arm -> the gradient that a case's score looked at, which nothing judges.
    swaps: one entry per operation and backend that a case puts in the place of native, on one side or on both.
    resolution: quantity -> the largest floor, empty without a control. evidence: experiment digest, baseline case and
    attempt. families: how many tests each correction was made over. rules: the alignment ladder, whose level is
    `ladder_level`, the interpretation and decision rules, and how severe the downstream series say it is.
    minimal_sets, left_enabled: of the cases that were run, by the threshold, where production fails. minimization: the
    sets among them by an objective that production fails; None where it needs none, and for a run of profiles.
    next_step: in words, what to do and why; next_command: a command of this machine that can be pasted, or empty; where
    it freezes new tokens, prompts.jsonl stands for prompts of the reader's.
    signatures, fitted_tokens, insufficient_data: of the verdict's edge of the production point.
    """

    schema_version: str
    conclusion: str
    ladder_level: str = ""
    assessment: str = ""
    causes: tuple[Cause, ...] = ()
    exonerated: tuple[str, ...] = ()
    not_exercised: tuple[str, ...] = ()
    below_resolution: tuple[str, ...] = ()
    interactions: tuple[Interaction, ...] = ()
    minimal_sets: tuple[tuple[str, ...], ...] = ()
    left_enabled: tuple[str, ...] = ()
    not_alignable: tuple[str, ...] = ()
    signatures: tuple[SignatureFinding, ...] = ()
    next_command: str = ""
    exit_code: int = 0
    status: str = ""
    reason: str = ""
    source: tuple[str, ...] = ()
    recognised: str = ""
    tokens: int = 0
    sequences: int = 0
    fitted_tokens: int = 0
    threshold: float | None = None
    mismatches: int = 0
    unattested: tuple[str, ...] = ()
    figures: dict[str, float | None] = {}
    views: tuple[View, ...] = ()
    insufficient_data: tuple[UnansweredSignature, ...] = ()
    experiment_id: str = ""
    runtimes: dict[str, str] = {}
    contract: dict[str, str] = {}
    evidence: dict[str, str] = {}
    assessed: AssessmentResult | None = None
    floors: tuple[Floor, ...] = ()
    resolution: dict[str, float] = {}
    effects: tuple[Effect, ...] = ()
    families: dict[str, int] = {}
    unresolved: tuple[str, ...] = ()
    not_measured: tuple[str, ...] = ()
    not_comparable: tuple[str, ...] = ()
    outside: tuple[str, ...] = ()
    not_varied: tuple[str, ...] = ()
    findings: tuple[str, ...] = ()
    refuted_by: str = ""
    swaps: tuple[Cause, ...] = ()
    gradients: dict[str, dict[str, GradientSummary]] = {}
    minimization: Minimization | None = None
    rules: Findings | None = None
    next_step: str = ""
