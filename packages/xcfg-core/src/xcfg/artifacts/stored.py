"""What goes into the store and what comes back: facts for a seal, stored scores and attempts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from xcfg.artifacts.layout import SCORE_FILE
from xcfg.artifacts.seals import read_payload
from xcfg.schema.attempt import CaseSeal, ScoreSeal
from xcfg.schema.codec import parse_strict
from xcfg.schema.names import Status

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Kept = TypeVar("Kept")


@dataclass(frozen=True, kw_only=True)
class ScoreFacts:
    """What the caller knows about a side score; fields as in ScoreSeal."""

    key: str
    arm: str
    side: str
    rollout: str
    environment: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class CaseFacts:
    """What the caller knows about an attempt; fields as in CaseSeal. `scores`: arm -> score key."""

    status: Status
    experiment: str
    plan_line: str
    assessment: str = ""
    contract: str = ""
    rollout: str = ""
    scoring_key: str = ""
    comparison_key: str = ""
    scores: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Sealed:
    path: Path

    def _files(self) -> Mapping[str, str]:
        raise NotImplementedError

    def read(self, name: str) -> bytes:
        """Return the bytes of a payload of at most MAX_JSON, checked against the seal now; ArtifactError."""
        return read_payload(self.path, name, self._files())

    def json(self, name: str) -> Any:
        """Return a JSON payload as plain values, checked against the seal now."""
        return parse_strict(self.read(name), source=str(self.path / name))

    def tensors(self, name: str) -> tuple[dict[str, NDArray[np.generic]], dict[str, Any]]:
        """Return (columns, meta) of a `.pt` payload, checked against the seal now. Imports torch."""
        from xcfg.artifacts.tensors import load_pt

        return load_pt(self.path / name, sha256=self._files().get(name, "?"))


@dataclass(frozen=True)
class StoredScore(_Sealed):
    """A valid side score: its folder and its seal."""

    seal: ScoreSeal

    def _files(self) -> Mapping[str, str]:
        return self.seal.files

    @property
    def score(self) -> Path:
        """Its score.pt."""
        return self.path / SCORE_FILE


@dataclass(frozen=True)
class StoredAttempt(_Sealed):
    """A valid attempt: its folder and its seal."""

    seal: CaseSeal

    def _files(self) -> Mapping[str, str]:
        return self.seal.files


class Rejected(NamedTuple):
    """A folder that is there and cannot be used, with every reason."""

    path: Path
    reasons: tuple[str, ...]


class Lookup(NamedTuple, Generic[Kept]):
    """What a search found: usable ones, newest first, and rejected ones."""

    valid: tuple[Kept, ...]
    rejected: tuple[Rejected, ...]
