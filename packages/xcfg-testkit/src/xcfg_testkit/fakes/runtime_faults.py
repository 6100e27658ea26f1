"""Runtime adapters that each break one rule of the runtime contract."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, ClassVar

import torch
from xcfg.identity.attest import attest_sequence
from xcfg.identity.rollout import Rollout, read_rollout
from xcfg.plugin.operators import BoundOperator, instantiate
from xcfg.plugin.protocols import RankContext
from xcfg.schema.codec import evolve
from xcfg.schema.names import EvidenceKind
from xcfg.schema.runtime import KnobApplication
from xcfg.schema.worker import BuildReport, RankRecord, WorkerSpec

from xcfg_testkit.fakes.runtimes import DTYPE_KNOB, GoodAdapter
from xcfg_testkit.operators import binding


class CopiesRequest(GoodAdapter):
    """Reports the requested dtype as the actual one, whatever runs."""

    def construction(self, spec: WorkerSpec) -> tuple[KnobApplication, ...]:
        """Copy."""
        path = DTYPE_KNOB[spec.side]
        first = self.application(path, spec.knobs[path], spec.knobs[path], EvidenceKind.STATE, "spec")
        return (first, *super().construction(spec)[1:])


class AcceptsAnyDtype(CopiesRequest):
    """Takes an unknown dtype for float32 and says that it was applied."""

    def build(self, spec: WorkerSpec, context: RankContext) -> BuildReport:
        """Build with float32 under the name that was asked for."""
        self.asked = spec.knobs[DTYPE_KNOB[spec.side]]
        path = DTYPE_KNOB[spec.side]
        report = super().build(_with(spec, path, "float32"), context)
        self.spec = spec
        found = (self.application(path, self.asked, self.asked, EvidenceKind.STATE, "spec"), *report.applications[1:])
        return evolve(report, applications=found)


class RanOtherDtype(GoodAdapter):
    """Runs bfloat16 and calls it applied although it reads float32 back as asked."""

    def construction(self, spec: WorkerSpec) -> tuple[KnobApplication, ...]:
        """Report another actual value with the status applied."""
        first, *rest = super().construction(spec)
        return (evolve(first, actual="bfloat16"), *rest)


class WrongRequested(GoodAdapter):
    """Says that something else was requested, and that it was applied."""

    def construction(self, spec: WorkerSpec) -> tuple[KnobApplication, ...]:
        """Report the actual value on both ends."""
        first, *rest = super().construction(spec)
        return (evolve(first, requested="bfloat16", actual="bfloat16"), *rest)


class SilentKnob(GoodAdapter):
    """Does not report its dtype knob."""

    def construction(self, spec: WorkerSpec) -> tuple[KnobApplication, ...]:
        """Leave the first one out."""
        return super().construction(spec)[1:]


class ReportsTwice(GoodAdapter):
    """Reports its dtype knob twice in one report."""

    def construction(self, spec: WorkerSpec) -> tuple[KnobApplication, ...]:
        """Repeat everything."""
        return super().construction(spec) * 2


class ShortMemory(GoodAdapter):
    """Looks at the previous token only."""

    def logits(self, ids: list[int]) -> torch.Tensor:
        """Leave the context out."""
        return self.tables["bigram"][torch.tensor(ids)]


class ConfigEvidence(GoodAdapter):
    """Believes a configuration object."""

    def application(self, path: str, asked: Any, actual: Any, kind: EvidenceKind, source: str) -> KnobApplication:
        """Replace the kind of evidence."""
        return super().application(path, asked, actual, EvidenceKind.CONFIG, source)


class FalselyInherent(GoodAdapter):
    """Calls a value inherent that its descriptor does not."""

    def application(self, path: str, asked: Any, actual: Any, kind: EvidenceKind, source: str) -> KnobApplication:
        """Replace the kind of evidence."""
        return super().application(path, asked, actual, EvidenceKind.INHERENT, source)


class NoProvenance(GoodAdapter):
    """Says nothing about weights and versions."""

    def build(self, spec: WorkerSpec, context: RankContext) -> BuildReport:
        """Keep only what is required."""
        report = super().build(spec, context)
        return BuildReport(rank=0, world_size=1, compute_dtype="float32", applications=report.applications)


class AttestsPadding(GoodAdapter):
    """Attests to rows that were padded to one length."""

    def attestations(self, rollout: Rollout) -> tuple[Any, ...]:
        """Append a token to each row."""
        found = []
        for index in range(rollout.sequence_count):
            ids = [*rollout.token_ids[rollout.span(index)].tolist(), 0]
            found.append(attest_sequence(index, *([_array(ids)] * 3)))
        return tuple(found)


class AttestsFirstRollout(GoodAdapter):
    """Attests to the first rollout that it ever saw."""

    def attestations(self, rollout: Rollout) -> tuple[Any, ...]:
        """Keep the first answer, by the folder of the build."""
        return super().attestations(read_rollout(Path(self.spec.rollout)))


class ExtraColumn(GoodAdapter):
    """Returns a column that the table does not have."""

    def columns(self, logprob: torch.Tensor, active: torch.Tensor, decode: bool) -> dict[str, torch.Tensor]:
        """Add one."""
        return {**super().columns(logprob, active, decode), "logits": logprob}


class LowPrecisionColumn(GoodAdapter):
    """Returns bfloat16 scores."""

    def columns(self, logprob: torch.Tensor, active: torch.Tensor, decode: bool) -> dict[str, torch.Tensor]:
        """Convert."""
        return {**super().columns(logprob.bfloat16(), active, decode)}


class FillsZeros(GoodAdapter):
    """Has 0.0 where nothing was scored."""

    def filler(self) -> float:
        """A perfect probability."""
        return 0.0


class AllActive(GoodAdapter):
    """Calls every position active."""

    def columns(self, logprob: torch.Tensor, active: torch.Tensor, decode: bool) -> dict[str, torch.Tensor]:
        """Replace the mask."""
        return {**super().columns(logprob, active, decode), "active": torch.ones_like(active)}


class WrongShift(GoodAdapter):
    """Scores a token from the logits that already know it."""

    def shift(self) -> int:
        """None."""
        return 0


class SeesTheFuture(GoodAdapter):
    """Lets every position see the whole sequence."""

    def logits(self, ids: list[int]) -> torch.Tensor:
        """Add the mean over all positions."""
        index = torch.tensor(ids)
        return self.tables["bigram"][index] + self.tables["context"][index].mean(0)


class ForgetsRanges(GoodAdapter):
    """Owns only a part of the tokens."""

    def record(self, rollout: Rollout) -> RankRecord:
        """Cut the last sequence off."""
        return evolve(super().record(rollout), ranges=((0, int(rollout.offsets[-2])),))


class Trains(GoodAdapter):
    """Changes a weight with every score, and says so."""

    def after_score(self) -> None:
        """Nudge."""
        self.tables["bigram"][0, 0] += 1.0


class TrainsInSecret(Trains):
    """Changes a weight with every score, and reports a fold that never moves."""

    def fold(self) -> str:
        """A constant."""
        return "00000000"


class Noisy(GoodAdapter):
    """Adds noise to its scores."""

    count: ClassVar[list[int]] = [0]

    def columns(self, logprob: torch.Tensor, active: torch.Tensor, decode: bool) -> dict[str, torch.Tensor]:
        """Move one bit further with every score."""
        self.count[0] += 1
        moved = torch.nextafter(logprob, torch.full_like(logprob, -float("inf")))
        return super().columns(moved if self.count[0] % 2 else logprob, active, decode)


class DecodesByPrefill(GoodAdapter):
    """Claims forced replay and never makes a forward of one token."""

    def singles(self, length: int) -> int:
        """None."""
        return 0


class UntaggedDecode(GoodAdapter):
    """Gives its decode values no phase."""

    def columns(self, logprob: torch.Tensor, active: torch.Tensor, decode: bool) -> dict[str, torch.Tensor]:
        """Leave the phase out."""
        found = super().columns(logprob, active, decode)
        return {name: column for name, column in found.items() if name != "phase"}


class IgnoresOperator(GoodAdapter):
    """Scores with its own log-softmax, whatever is bound."""

    def bind(self, spec: WorkerSpec) -> BoundOperator:
        """Bind the plain one."""
        return instantiate(binding("plain", spec.side))


class RaisesOnClose(GoodAdapter):
    """Cannot be closed when it was not built."""

    def close(self) -> None:
        """Read what a failed build never made."""
        self.tables.clear()


class AnswersOldShape(GoodAdapter):
    """Answers with the continuation alone, without the ids that entered the model."""

    def answer(self, number: int, prompt: list[int], asked: dict[str, Any]) -> dict[str, Any]:
        """Leave the prompt out."""
        found = super().answer(number, prompt, asked)
        return {name: found[name] for name in ("token_ids", "logprobs")}


class HidesTransforms(GoodAdapter):
    """Records processed log probabilities and calls them raw."""

    def answer(self, number: int, prompt: list[int], asked: dict[str, Any]) -> dict[str, Any]:
        """Empty the list."""
        return {**super().answer(number, prompt, asked), "transforms": []}


class RunsPastStop(GoodAdapter):
    """Does not know stop ids."""

    def ended(self, ids: list[int], stop_ids: list[int]) -> bool:
        """Never."""
        return False


class CannotSample(GoodAdapter):
    """Has no generator, whatever its descriptor says."""

    generate = None  # type: ignore[assignment]


class Leaks(GoodAdapter):
    """Draws from the global generator when it scores."""

    def after_score(self) -> None:
        """Draw."""
        random.random()  # noqa: S311 - no secret


def _array(ids: list[int]) -> Any:
    return torch.tensor(ids).numpy()


def _with(spec: WorkerSpec, path: str, value: Any) -> WorkerSpec:
    return evolve(spec, knobs={**spec.knobs, path: value})
