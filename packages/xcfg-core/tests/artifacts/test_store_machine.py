"""Any sequence of writes, damage and repeats: nothing published changes, and what is valid is found."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from xcfg.artifacts.store import Store
from xcfg.artifacts.verify import check_seals

ROOT = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def machine(sample) -> type[RuleBasedStateMachine]:
    class StoreMachine(RuleBasedStateMachine):
        """Keeps beside the store what must be in it: damaged folders and the SHA-256 of every other file."""

        def __init__(self) -> None:
            super().__init__()
            self.base = Path(tempfile.mkdtemp(prefix="xcfg-test-", dir=ROOT))
            self.seen: dict[Path, str] = {}
            self.damaged: set[Path] = set()
            self.attempts: list[Path] = []

        @initialize()
        def open(self) -> None:
            self.store = Store(self.base, "demo")
            sample.open_demo(self.store)
            self.store.put_rollout(sample.rollout())

        @rule(note=st.sampled_from(["", "a", "b"]))
        def revise(self, note: str) -> None:
            assert sample.open_demo(self.store, note).plan() == sample.plan(note)

        @rule()
        def judge(self) -> None:
            self.attempts.append(sample.put_case(self.store).path)

        @rule(key=st.sampled_from(["train", "other"]), fresh=st.booleans())
        def score(self, key: str, fresh: bool) -> None:
            stored = self.store.put_score(sample.score_facts(key, "training"), sample.score_files(key), fresh=fresh)
            assert self.store.find_score(key) == stored

        @rule(pick=st.randoms(use_true_random=False))
        def damage(self, pick) -> None:
            sealed = [path for path in self.folders() if path not in self.damaged]
            if not sealed:
                return
            folder = pick.choice(sealed)
            name = pick.choice(sorted(path.name for path in folder.iterdir()))
            data = bytearray((folder / name).read_bytes())
            data[pick.randrange(len(data))] ^= 1 << pick.randrange(8)
            (folder / name).unlink()  # a new inode, so that copies elsewhere stay whole
            (folder / name).write_bytes(data)
            self.damaged.add(folder)

        @rule()
        def reopen(self) -> None:
            self.store = Store(self.base, "demo")

        def folders(self) -> list[Path]:
            root = self.store.folder
            return sorted([*root.glob("scores/*"), *root.glob("cases/*/attempt-*")])

        @invariant()
        def nothing_published_changed(self) -> None:
            if not hasattr(self, "store"):
                return
            for path in self.store.folder.rglob("*"):
                if path.is_file() and path.parent not in self.damaged:
                    digest = hashlib.sha256(path.read_bytes()).hexdigest()
                    assert self.seen.setdefault(path, digest) == digest

        @invariant()
        def exactly_the_damaged_ones_are_rejected(self) -> None:
            if not hasattr(self, "store") or not self.folders():
                return
            checks = check_seals(self.store.folder)
            wrong = {Path(check.path) for check in checks if not check.ok and not check.unfinished}
            assert wrong == self.damaged
            found = self.store.attempts(sample.CASE)
            assert [entry.path for entry in found.valid] == [
                path for path in reversed(self.attempts) if path not in self.damaged
            ]

        def teardown(self) -> None:
            shutil.rmtree(self.base, ignore_errors=True)

    return StoreMachine


@pytest.mark.timeout(60)
def test_any_sequence_of_writes_and_damage(sample):
    limits = settings(max_examples=12, stateful_step_count=14, suppress_health_check=list(HealthCheck))
    case = machine(sample).TestCase
    case.settings = limits
    case("runTest").runTest()
