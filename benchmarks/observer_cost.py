"""What observing costs: scoring with xcfg's hooks, counters, folds and attestations against the same without.

One engine in one process. The floor runs the same batches through the same model and operator, with every hook
removed and every record of what entered, ran or changed replaced by nothing. Values must be the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import xcfg_torch.score
from _ratio import Cost, alternate, arguments, report, timed
from xcfg.identity.rollout import Rollout, make_rollout, read_rollout
from xcfg.plugin.protocols import RankContext
from xcfg.schema.operators import OperatorBinding
from xcfg.schema.worker import PROTOCOL, ScoreRequest, WorkerSpec
from xcfg_torch.adapter import TorchAdapter
from xcfg_torch.weights import State

ROOT = Path(__file__).resolve().parent.parent
PER_TOKEN = (
    "token_ids",
    "active_mask",
    "attention_mask",
    "position_ids",
    "selected_token_ids",
    "segment",
    "weight_version",
)


class Nothing:
    """In place of Consumed: takes everything, keeps nothing."""

    max_rows = max_sequences = max_sequences_per_row = uneven_batches = leaks = 0
    sides: dict[str, int] = {}

    def __init__(self, total: int) -> None: ...

    def batch(self, *_: Any) -> None: ...

    step = layout = batch

    def attestations(self, *_: Any, **__: Any) -> tuple[()]:
        return ()


@contextmanager
def unobserved(adapter: TorchAdapter) -> Iterator[None]:
    """Run the adapter without a hook, mode, fold, attestation or readback."""
    engine, score = adapter.engine, xcfg_torch.score
    model = engine.model

    def call(**inputs: Any) -> tuple[Any, None]:
        with torch.no_grad():
            return model(**inputs), None

    engine.observer.detach()
    with ExitStack() as stack:
        enter = stack.enter_context
        enter(patch.object(type(engine), "call", lambda self, **inputs: call(**inputs)))
        enter(patch.object(score, "Consumed", Nothing))
        enter(patch.object(score, "read_state", lambda *_: State("", "", "", 0)))
        enter(patch.object(score, "construction_applications", lambda *_, **__: ()))
        enter(patch.object(score, "layout_applications", lambda *_, **__: ()))
        yield
    engine.observer._attach()


def build(checkpoint: Path, side: str, dtype: str, batch: int) -> TorchAdapter:
    """Return a built adapter of one side."""
    operator = OperatorBinding(
        operation="selected_logprob",
        side=side,
        requested="native",
        backend_id="torch.log_softmax_gather",
        factory="xcfg_torch.logprob:log_softmax_gather",
    )
    named = "rollout.dtype" if side == "rollout" else "training.compute_dtype"
    spec = WorkerSpec(
        protocol=PROTOCOL,
        runtime="torch",
        adapter="",
        side=side,
        knobs={named: dtype, f"{side}.attention_backend": "sdpa", "batch.size": batch, "batch.padding_side": "right"},
        options={},
        operators={"selected_logprob": operator},
        checkpoint=str(checkpoint),
        checkpoint_uri="",
        rollout="",
        world_size=1,
    )
    adapter = TorchAdapter()
    adapter.build(spec, RankContext(rank=0, world_size=1, device="cpu", scratch=Path(), rendezvous=""))
    return adapter


def first(rollout: Rollout, count: int) -> Rollout:
    """Return the first `count` sequences as a rollout of their own."""
    offsets = rollout.offsets[: count + 1]
    tensors = {name: rollout.tensors[name][: offsets[-1]] for name in PER_TOKEN}
    return make_rollout({**tensors, "offsets": offsets}, checkpoint=rollout.manifest.checkpoint)


def main() -> None:
    parser = arguments(__doc__, 5)
    parser.add_argument("--checkpoint", type=Path, required=True, help="folder of SmolLM2-135M (or another model)")
    parser.add_argument("--rollout", type=Path, default=ROOT / "examples/quickstart/rollout")
    parser.add_argument("--sequences", type=int, default=8)
    parser.add_argument("--dtype", default="bfloat16")
    given = parser.parse_args()
    rollout = first(read_rollout(given.rollout), given.sequences)
    for side, arm in (("training", "training"), ("rollout", "rollout_decode")):
        adapter = build(given.checkpoint, side, given.dtype, min(8, given.sequences))
        request = ScoreRequest(id="benchmark", arm=arm)

        def observed(adapter: TorchAdapter = adapter, request: ScoreRequest = request) -> Any:
            return adapter.score(request, rollout)[1]["selected_logprob"]

        def plain(adapter: TorchAdapter = adapter, request: ScoreRequest = request) -> Cost:
            with unobserved(adapter):
                return timed(lambda: adapter.score(request, rollout))()

        with unobserved(adapter):
            without = adapter.score(request, rollout)[1]["selected_logprob"]
        if not np.array_equal(observed().numpy(), without.numpy(), equal_nan=True):
            raise SystemExit("the observers change the numbers")
        ratio = alternate(timed(observed), plain, given.rounds)
        tokens = int(rollout.active.sum())
        report(f"observer_cost {arm} {given.dtype}", ratio, as_json=given.json, active_tokens=tokens)


if __name__ == "__main__":
    main()
