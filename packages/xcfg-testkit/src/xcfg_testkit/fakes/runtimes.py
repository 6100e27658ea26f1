"""A tiny complete runtime adapter, and adapters that each break one rule.

The model is a bigram table plus the running mean of an embedding, so that scores depend on the whole past and on
nothing else. It has three knobs: rollout.dtype (or training.compute_dtype), batch.size and rollout.enforce_eager.
"""

from __future__ import annotations

import random
from typing import Any, ClassVar

import torch
from xcfg.errors import LaunchError
from xcfg.identity.attest import attest_sequence, fold
from xcfg.identity.rollout import Rollout
from xcfg.plugin.operators import BoundOperator, instantiate
from xcfg.plugin.protocols import RankContext
from xcfg.schema.names import Applied, EvidenceKind, Lifecycle, Phase
from xcfg.schema.runtime import Capability, Evidence, KnobApplication, RuntimeDescriptor
from xcfg.schema.worker import BuildReport, RankRecord, ScoreReport, ScoreRequest, WeightReport, WorkerSpec

VOCABULARY = 32
DTYPES = ("float32", "bfloat16")
KNOBS = {
    "rollout": {"rollout.dtype": "float32", "batch.size": 2, "rollout.enforce_eager": True},
    "training": {"training.compute_dtype": "float32", "batch.size": 2},
}
DTYPE_KNOB = {"rollout": "rollout.dtype", "training": "training.compute_dtype"}


def descriptor(adapter: str, **fields: Any) -> RuntimeDescriptor:
    """Return a descriptor whose adapter is the class `adapter` of this module; keywords replace fields."""
    values: dict[str, Any] = {
        "name": "fake",
        "summary": "a fake",
        "adapter": f"{__name__}:{adapter}",
        "placement": f"{__name__}:placement",
        "arms": {"rollout": ("rollout_prefill", "rollout_decode"), "training": ("training",)},
        "forced_replay": True,
        "capabilities": (
            Capability(path="rollout.dtype", side="rollout", values=DTYPES),
            Capability(path="rollout.enforce_eager", side="rollout", values=(True,), inherent=True),
            Capability(path="training.compute_dtype", side="training", values=DTYPES),
            Capability(path="batch.size", side="rollout"),
            Capability(path="batch.size", side="training"),
        ),
    }
    return RuntimeDescriptor(**{**values, **fields})


class GoodAdapter:
    """Keeps every rule. Subclasses override one small method each."""

    def build(self, spec: WorkerSpec, context: RankContext) -> BuildReport:
        """Make the tables and read back what they are."""
        if spec.checkpoint:
            raise LaunchError(f"the checkpoint {spec.checkpoint!r} cannot be read")
        self.spec, self.context = spec, context
        name = spec.knobs[DTYPE_KNOB[spec.side]]
        if name not in DTYPES:
            raise LaunchError(f"the dtype {name!r} is not supported")
        generator = torch.Generator().manual_seed(5)
        tables = {
            key: torch.randn(VOCABULARY, VOCABULARY, generator=generator).to(self.dtype_of(name))
            for key in ("bigram", "context")
        }
        self.tables: dict[str, torch.Tensor] = tables
        self.operator: BoundOperator = self.bind(spec)
        return BuildReport(
            rank=context.rank,
            world_size=1,
            compute_dtype=str(tables["bigram"].dtype).removeprefix("torch."),
            applications=self.construction(spec),
            weights=WeightReport(method="digest", dtype=name, tensors=dict.fromkeys(tables, "0" * 64)),
            provenance={"torch": torch.__version__},
        )

    def dtype_of(self, name: str) -> torch.dtype:
        """The dtype of the tables for the value of the dtype knob."""
        dtype: torch.dtype = getattr(torch, name)
        return dtype

    def bind(self, spec: WorkerSpec) -> BoundOperator:
        """Instantiate the operator of the spec."""
        return instantiate(spec.operators["selected_logprob"])

    def construction(self, spec: WorkerSpec) -> tuple[KnobApplication, ...]:
        """Report the knobs of construction."""
        path = DTYPE_KNOB[spec.side]
        actual = str(self.tables["bigram"].dtype).removeprefix("torch.")
        found = [self.application(path, spec.knobs[path], actual, EvidenceKind.STATE, "tables.bigram.dtype")]
        if spec.side == "rollout":
            eager = "rollout.enforce_eager"
            found.append(self.application(eager, spec.knobs[eager], True, EvidenceKind.INHERENT, "no graphs here"))
        return tuple(found)

    def application(self, path: str, asked: Any, actual: Any, kind: EvidenceKind, source: str) -> KnobApplication:
        """One application; applied only when the actual value is the requested one."""
        return KnobApplication(
            path=path,
            side=self.spec.side,
            rank=0,
            requested=asked,
            materialized=asked,
            actual=actual,
            status=Applied.APPLIED if actual == asked else Applied.FALLBACK,
            lifecycle=Lifecycle.REQUEST if path == "batch.size" else Lifecycle.ENGINE_CONSTRUCTION,
            evidence=(Evidence(kind=kind, source=source),),
        )

    def logits(self, ids: list[int]) -> torch.Tensor:
        """Logits [len(ids), V] of one sequence, each from the ids up to its own."""
        index = torch.tensor(ids)
        mean = self.tables["context"][index].cumsum(0) / torch.arange(1, len(ids) + 1)[:, None]
        return self.tables["bigram"][index] + mean.to(self.tables["bigram"].dtype)

    def shift(self) -> int:
        """How far logits stand before the token that they score."""
        return 1

    def score(self, request: ScoreRequest, rollout: Rollout) -> tuple[ScoreReport, dict[str, torch.Tensor]]:
        """Score sequence by sequence, one token at a time in the decode arm."""
        before = self.fold()
        active = torch.from_numpy(rollout.active.copy())
        logprob = torch.full((len(active),), self.filler(), dtype=torch.float32)
        singles = 0
        decode = request.arm == "rollout_decode"
        for index in range(rollout.sequence_count):
            span = rollout.span(index)
            ids = [int(token) for token in rollout.token_ids[span]]
            logits = (
                torch.cat([self.logits(ids[: end + 1])[-1:] for end in range(len(ids))]) if decode else self.logits(ids)
            )
            singles += self.singles(len(ids)) if decode else 0
            where = active[span].nonzero()[:, 0]
            wanted = torch.tensor(ids)[where]
            logprob[span.start + where] = self.operator(logits[where - self.shift()], wanted).float()
        self.after_score()
        return self.report(request, rollout, before, singles, active), self.columns(logprob, active, decode)

    def singles(self, length: int) -> int:
        """Forwards of a single token that a decode of `length` tokens makes."""
        return length

    def filler(self) -> float:
        """What stands where nothing was scored."""
        return float("nan")

    def after_score(self) -> None:
        """Called at the end of every score."""

    def fold(self) -> str:
        """Fold the tables."""
        return fold(self.tables.items())

    def columns(self, logprob: torch.Tensor, active: torch.Tensor, decode: bool) -> dict[str, torch.Tensor]:
        """The columns of a score."""
        phase = torch.where(active, Phase.DECODE if decode else Phase.PREFILL, Phase.NONE).to(torch.int8)
        return {"selected_logprob": logprob, "active": active, "phase": phase}

    def attestations(self, rollout: Rollout) -> tuple[Any, ...]:
        """Digests of what entered the model."""
        found = []
        for index in range(rollout.sequence_count):
            span = rollout.span(index)
            ids = rollout.token_ids[span]
            positions = rollout.tensors["position_ids"][span].astype("int64")
            found.append(attest_sequence(index, ids, positions, ids[rollout.active[span]]))
        return tuple(found)

    def record(self, rollout: Rollout) -> RankRecord:
        """The one rank owns everything."""
        return RankRecord(
            rank=0,
            world_size=1,
            role="owner",
            coordinates={},
            ranges=((0, int(rollout.offsets[-1])),),
            parallelism="none",
            dtype="float32",
            padding_side="none",
            cache_mode="none",
            active_tokens=int(rollout.active.sum()),
        )

    def report(
        self, request: ScoreRequest, rollout: Rollout, before: str, singles: int, active: torch.Tensor
    ) -> ScoreReport:
        """The report of a score."""
        size = request.knobs["batch.size"]
        return ScoreReport(
            request_id=request.id,
            rank=0,
            record=self.record(rollout),
            compute_dtype=str(self.tables["bigram"].dtype).removeprefix("torch."),
            applications=(self.application("batch.size", size, size, EvidenceKind.EXECUTION, "chunks counted"),),
            attestations=self.attestations(rollout),
            fold_before=before,
            fold_after=self.fold(),
            forwards=rollout.sequence_count,
            single_token_forwards=singles,
        )

    def close(self) -> None:
        """Forget the tables."""
        self.tables = {}


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
        return BuildReport(
            **{name: getattr(report, name) for name in report.__struct_fields__} | {"applications": found}
        )


class RanOtherDtype(GoodAdapter):
    """Runs bfloat16 and calls it applied although it reads float32 back as asked."""

    def construction(self, spec: WorkerSpec) -> tuple[KnobApplication, ...]:
        """Report another actual value with the status applied."""
        first, *rest = super().construction(spec)
        lie = KnobApplication(
            **{name: getattr(first, name) for name in first.__struct_fields__} | {"actual": "bfloat16"}
        )
        return (lie, *rest)


class WrongRequested(GoodAdapter):
    """Says that something else was requested, and that it was applied."""

    def construction(self, spec: WorkerSpec) -> tuple[KnobApplication, ...]:
        """Report the actual value on both ends."""
        first, *rest = super().construction(spec)
        other = {"requested": "bfloat16", "actual": "bfloat16"}
        return (KnobApplication(**{name: getattr(first, name) for name in first.__struct_fields__} | other), *rest)


class SilentKnob(GoodAdapter):
    """Does not report its dtype knob."""

    def construction(self, spec: WorkerSpec) -> tuple[KnobApplication, ...]:
        """Leave the first one out."""
        return super().construction(spec)[1:]


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
        from pathlib import Path

        from xcfg.identity.rollout import read_rollout

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
        record = super().record(rollout)
        cut = {"ranges": ((0, int(rollout.offsets[-2])),)}
        return RankRecord(**{name: getattr(record, name) for name in record.__struct_fields__} | cut)


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
        from xcfg_testkit.operators import binding

        return instantiate(binding("plain", spec.side))


class RaisesOnClose(GoodAdapter):
    """Cannot be closed when it was not built."""

    def close(self) -> None:
        """Read what a failed build never made."""
        self.tables.clear()


class Leaks(GoodAdapter):
    """Seeds the global generator when it builds."""

    def build(self, spec: WorkerSpec, context: RankContext) -> BuildReport:
        """Seed, then build."""
        random.seed(0)
        return super().build(spec, context)


def _array(ids: list[int]) -> Any:
    return torch.tensor(ids).numpy()


def _with(spec: WorkerSpec, path: str, value: Any) -> WorkerSpec:
    knobs = {**spec.knobs, path: value}
    return WorkerSpec(**{name: getattr(spec, name) for name in spec.__struct_fields__} | {"knobs": knobs})
