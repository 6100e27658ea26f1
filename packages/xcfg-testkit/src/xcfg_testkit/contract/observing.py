"""Drives a runtime adapter in this process and keeps what it said, so that each test looks at one thing."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xcfg.identity.attest import fold
from xcfg.identity.rollout import Rollout, write_rollout
from xcfg.plugin.operators import load_factory
from xcfg.plugin.protocols import RankContext, RuntimeAdapter
from xcfg.schema.operators import OperatorBinding
from xcfg.schema.runtime import KnobApplication, RuntimeDescriptor
from xcfg.schema.worker import PROTOCOL, BuildReport, ScoreReport, ScoreRequest, WorkerSpec

from xcfg_testkit import leaks, operators

if TYPE_CHECKING:
    import torch

DERIVED = "logp.backend"
"""The knob that follows from the operator bindings: whatever an author writes, it names the kit's operator."""

Score = tuple[ScoreReport, "dict[str, torch.Tensor]"]


@dataclass(frozen=True)
class Setup:
    """What one side is built with."""

    descriptor: RuntimeDescriptor
    side: str
    knobs: dict[str, Any]
    scratch: Path
    checkpoint: str = ""
    checkpoint_uri: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    operator: str = "plain"
    device: str = "cpu"

    def spec(self, rollout: Path) -> WorkerSpec:
        """The spec of a one-rank worker."""
        bindings: dict[str, OperatorBinding] = {}
        if "selected_logprob" in self.descriptor.operators:
            bindings["selected_logprob"] = operators.binding(self.operator, self.side)
        knobs = {**self.knobs, **({DERIVED: f"testkit.{self.operator}"} if DERIVED in self.knobs else {})}
        return WorkerSpec(
            protocol=PROTOCOL,
            runtime=self.descriptor.name,
            adapter=self.descriptor.adapter,
            side=self.side,
            knobs=knobs,
            options=self.options,
            operators=bindings,
            checkpoint=self.checkpoint,
            checkpoint_uri=self.checkpoint_uri,
            rollout=str(rollout),
            world_size=1,
            devices=(self.device,),
        )

    def but(self, **changes: Any) -> Setup:
        """Return this setup with some fields replaced."""
        return replace(self, **changes)


class Session:
    """One adapter, built once, scored as often as asked, closed once."""

    def __init__(self, setup: Setup, rollout: Rollout) -> None:
        """Build the adapter of `setup`; `rollout` is written to disk for adapters that read it while building."""
        self.setup = setup
        folder = setup.scratch / f"rollout-{rollout.sha256[:12]}"
        if not folder.exists():
            write_rollout(rollout, folder)
        scratch = setup.scratch / "work"
        scratch.mkdir(exist_ok=True)
        self.adapter: RuntimeAdapter = load_factory(setup.descriptor.adapter)()
        self.context = RankContext(
            rank=0, world_size=1, device=setup.device, scratch=scratch, rendezvous=f"file://{scratch / 'rendezvous'}"
        )
        self._spec = setup.spec(folder)
        self._count = 0

    def build(self) -> BuildReport:
        """Build and return the report."""
        return self.adapter.build(self._spec, self.context)

    def score(self, arm: str, rollout: Rollout, **fields: Any) -> Score:
        """Score once."""
        self._count += 1
        request = ScoreRequest(id=f"testkit-{self._count}", arm=arm, knobs=self._spec.knobs, **fields)
        return self.adapter.score(request, rollout)

    def generate(self, generate: dict[str, Any]) -> list[dict[str, Any]]:
        """Sample once, as `xcfg freeze` asks for it; `generate` holds the prompts and the fields of a request."""
        self._count += 1
        request = ScoreRequest(id=f"testkit-{self._count}", arm="recorded", knobs=self._spec.knobs, generate=generate)
        adapter: Any = self.adapter
        answers: list[dict[str, Any]] = adapter.generate(request, generate["prompts"])
        return answers

    def __enter__(self) -> Session:
        """Return the session; `build` is called by the user."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the adapter, also after an error."""
        self.adapter.close()


@dataclass(frozen=True)
class Observation:
    """One build and two scores of one arm.

    fold_before, fold_after: the kit's own fold of the tensors around the first score; empty where not read.
    leaks: what the second score changed in the process (torch flags, generators, environment). The first may still
    import things.
    """

    build: BuildReport
    first: Score
    second: Score
    fold_before: str = ""
    fold_after: str = ""
    leaks: tuple[str, ...] = ()

    @property
    def applications(self) -> tuple[KnobApplication, ...]:
        """Those of the build and of the first score."""
        return (*self.build.applications, *self.first[0].applications)

    def column(self, name: str = "selected_logprob") -> torch.Tensor:
        """A column of the first score."""
        return self.first[1][name]


def observe(setup: Setup, arm: str, rollout: Rollout, tensors: Any) -> Observation:
    """Build, score twice, close; `tensors(adapter)` yields (name, tensor) of the engine, or is empty."""
    with Session(setup, rollout) as session:
        report = session.build()
        if report.error:
            raise AssertionError(f"the build failed: {report.error}")
        before = _fold(tensors(session.adapter))
        first = session.score(arm, rollout)
        middle = _fold(tensors(session.adapter))
        state = leaks.snapshot()
        second = session.score(arm, rollout)
        changed = leaks.changes(state, leaks.snapshot())
    for score, _ in (first, second):
        if score.error:
            raise AssertionError(f"the score failed: {score.error}")
    return Observation(report, first, second, before, middle, tuple(changed))


def _fold(tensors: Iterable[tuple[str, torch.Tensor]]) -> str:
    found = list(tensors)
    return fold(found) if found else ""


def same_bits(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether two float columns hold the same bits, NaN included."""
    import torch

    kind = {torch.float32: torch.int32, torch.float64: torch.int64}.get(first.dtype)
    if kind is None or first.dtype != second.dtype or first.shape != second.shape:
        return False
    return bool(torch.equal(first.contiguous().view(kind), second.contiguous().view(kind)))


def is_number(value: float) -> bool:
    """Whether `value` can be a log probability: finite and not above 0."""
    return math.isfinite(value) and value <= 0.0
