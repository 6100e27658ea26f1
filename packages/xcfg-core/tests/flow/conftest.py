"""The documents, scores and rollout of one real attempt (S0, `batch.size=1`), to be changed one fact at a time.

The JSON documents are those of tests/schema/golden, the tensors lie in golden/, the rollout in tests/identity/golden.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from xcfg.artifacts.stored import StoredAttempt
from xcfg.artifacts.tensors import load_pt, save_pt
from xcfg.contract import load_contract
from xcfg.flow.documents import Actual, IdentityDocument, Requested
from xcfg.flow.judge import Judgement, judge
from xcfg.flow.record import score_file, stored_column
from xcfg.identity.rollout import Rollout, read_rollout
from xcfg.plugin.manager import PluginManager
from xcfg.schema.attempt import CaseSeal
from xcfg.schema.codec import convert, decode_json, evolve, pretty_json, read_strict
from xcfg.schema.contract import Contract
from xcfg.schema.names import Applied
from xcfg.schema.runtime import KnobApplication

HERE = Path(__file__).parent
DOCUMENTS = HERE.parent / "schema" / "golden"
ROLLOUT = HERE.parent / "identity" / "golden"
ARMS = ("training", "rollout_prefill")


@pytest.fixture(scope="session")
def contract() -> Contract:
    return load_contract()


@pytest.fixture(scope="session")
def rollout() -> Rollout:
    return read_rollout(ROLLOUT)


@pytest.fixture(scope="session")
def manager() -> PluginManager:
    """Core and nothing else that is installed."""
    return PluginManager.load(path=[], environ={})


@pytest.fixture
def golden() -> Callable[[str], Path]:
    return lambda name: DOCUMENTS / f"{name}.json"


@pytest.fixture
def case(rollout: Rollout, contract: Contract) -> SimpleNamespace:
    """The facts of the attempt: requested, actual, identity, scores (arm -> columns), rollout, contract."""
    return SimpleNamespace(
        requested=decode_json((DOCUMENTS / "requested.json").read_bytes(), Requested),
        actual=decode_json((DOCUMENTS / "actual.json").read_bytes(), Actual),
        identity=decode_json((DOCUMENTS / "identity.json").read_bytes(), IdentityDocument),
        scores={arm: load_pt(HERE / "golden" / score_file(arm, "rollout_prefill"))[0] for arm in ARMS},
        rollout=rollout,
        contract=contract,
    )


@pytest.fixture
def judged(case: SimpleNamespace) -> Callable[..., Judgement]:
    """judged(): the judgement of `case` as it stands now."""
    return lambda: judge(case.requested, case.actual, case.identity, case.scores, case.rollout, case.contract)


@pytest.fixture
def setting(case: SimpleNamespace) -> Callable[..., None]:
    """setting("training", "batch.size", status=...): change one judged application of the case (or its baseline)."""

    def change(arm: str, path: str, *, of: str = "applications", **facts: Any) -> None:
        table: Mapping[str, tuple[KnobApplication, ...]] = getattr(case.actual, of)
        assert any(item.path == path for item in table[arm])
        changed = tuple(evolve(item, **facts) if item.path == path else item for item in table[arm])
        case.actual = evolve(case.actual, **{of: {**table, arm: changed}})

    return change


@pytest.fixture
def fault(setting: Callable[..., None]) -> Callable[..., None]:
    """fault("training", "batch.size", "fallback"): what that engine really did."""
    return lambda arm, path, status: setting(arm, path, status=Applied(status), reason=f"{status} it was")


@pytest.fixture
def attempt(case: SimpleNamespace, judged: Callable[..., Judgement], tmp_path: Path) -> Callable[..., StoredAttempt]:
    """attempt(): `case` as a sealed attempt; attempt({"comparison.json": document or bytes}): altered, sealed again."""

    def seal(changes: Mapping[str, Any] | None = None) -> StoredAttempt:
        found = judged()
        files: dict[str, Any] = {
            "requested.json": case.requested,
            "actual.json": case.actual,
            "identity.json": case.identity,
            "comparison.json": found.comparison,
        }
        for arm, columns in case.scores.items():
            files[score_file(arm, case.requested.verdict_arm)] = save_pt(columns, {})
        if found.token_diffs:
            columns = {stored_column(name): array for name, array in found.token_diffs.items()}
            files["token_diffs.pt"] = save_pt(columns, {})
        files |= changes or {}
        data = {
            name: content if isinstance(content, bytes) else pretty_json(content)
            for name, content in files.items()
            if content is not None
        }
        for name, content in data.items():
            (tmp_path / name).write_bytes(content)
        digests = {name: hashlib.sha256(content).hexdigest() for name, content in data.items()}
        document = read_strict(DOCUMENTS / "case_seal.json") | {"files": digests, "status": found.comparison.status}
        return StoredAttempt(tmp_path, convert(document, CaseSeal))

    return seal
