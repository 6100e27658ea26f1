"""What a signature sees and what it answers. Types only; importing this imports nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class SignatureTokens(Protocol):
    """The N active tokens of S sequences, ordered by sequence and position, as every signature sees them.

    training, rollout: log probabilities as recorded, float64 [N], nats.
    d: what is left to explain, float64 [N], nats: training - rollout, less what was named before.
    scale: of honest rounding per token, float64 [N], nats, > 0, estimated from `d` itself by probability.
    sequence: int64 [N], 0 ... S - 1. starts: int64 [S], first row of each sequence.
    position, token_id: int64 [N]. rank, weight_version: int64 [N], or None where nobody says.
    columns: the optional columns that the dump has, float64 [N], by name.
    """

    training: NDArray[np.float64]
    rollout: NDArray[np.float64]
    d: NDArray[np.float64]
    scale: NDArray[np.float64]
    sequence: NDArray[np.int64]
    starts: NDArray[np.int64]
    position: NDArray[np.int64]
    token_id: NDArray[np.int64]
    rank: NDArray[np.int64] | None
    weight_version: NDArray[np.int64] | None
    columns: Mapping[str, NDArray[np.float64]]


@dataclass(frozen=True)
class SignatureFit:
    """One closed form, fitted. It is a candidate; whether it is named is decided beside the other candidates.

    p_value: probability of a fit at least as good without the fault, corrected for what this signature tried.
    rest: d after the fitted form is taken away, float64 [N], nats; NaN where the form leaves nothing to compare.
    concerned: bool [N], the tokens that the form touches; evidence is chosen among them.
    says: one sentence with the fitted figures. where: which tokens, in words. parameters: name -> value, units in
    the name. fix: what to change or to check; refuted_by: the observation that would prove this wrong.
    """

    p_value: float
    rest: NDArray[np.float64]
    concerned: NDArray[np.bool_]
    says: str
    where: str
    fix: str
    refuted_by: str
    parameters: Mapping[str, float] = field(default_factory=dict)
    next_command: str = ""


@dataclass(frozen=True)
class InsufficientData:
    """The signature cannot say anything about this dump; reason: what is missing and how to export it."""

    reason: str


@runtime_checkable
class Signature(Protocol):
    """One kind of fault. Constructed without arguments."""

    def fit(self, tokens: SignatureTokens) -> SignatureFit | InsufficientData | None:
        """Return the best fit of the closed form, what is missing, or None where there is no trace of it.

        Called only where the columns in `needs` are there; it is called again on what an accepted form left over.
        """
        ...


