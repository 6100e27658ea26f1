"""Several processes on one root, at once. usage: race.py FOLDER PROCESSES ROUNDS. Prints one JSON object."""

from __future__ import annotations

import json
import multiprocessing
import sys
from pathlib import Path
from typing import Any

import sample
from xcfg.artifacts.store import Store
from xcfg.artifacts.verify import check_seals
from xcfg.errors import ConfigError


def compete(root: Path, me: int, rounds: int, barrier: Any, results: Any) -> None:
    store = Store(root, "demo")
    plan = [{"case_id": f"case-{index}"} for index in range(rounds)]
    barrier.wait()
    revision = store.open_experiment({"x": 1}, plan, sample.IDENTITY)
    store.put_rollout(sample.rollout())
    mine: list[Any] = [revision.number]
    for index in range(rounds):
        barrier.wait()
        key = f"key-{index}"
        score = store.put_score(sample.score_facts(key, "training"), sample.score_files(f"{me}-{index}"))
        facts = sample.CaseFacts(
            status=sample.Status.NOT_COMPARABLE,
            experiment=revision.experiment_digest,
            plan_line=revision.plan_line(f"case-{index}"),
            rollout=sample.rollout().sha256,
            scores={"training": key},
        )
        files = sample.failure_files("NOT_COMPARABLE", f"case-{index}")
        attempt = store.put_attempt(f"case-{index}", facts, files, {"score_training.pt": score})
        mine.append((score.path.name, score.seal.files["score.pt"], attempt.seal.attempt_id))
    barrier.wait()
    mine.append(store.open_experiment({"x": 1, "by": me}, plan, sample.IDENTITY).number)
    barrier.wait()
    mine.append(store.put_analysis({"x": 1}).name)
    results.put(mine)


def pin(root: Path, me: int, rounds: int, barrier: Any, results: Any) -> None:
    outcome = []
    for index in range(rounds):
        barrier.wait()
        try:
            Store(root, f"pin-{index}").open_experiment({"x": me}, [{"case_id": "a"}], {"rollout": str(me)})
            outcome.append("opened")
        except ConfigError as error:
            outcome.append(error.kind)
    results.put(outcome)


def together(work: Any, root: Path, count: int, rounds: int) -> list[Any]:
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(count), context.Queue()
    processes = [context.Process(target=work, args=(root, me, rounds, barrier, results)) for me in range(count)]
    for process in processes:
        process.start()
    answers = [results.get(timeout=60) for _ in processes]
    for process in processes:
        process.join(timeout=60)
    return answers


def main(root: Path, count: int, rounds: int) -> None:
    answers = together(compete, root, count, rounds)
    store = Store(root, "demo")
    bad = [f"{check.path}: {check.reasons}" for check in check_seals(root) if not check.ok and not check.unfinished]
    notes = [f"{check.path}: {check.reasons}" for check in check_seals(root) if check.ok and check.reasons]
    attempts = [[entry.seal.attempt_id for entry in store.attempts(case).valid] for case in store.case_ids()]
    pins = together(pin, root, count, rounds)
    print(json.dumps({"answers": answers, "bad": bad, "notes": notes, "attempts": attempts, "pins": pins}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
