"""Builds and scores real engines, in a process of its own: `python mcore_driver.py RANK WORLD FOLDER`.

FOLDER/jobs.json lists what to build, one after the other; the answers are FOLDER/NAME-RANK.json and .pt. An engine sets
up its process and cannot undo all of it, so that tests start this instead of building one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from xcfg.identity.rollout import Rollout, read_rollout, write_rollout
from xcfg.plugin.manager import PluginManager
from xcfg.plugin.protocols import RankContext
from xcfg.schema.codec import plain
from xcfg.schema.operators import OperatorBinding
from xcfg.schema.worker import PROTOCOL, ScoreRequest, WorkerSpec

POLICIES = {
    "selected_logprob": "megatron.vocab_parallel_logprob",
    "linear_selected_logprob": "megatron.head_then_logprob",
    "norm": "megatron.norm",
    "activation": "megatron.activation",
    "attention": "megatron.core_attention",
    "row_linear": "megatron.row_linear",
}


def binding(operation: str, requested: str, options: dict[str, Any] | None = None) -> OperatorBinding:
    """Resolve as a session does, without one: a policy or an exact id."""
    name = POLICIES[operation] if requested == "native" else requested
    found = {item.record.backend_id: item.record for item in PluginManager.load(environ={}).operator_backends()}
    return OperatorBinding(
        operation=operation,
        side="training",
        requested=requested,
        backend_id=name,
        factory=found[name].factory,
        options=options or {},
    )


def one(job: dict[str, Any], rank: int, world: int, folder: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Build and score; what an engine refuses is an answer too."""
    from xcfg_megatron.adapter import MegatronAdapter

    torch._dynamo.reset()
    knobs = {"batch.size": 8, "logp.backend": "native", **job.get("knobs", {})}
    operators = {"selected_logprob": knobs["logp.backend"], **job.get("operators", {})}
    spec = WorkerSpec(
        protocol=PROTOCOL,
        runtime="megatron",
        adapter="",
        side="training",
        knobs=knobs,
        options={"threads": 1, **job.get("options", {})},
        operators={
            name: binding(name, asked, job.get("operator_options", {}).get(name)) for name, asked in operators.items()
        },
        checkpoint=job["checkpoint"],
        checkpoint_uri="builtin:test",
        rollout=job["rollout"],
        world_size=world,
        devices=("cpu",),
    )
    scratch = folder / f"scratch-{rank}"
    scratch.mkdir(exist_ok=True)
    context = RankContext(rank, world, "cpu", scratch, f"file://{folder / job['name']}.rendezvous")
    if job.get("sabotage"):
        SABOTAGE[job["sabotage"]](spec)
    adapter = MegatronAdapter()
    began = time.perf_counter()
    try:
        build = adapter.build(spec, context)
        kept = keep_logits(adapter.engine) if job.get("keep_logits") else []
        if job.get("float64"):
            return {"seconds": time.perf_counter() - began}, exact(adapter.engine, job)
        kept.clear()
        report, columns = adapter.score(
            ScoreRequest(id="r", arm="training", knobs=knobs), read_rollout(Path(job["rollout"]))
        )
        if kept:
            names = ("kept_logits", "kept_ids", "kept_values")
            columns = {
                **columns,
                **{name: torch.cat(parts) for name, parts in zip(names, zip(*kept, strict=True), strict=True)},
            }
    except Exception as error:  # noqa: BLE001 - the refusal is what the test looks at
        kind = getattr(error, "error_kind", type(error).__name__)
        return {"error": str(error), "kind": kind, "seconds": time.perf_counter() - began}, {}
    finally:
        adapter.close()
    return {"build": plain(build), "report": plain(report), "seconds": time.perf_counter() - began}, columns


def keep_logits(engine: Any) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Keep what the injected operator is handed on this rank and what it answers, call by call."""
    kept: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []
    function = engine.operator.function
    plain = function.values

    def values(logits: torch.Tensor, selected: torch.Tensor, **named: Any) -> Any:
        found = plain(logits, selected, **named)
        kept.append((logits.clone(), selected.clone(), found.logprob))
        return found

    function.values = values
    return kept


def spec_ignored(_: WorkerSpec) -> None:
    """Lose the operators on their way into the layer spec, for every later job of the process."""
    from xcfg_megatron import spec

    spec._put = lambda *_, **__: None


def slot_unplugged(_: WorkerSpec) -> None:
    """Put Megatron's own kind of norm back into one slot of the built model, for every later job of the process."""
    from xcfg_megatron import build

    plain = build.load

    def load(model: Any, *rest: Any) -> None:
        plain(model, *rest)
        ours = model.decoder.layers[2].input_layernorm
        stock = torch.nn.RMSNorm(ours.weight.shape, ours.eps)
        stock.weight = ours.weight
        model.decoder.layers[2].input_layernorm = stock

    build.load = load


def attention_replaced(_: WorkerSpec) -> None:
    """Make every core attention one of another class, as Transformer Engine's spec would, for every later job."""
    from xcfg_megatron import build

    plain = build.load

    def load(model: Any, *rest: Any) -> None:
        plain(model, *rest)
        for layer in model.decoder.layers:
            core = layer.self_attention.core_attention
            core.__class__ = type("TEDotProductAttention", (type(core),), {})

    build.load = load


def head_unplugged(_: WorkerSpec) -> None:
    """Give the output layer its own forward back behind the builder's back, for every later job of the process."""
    from xcfg_megatron import build

    plain = build.place

    def place(engine: Any) -> None:
        plain(engine)
        del engine.model.output_layer.__dict__["forward"]

    build.place = place


def logits_scaled(_: WorkerSpec) -> None:
    """Multiply what leaves the model, as a scale behind the output layer does, for every later job of the process."""
    from megatron.core.models.gpt.gpt_model import GPTModel

    plain = GPTModel._postprocess
    GPTModel._postprocess = lambda *arguments, **named: plain(*arguments, **named) * 2.0


SABOTAGE = {
    "head-unplugged": head_unplugged,
    "logits-scaled": logits_scaled,
    "spec-ignored": spec_ignored,
    "slot-unplugged": slot_unplugged,
    "attention-replaced": attention_replaced,
}


def exact(engine: Any, job: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Widen the live model to float64, load the checkpoint again, score with a float64 log-softmax of its logits."""
    from xcfg_megatron.load import load

    rollout = read_rollout(Path(job["rollout"]))
    engine.model.double()
    load(engine.model, engine.pieces, Path(job["checkpoint"]), engine.ranks)
    found = torch.full((len(rollout.token_ids),), torch.nan, dtype=torch.float64)
    for sequence in range(rollout.sequence_count):
        span = rollout.span(sequence)
        ids = torch.from_numpy(rollout.token_ids[span].astype("int64"))[None]
        width = ids.shape[1]
        mask = torch.ones(1, 1, width, width, dtype=torch.bool).triu(1)
        with torch.no_grad():
            logits = engine.model(ids, torch.arange(width)[None], mask)[0, :-1, : engine.shape.vocab]
        assert logits.dtype == torch.float64, logits.dtype
        chosen = logits.log_softmax(-1).gather(-1, ids[0, 1:, None])[:, 0]
        found[span.start + 1 : span.stop] = chosen
    return {"selected_logprob": found, "active": torch.from_numpy(rollout.active.copy())}


@dataclass
class Answer:
    """What one rank said about one job."""

    said: dict[str, Any]
    columns: dict[str, torch.Tensor]

    @property
    def values(self) -> torch.Tensor:
        """Log probabilities of the active tokens that this rank scored."""
        assert "error" not in self.said, self.said["error"]
        return self.columns["selected_logprob"][self.columns["active"]]

    def knob(self, path: str) -> dict[str, Any]:
        """The record of one knob, as the score found it."""
        assert "error" not in self.said, self.said["error"]
        return next(item for item in self.said["report"]["applications"] if item["path"] == path)


class Lab:
    """Starts the driver and keeps the answers: rank -> name -> Answer."""

    def __init__(self, folder: Path) -> None:
        """Work in `folder`."""
        self.folder = folder
        self.count = 0

    def rollout(self, rollout: Rollout) -> str:
        """Write a frozen rollout and return where."""
        self.count += 1
        folder = self.folder / f"rollout-{self.count}"
        write_rollout(rollout, folder)
        return str(folder)

    def run(self, jobs: list[dict[str, Any]], world: int = 1, timeout: int = 280) -> list[dict[str, Answer]]:
        """Run all jobs in one launch of `world` processes."""
        self.count += 1
        folder = self.folder / f"run-{self.count}"
        folder.mkdir()
        (folder / "jobs.json").write_text(json.dumps(jobs))
        env = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
        ranks = []
        for rank in range(world):
            command = [sys.executable, "-W", "ignore", __file__, str(rank), str(world), str(folder)]
            with (folder / f"log-{rank}").open("wb") as log:
                ranks.append(subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=env))
        try:
            codes = [rank.wait(timeout) for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
        logs = "".join((folder / f"log-{rank}").read_text(errors="replace")[-3000:] for rank in range(world))
        assert codes == [0] * world, logs
        return [{job["name"]: self._answer(folder, job["name"], rank) for job in jobs} for rank in range(world)]

    def _answer(self, folder: Path, name: str, rank: int) -> Answer:
        said = json.loads((folder / f"{name}-{rank}.json").read_text())
        columns = torch.load(folder / f"{name}-{rank}.pt", weights_only=True)
        return Answer(said, columns)


def main() -> None:
    """Answer every job of the folder."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    rank, world, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    for job in json.loads((folder / "jobs.json").read_text()):
        said, columns = one(job, rank, world, folder)
        (folder / f"{job['name']}-{rank}.json").write_text(json.dumps(said))
        torch.save(columns, folder / f"{job['name']}-{rank}.pt")
        print(job["name"], f"{said['seconds']:.2f} s", said.get("error", ""), flush=True)


if __name__ == "__main__":
    main()
