"""The document of `xcfg analyze` and `xcfg minimize`: what explains a drift, and the smallest fix."""

from __future__ import annotations

from typing import Any

from xcfg.schema._base import Record
from xcfg.schema.minimization import Minimization
from xcfg.schema.result import Interval

ANALYSIS = "xcfg.analysis.v1"


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
    """A knob that was found to change the gap."""

    knob: str
    side: str
    diagnosis: str
    effect: float | None = None
    interval: Interval | None = None
    evidence: tuple[str, ...] = ()


class Analysis(Record):
    """`xcfg analyze --json`, `xcfg minimize --json`; the lists that belong to runs are empty for a dump.

    status: of the comparison (schema.names.Status). figures: the numbers other stacks chart, by their names with the
    reducer at the end. insufficient_data: signatures that lacked a column.
    """

    schema_version: str
    conclusion: str
    ladder_level: str = ""
    assessment: str = ""
    causes: tuple[Cause, ...] = ()
    exonerated: tuple[str, ...] = ()
    not_exercised: tuple[str, ...] = ()
    below_resolution: tuple[str, ...] = ()
    interactions: tuple[dict[str, Any], ...] = ()
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
    minimization: Minimization | None = None
