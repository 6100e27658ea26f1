"""A tiny complete runtime adapter that keeps every rule; runtime_faults.py has one that breaks each.

The model is a bigram table plus the running mean of an embedding, so that scores depend on the whole past and on
nothing else. It has three knobs: rollout.dtype (or training.compute_dtype), batch.size and rollout.enforce_eager.
"""

from __future__ import annotations

from typing import Any

import torch
from xcfg.errors import LaunchError
from xcfg.identity.attest import attest_sequence, fold
from xcfg.identity.rollout import Rollout
from xcfg.plugin.operators import BoundOperator, instantiate
from xcfg.plugin.protocols import RankContext
from xcfg.schema.names import Applied, EvidenceKind, Lifecycle, Phase
from xcfg.schema.runtime import (
    Capability,
    Evidence,
    KnobApplication,
    Placement,
    PlacementRequest,
    RuntimeDescriptor,
)
from xcfg.schema.worker import BuildReport, RankRecord, ScoreReport, ScoreRequest, WeightReport, WorkerSpec

VOCABULARY = 32
DTYPES = ("float32", "bfloat16")
KNOBS = {
    "rollout": {"rollout.dtype": "float32", "batch.size": 2, "rollout.enforce_eager": True},
    "training": {"training.compute_dtype": "float32", "batch.size": 2},
}
DTYPE_KNOB = {"rollout": "rollout.dtype", "training": "training.compute_dtype"}


def descriptor(adapter: str, **fields: Any) -> RuntimeDescriptor:
    """Return a descriptor whose adapter is the class `adapter` here or in runtime_faults; keywords replace fields."""
    module = __name__ if adapter == "GoodAdapter" else "xcfg_testkit.fakes.runtime_faults"
    values: dict[str, Any] = {
        "name": "fake",
        "summary": "a fake",
        "adapter": f"{module}:{adapter}",
        "placement": f"{__name__}:placement",
        "arms": {"rollout": ("rollout_prefill", "rollout_decode"), "training": ("training",)},
        "forced_replay": True,
        "generates": True,
        "capabilities": (
            Capability(path="rollout.dtype", side="rollout", values=DTYPES),
            Capability(path="rollout.enforce_eager", side="rollout", values=(True,), inherent=True),
            Capability(path="training.compute_dtype", side="training", values=DTYPES),
            Capability(path="batch.size", side="rollout"),
            Capability(path="batch.size", side="training"),
        ),
    }
    return RuntimeDescriptor(**{**values, **fields})


def placement(request: PlacementRequest) -> Placement:
    """One rank in one process."""
    return Placement()


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
            transforms=(),
            state_unchanged=True,
            forwards=rollout.sequence_count,
            single_token_forwards=singles,
        )

    def generate(self, request: ScoreRequest, prompts: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Sample every prompt by itself; of the transforms there is only temperature."""
        return [
            self.answer(number, list(prompt["token_ids"]), request.generate) for number, prompt in enumerate(prompts)
        ]

    def answer(self, number: int, prompt: list[int], asked: dict[str, Any]) -> dict[str, Any]:
        """Sample one continuation."""
        generator = torch.Generator().manual_seed(asked["seed"] + number)
        processed = asked["logprobs_mode"] == "processed_logprobs"
        ids: list[int] = []
        logprobs: list[float] = []
        while len(ids) < asked["max_new_tokens"] and not self.ended(ids, asked["stop_ids"]):
            raw = self.logits(prompt + ids)[-1:].float()
            scaled = raw / asked["temperature"]
            token = torch.multinomial(scaled.softmax(-1)[0], 1, generator=generator)
            logprobs.append(float(self.operator(scaled if processed else raw, token)))
            ids.append(int(token))
        return {
            "prompt_ids": prompt,
            "token_ids": ids,
            "logprobs": logprobs,
            "transforms": [f"temperature:{asked['temperature']!r}"] if processed else [],
            "finish_reason": "stop" if self.ended(ids, asked["stop_ids"]) else "length",
        }

    def ended(self, ids: list[int], stop_ids: list[int]) -> bool:
        """Whether the last sampled token ends a sequence."""
        return bool(ids) and ids[-1] in stop_ids

    def close(self) -> None:
        """Forget the tables."""
        self.tables = {}
