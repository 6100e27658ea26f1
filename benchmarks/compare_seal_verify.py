"""Judging, sealing and verifying 10^7 tokens against one numpy pass over them; memory per token at two sizes.

Subject: the judgement of one case (identity gate, the rule and the figures of two edges), its attempt sealed in a
store, and `verify` of that store, which hashes every file and judges again. Floor: d, |d|, the count over the
threshold, maximum and mean, once. Each size runs in a process of its own, so that the peak is its own.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xcfg
from _ratio import Ratio, Ratios, alternate, arguments, report, timed
from numpy.typing import NDArray
from xcfg.artifacts.store import Store
from xcfg.artifacts.stored import CaseFacts, ScoreFacts, StoredScore
from xcfg.artifacts.tensors import save_pt
from xcfg.contract import load_contract
from xcfg.flow.documents import ACTUAL, IDENTITY, REQUESTED, Actual, IdentityDocument, Requested
from xcfg.flow.judge import judge
from xcfg.flow.record import score_file, stored_column
from xcfg.identity.attest import expected_attestations
from xcfg.identity.rollout import Rollout, make_rollout
from xcfg.runtime.keys import score_key
from xcfg.schema.codec import pretty_json
from xcfg.schema.identity import CheckpointRef
from xcfg.schema.names import Phase, Status
from xcfg.schema.worker import BuildReport, RankRecord, ScoreReport, WeightReport

LENGTH, PROMPT = 1000, 200
SPREAD = 0.01
ARMS = ("training", "rollout_decode", "rollout_prefill")
JUDGED = ("PASS", "MISMATCH")
Columns = dict[str, NDArray[Any]]


@dataclass
class Problem:
    """A case that is ready to be judged: the frozen rollout, the scores of three arms, and its documents."""

    store: Store
    rollout: Rollout
    columns: dict[str, Columns]
    scores: dict[str, StoredScore]
    requested: Requested
    actual: Actual
    identity: IdentityDocument
    facts: CaseFacts


def make_problem(root: Path, tokens: int) -> Problem:
    """Return a case over `tokens` tokens in sequences of LENGTH, its side scores sealed under `root`."""
    rollout = _rollout(tokens)
    store = Store(root, "benchmark")
    store.put_rollout(rollout)
    rng = np.random.default_rng(1)
    truth = -rng.exponential(1.0, size=tokens).astype(np.float32)
    columns: dict[str, Columns] = {}
    scores: dict[str, StoredScore] = {}
    identity = _identity(rollout)
    for arm in ARMS:
        noise = rng.standard_normal(tokens, dtype=np.float32) * np.float32(SPREAD)
        phase = np.full(tokens, Phase.DECODE.value, dtype=np.int8)
        columns[arm] = {"selected_logprob": truth + noise, "active": rollout.active, "phase": phase}
        side = arm.partition("_")[0]
        known = {"arm": arm, "rollout": rollout.sha256}
        about = ScoreFacts(key=score_key(known), arm=arm, side=side, rollout=rollout.sha256, environment=known)
        ranks = {"builds": identity.builds[arm], "reports": identity.reports[arm]}
        files: dict[str, bytes | Path] = {
            "score.pt": save_pt(columns[arm], {"arm": arm}),
            "applications.json": pretty_json({"applications": []}),
            "ranks.json": pretty_json(ranks),
            "operators.json": b"{}",
            "timeline.json": b"{}",
        }
        scores[arm] = store.put_score(about, files)
    requested, actual = _requested(), _actual()
    revision = store.open_experiment({"id": "benchmark"}, [{"case_id": requested.case_id}], {"rollout": rollout.sha256})
    facts = CaseFacts(
        status=Status.PASS,
        experiment=revision.experiment_digest,
        plan_line=revision.plan_line(requested.case_id),
        contract=load_contract().digest,
        rollout=rollout.sha256,
        scores={arm: score.seal.key for arm, score in scores.items()},
    )
    return Problem(store, rollout, columns, scores, requested, actual, identity, facts)


def _rollout(tokens: int) -> Rollout:
    count = tokens // LENGTH
    inside = np.tile(np.arange(LENGTH), count)
    ids = np.random.default_rng(0).integers(0, 50_000, size=tokens)
    return make_rollout(
        {
            "token_ids": ids,
            "offsets": np.arange(count + 1) * LENGTH,
            "active_mask": inside >= PROMPT,
            "attention_mask": np.ones(tokens, dtype=np.bool_),
            "position_ids": inside,
            "selected_token_ids": ids,
            "segment": (inside >= PROMPT).astype(np.int8),
            "weight_version": np.zeros(tokens, dtype=np.int32),
        },
        checkpoint=CheckpointRef(uri="benchmark", digest="0" * 64),
    )


def _requested() -> Requested:
    return Requested(
        schema_version=REQUESTED,
        case_id="case-benchmark",
        label="benchmark",
        role="case",
        index=0,
        knobs={},
        delta={},
        operators={},
        runtime_options={},
        definitions={},
        strict=True,
        verdict_arm="rollout_decode",
        runtimes={},
    )


def _actual() -> Actual:
    return Actual(
        schema_version=ACTUAL,
        applications=dict.fromkeys(ARMS, ()),
        baseline={},
        compute_dtypes=dict.fromkeys(ARMS, "bfloat16"),
        provenance={},
        replica_disagreements={},
    )


def _identity(rollout: Rollout) -> IdentityDocument:
    weights = {"weight": "0" * 64}
    tokens = len(rollout.active)
    attested = expected_attestations(rollout)
    record = RankRecord(
        rank=0,
        world_size=1,
        role="owner",
        coordinates={},
        ranges=((0, tokens),),
        parallelism="none",
        dtype="bfloat16",
        padding_side="none",
        cache_mode="none",
        active_tokens=rollout.manifest.active_count,
    )
    held = WeightReport(method="digest", dtype="bfloat16", tensors=weights, fold="0")
    said = ScoreReport(
        request_id="0",
        rank=0,
        record=record,
        attestations=attested,
        fold_before="0",
        fold_after="0",
        transforms=(),
        state_unchanged=True,
        forwards=tokens,
        single_token_forwards=tokens,
    )
    return IdentityDocument(
        schema_version=IDENTITY,
        rollout=rollout.sha256,
        checkpoint={},
        manifest={},
        expected_weights={"bfloat16": weights},
        builds=dict.fromkeys(ARMS, (BuildReport(rank=0, world_size=1, weights=held),)),
        reports=dict.fromkeys(ARMS, (said,)),
    )


def judged_and_sealed(problem: Problem) -> None:
    """Judge the case and seal it; SystemExit when it has no numbers."""
    documents = (problem.requested, problem.actual, problem.identity)
    judgement = judge(*documents, problem.columns, problem.rollout, load_contract())
    comparison = judgement.comparison
    if comparison.status not in JUDGED:
        raise SystemExit(f"the benchmark's case has no numbers: {comparison.status}, {comparison.reason}")
    diffs = {stored_column(name): array for name, array in judgement.token_diffs.items()}
    files: dict[str, bytes | Path] = {
        "requested.json": pretty_json(problem.requested),
        "materialized.json": pretty_json({"sides": {}}),
        "actual.json": pretty_json(problem.actual),
        "identity.json": pretty_json(problem.identity),
        "comparison.json": pretty_json(comparison),
        "token_diffs.pt": save_pt(diffs, {}),
    }
    links = {score_file(arm, "rollout_decode"): score for arm, score in problem.scores.items()}
    values = {name: getattr(problem.facts, name) for name in problem.facts.__dataclass_fields__}
    found = {"status": Status(comparison.status), "assessment": comparison.assessment.assessment}
    problem.store.put_attempt(problem.requested.case_id, CaseFacts(**values | found), files, links)


def verified(root: Path) -> None:
    """Verify everything under `root`; SystemExit when something does not hold."""
    for check in xcfg.verify(root).attempts:
        if not check.ok:
            raise SystemExit(f"{check.path}: {check.reasons}")


def one_pass(problem: Problem, limit: float) -> tuple[int, float, float]:
    """Return mismatches, maximum and mean of |training - decode| over the active tokens."""
    mask = problem.rollout.active
    first, second = (problem.columns[arm]["selected_logprob"].astype(np.float64) for arm in ARMS[:2])
    size = np.abs(first - second)[mask]
    return int((size > limit).sum()), float(size.max()), float(size.mean())


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measure(tokens: int, rounds: int) -> dict[str, Any]:
    """Return seconds by part, round by round, and how far the peak rose above what the inputs alone take."""
    limit = load_contract().accuracy.default["logprob"]["bfloat16"].atol
    parts: dict[str, list[float]] = {"judge and seal": [], "verify": []}
    with tempfile.TemporaryDirectory() as scratch:
        problem = make_problem(Path(scratch), tokens)
        before = peak_bytes()
        judged_and_sealed(problem)
        verified(Path(scratch))
        peak = peak_bytes()

        def clocked(name: str, work: Callable[[], Any]) -> None:
            started = time.perf_counter()
            work()
            parts[name].append(time.perf_counter() - started)

        def subject() -> None:
            clocked("judge and seal", lambda: judged_and_sealed(problem))
            clocked("verify", lambda: verified(problem.store.folder / "cases" / "case-benchmark" / _newest(problem)))

        ratios = alternate(timed(subject), timed(lambda: one_pass(problem, limit)), rounds, warm=0)
    return {"wall": vars(ratios.wall), "cpu": vars(ratios.cpu), "before": before, "peak": peak, "parts": parts}


def _newest(problem: Problem) -> str:
    return max(folder.name for folder in (problem.store.folder / "cases" / "case-benchmark").iterdir())


def child(tokens: int, rounds: int) -> dict[str, Any]:
    command = [sys.executable, __file__, "--child", str(tokens), "--rounds", str(rounds)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def main() -> None:
    parser = arguments(__doc__, 3)
    parser.add_argument("--tokens", type=int, default=10_000_000)
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        print(json.dumps(measure(given.child, given.rounds)))
        return
    sizes = (given.tokens // 10, given.tokens)
    found = {size: child(size, given.rounds) for size in sizes}
    rise = {f"{size:,} tokens": (found[size]["peak"] - found[size]["before"]) / size for size in sizes}
    whole = {f"{size:,} tokens": found[size]["peak"] / size for size in sizes}
    last = found[given.tokens]
    report(
        f"compare_seal_verify {given.tokens:,} tokens",
        Ratios(Ratio(**last["wall"]), Ratio(**last["cpu"])),
        as_json=given.json,
        seconds={name: sorted(values)[len(values) // 2] for name, values in last["parts"].items()},
        peak_bytes_per_token=whole,
        peak_bytes_per_token_above_the_inputs=rise,
    )


if __name__ == "__main__":
    main()
