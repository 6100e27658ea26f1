"""A small experiment, without torch: its `.pt` payloads are arbitrary bytes, which the store never opens."""

from __future__ import annotations

import functools
import hashlib
import json

import numpy as np
from xcfg.artifacts.store import Store
from xcfg.artifacts.stored import CaseFacts, ScoreFacts, StoredAttempt, StoredScore
from xcfg.identity.rollout import Rollout, make_rollout
from xcfg.schema.identity import CheckpointRef
from xcfg.schema.names import Status

CONTRACT = hashlib.sha256(b"contract").hexdigest()
CASE, OTHER = "case-0123456789abcdef0123", "case-fedcba9876543210fedc"
IDENTITY = {"rollout": "r" * 64, "checkpoint": "c", "tokenizer": "t", "sampling": "s"}


def experiment(note: str = "") -> dict[str, object]:
    return {
        "schema_version": "cross_config.experiment_config.v2",
        "experiment_id": "demo",
        "baseline": {},
        "note": note,
    }


def plan(note: str = "") -> list[dict[str, object]]:
    return [{"case_id": case_id, "label": label, "note": note} for case_id, label in ((CASE, "a"), (OTHER, "b"))]


@functools.cache
def rollout(tokens: int = 8) -> Rollout:
    active = np.ones(tokens, bool)
    active[0] = False
    return make_rollout(
        {
            "token_ids": np.arange(tokens),
            "offsets": np.array([0, tokens]),
            "active_mask": active,
            "attention_mask": np.ones(tokens, bool),
            "position_ids": np.arange(tokens),
            "selected_token_ids": np.arange(tokens),
            "segment": np.ones(tokens),
            "weight_version": np.zeros(tokens),
        },
        checkpoint=CheckpointRef(uri="builtin:tiny"),
    )


def score_facts(key: str, arm: str) -> ScoreFacts:
    side = "training" if arm == "training" else "rollout"
    return ScoreFacts(
        key=key, arm=arm, side=side, rollout=rollout().sha256, environment={"torch": "2.13", "cuda": None}
    )


def score_files(seed: str, size: int = 700) -> dict[str, bytes]:
    return {
        "score.pt": (seed.encode() * size)[:size],
        "applications.json": b"[]\n",
        "ranks.json": b"[]\n",
        "operators.json": b"{}\n",
        "timeline.json": b"[]\n",
        "worker-0.log": b"scored\n",
    }


def comparison(status: str, case_id: str = CASE, assessment: str = "UNDECIDED") -> bytes:
    return json.dumps(
        {
            "schema_version": "xcfg.comparison.v1",
            "case_id": case_id,
            "status": status,
            "assessment": {"assessment": assessment},
            "contract": {"digest": CONTRACT},
        }
    ).encode()


def case_files(status: str = "MISMATCH", case_id: str = CASE) -> dict[str, bytes]:
    return {
        "requested.json": json.dumps({"case_id": case_id}).encode(),
        "materialized.json": b"{}\n",
        "actual.json": b"{}\n",
        "identity.json": b"{}\n",
        "comparison.json": comparison(status, case_id),
        "token_diffs.pt": b"differences" * 90,
    }


def failure_files(status: str, case_id: str = CASE) -> dict[str, bytes]:
    return {
        "requested.json": json.dumps({"case_id": case_id}).encode(),
        "failure.json": json.dumps({"status": status, "reason": "no kernel"}).encode(),
        "worker-0.log": b"traceback\n",
    }


def case_facts(store: Store, status: Status = Status.MISMATCH, case_id: str = CASE, **changes: object) -> CaseFacts:
    revision = store.revisions()[-1]
    fields: dict[str, object] = {
        "status": status,
        "assessment": "UNDECIDED",
        "experiment": revision.experiment_digest,
        "plan_line": revision.plan_line(case_id),
        "contract": CONTRACT,
        "rollout": rollout().sha256,
        "scoring_key": "5" * 64,
        "comparison_key": "6" * 64,
        "scores": {"training": "train", "rollout_decode": "decode"},
    }
    return CaseFacts(**(fields | changes))


def open_demo(store: Store, note: str = ""):
    return store.open_experiment(experiment(note), plan(note), IDENTITY)


def put_scores(store: Store) -> tuple[StoredScore, StoredScore]:
    return (
        store.put_score(score_facts("train", "training"), score_files("t")),
        store.put_score(score_facts("decode", "rollout_decode"), score_files("d")),
    )


def put_case(store: Store, case_id: str = CASE) -> StoredAttempt:
    training, decode = put_scores(store)
    links = {"score_training.pt": training, "score_rollout.pt": decode}
    return store.put_attempt(case_id, case_facts(store, case_id=case_id), case_files(case_id=case_id), links)


def put_failure(store: Store, case_id: str = OTHER) -> StoredAttempt:
    facts = case_facts(store, Status.UNSUPPORTED, case_id, scores={}, assessment="")
    return store.put_attempt(case_id, facts, failure_files("UNSUPPORTED", case_id))


def whole_run(store: Store) -> None:
    """What a run does, as a flow would: reuse what is valid, make what is missing."""
    open_demo(store)
    store.put_rollout(rollout())
    for case_id, put in ((CASE, put_case), (OTHER, put_failure)):
        if not store.attempts(case_id).valid:
            put(store, case_id)
    store.put_analysis({"conclusion": "nothing"})
    put_ended(store)
    open_demo(store, "grown")


def put_ended(store: Store):
    cases = {case_id: store.attempts(case_id).valid[0].seal.attempt_id for case_id in (CASE, OTHER)}
    return store.put_ended(store.revisions()[0].experiment_digest, cases)


def is_whole(store: Store) -> bool:
    scores = all(store.find_score(key) for key in ("train", "decode"))
    attempts = all(len(store.attempts(case_id).valid) == 1 for case_id in (CASE, OTHER))
    return scores and attempts and len(store.revisions()) == 2 and store.find_rollout(rollout().sha256) is not None
