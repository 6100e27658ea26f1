"""What a signature sees and what it answers. Types only; importing this imports nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class SignatureTokens(Protocol):
    """The N active tokens of S sequences, ordered by sequence and position, as every signature sees them."""

    @property
    def training(self) -> NDArray[np.float64]:
        """Log probabilities of the training side as recorded, float64 [N], nats."""
        ...

    @property
    def rollout(self) -> NDArray[np.float64]:
        """Log probabilities of the rollout side as recorded, float64 [N], nats."""
        ...

    @property
    def d(self) -> NDArray[np.float64]:
        """What is left to explain, float64 [N], nats: training - rollout, less what was named before."""
        ...

    @property
    def scale(self) -> NDArray[np.float64]:
        """The usual |d| of tokens of this probability, float64 [N], nats, > 0, estimated from `d` itself."""
        ...

    @property
    def relative(self) -> NDArray[np.float64]:
        """|d| in units of the scale, at most 6, so that no outlier decides; float64 [N]."""
        ...

    @property
    def logp(self) -> NDArray[np.float64]:
        """The middle of both log probabilities, float64 [N], nats."""
        ...

    @property
    def sequence(self) -> NDArray[np.int64]:
        """0 ... S - 1, rising, int64 [N]."""
        ...

    @property
    def starts(self) -> NDArray[np.int64]:
        """First row of each sequence, int64 [S]."""
        ...

    @property
    def cluster(self) -> NDArray[np.int64]:
        """What counts as one independent draw: 0 ... C - 1, rising, int64 [N]; sequences, or blocks of few."""
        ...

    @property
    def position(self) -> NDArray[np.int64]:
        """Logical position within the sequence, int64 [N]."""
        ...

    @property
    def token_id(self) -> NDArray[np.int64]:
        """The token, int64 [N]."""
        ...

    @property
    def rank(self) -> NDArray[np.int64] | None:
        """Training rank, int64 [N]; None where nobody says."""
        ...

    @property
    def weight_version(self) -> NDArray[np.int64] | None:
        """Version of the weights that sampled the token, int64 [N]; None where nobody says."""
        ...

    @property
    def columns(self) -> Mapping[str, NDArray[np.float64]]:
        """The optional score columns that the dump has (training side), float64 [N], NaN where unknown."""
        ...


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
