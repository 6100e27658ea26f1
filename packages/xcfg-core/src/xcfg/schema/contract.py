"""The numerical contract as a value: what the loader in `xcfg.contract` returns and the comparator judges by.

The figures themselves live in one packaged data file; no field, flag, axis or option changes them.
"""

from __future__ import annotations

from xcfg.schema._base import Record
from xcfg.schema.experiment import ContractRef

CONTRACT_SCHEMA = "xcfg.numerical_contract.v1"
COUNTS_AS = {"float64": "float32"}
"""Compute dtypes that are judged by another entry: a float64 side is held to the float32 figure."""


class Tolerance(Record, forbid_unknown_fields=True):
    """|a - b| <= atol + rtol |b|. source: where the figure stands; provenance: what it was measured on."""

    atol: float
    rtol: float
    source: str
    provenance: str


class Accuracy(Record, forbid_unknown_fields=True):
    """Operator class -> dtype -> tolerance, forward (`default`) and backward (`gradients`)."""

    default: dict[str, dict[str, Tolerance]]
    gradients: dict[str, dict[str, Tolerance]]


class ChainAggregate(Record, forbid_unknown_fields=True):
    """Limits of one aggregate of the whole scoring chain by dtype; printed, never a verdict."""

    limits: dict[str, float]
    source: str
    provenance: str


class ClipRange(Record, forbid_unknown_fields=True):
    """The interval of exp(d) outside which a token would be clipped before any update."""

    low: float
    high: float
    source: str
    provenance: str


class AssessmentRule(Record, forbid_unknown_fields=True):
    """Limits of the precision budget (contract, section 4) and how its intervals are made.

    ratio: of an error to its rounding budget. bias: of mean d to the larger budget. resamples, level, seed:
    of the cluster bootstrap. min_sequences: fewer give no interval. provenance: field -> text.
    """

    ratio: float
    bias: float
    resamples: int
    level: float
    seed: int
    min_sequences: int
    source: str
    provenance: dict[str, str]


class Descriptive(Record, forbid_unknown_fields=True):
    """Edges of buckets in which diagnostics are grouped; they judge nothing."""

    probability_edges: tuple[float, ...]
    source: str


class Contract(Record, forbid_unknown_fields=True):
    """One packaged numerical contract; `digest` is SHA-256 over the canonical JSON of its file."""

    schema_version: str
    source: str
    version: str
    summary: str
    accuracy: Accuracy
    invariance: Tolerance
    chain: dict[str, ChainAggregate]
    clip_range: ClipRange
    assessment: AssessmentRule
    descriptive: Descriptive
    digest: str

    @property
    def ref(self) -> ContractRef:
        """Source, resolved version and digest, as they stand in experiments, plans and seals."""
        return ContractRef(source=self.source, version=self.version, digest=self.digest)

    def coarsest(self, first_dtype: str, second_dtype: str) -> str | None:
        """Return which of two compute dtypes has the larger threshold; None if one has no entry."""
        limits = self.accuracy.default["logprob"]
        names = [COUNTS_AS.get(name, name) for name in (first_dtype, second_dtype)]
        if any(name not in limits for name in names):
            return None
        return max(names, key=lambda name: limits[name].atol)

    def threshold(self, first_dtype: str, second_dtype: str) -> float | None:
        """Return the fixed threshold of an edge, in nats: the entry of the coarser of its two compute dtypes.

        None when either dtype has no entry (fp8, int8, an unobserved dtype): such an edge is not comparable.
        """
        name = self.coarsest(first_dtype, second_dtype)
        return None if name is None else self.accuracy.default["logprob"][name].atol
