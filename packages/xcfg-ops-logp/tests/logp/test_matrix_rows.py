"""The matrix on phases made by hand: gates that are not met, controls that fail, and one factor against float64."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from xcfg.errors import IdentityError, UsageError
from xcfg.plugin.protocols import MatrixRequest
from xcfg.schema.codec import evolve
from xcfg_ops_logp.matrix.capture import PROCESSES, SCALE, Capture
from xcfg_ops_logp.matrix.measure import change, invariance, replayed
from xcfg_ops_logp.matrix.replay import phase_of
from xcfg_ops_logp.matrix.rows import CAPTURE, MATRIX, TABLE, changed
from xcfg_ops_logp.matrix.run import Frozen, _Matrix
from xcfg_ops_logp.plugin import REFERENCE
from xcfg_ops_logp.reference import build, evaluate
from xcfg_ops_logp.torch_backends import REFERENCE_FLOAT32

ENTRIES = 512
TOKENS = 20
ARMS = ("training", "rollout_prefill", "rollout_decode")


def kept(folder: Path, *, seed: int, factory: str = REFERENCE.factory, scale: float = 4.0):
    """Capture TOKENS rows in three calls, in an order that is not that of the tokens; return score and operands."""
    generator = torch.Generator().manual_seed(seed)
    logits = (scale * torch.randn(TOKENS, ENTRIES, generator=generator)).to(torch.bfloat16)
    selected = torch.randint(0, ENTRIES, (TOKENS,), generator=torch.Generator().manual_seed(7))
    folder.mkdir(parents=True, exist_ok=True)
    capture = Capture(folder=str(folder), factory=factory, options="{}")
    score = torch.full((TOKENS,), torch.nan, dtype=torch.float64)
    for rows in torch.randperm(TOKENS, generator=generator).split(8):
        score[rows] = capture(logits[rows], selected[rows])
    return score.float().numpy(), logits, selected


@pytest.fixture
def frozen(tmp_path):
    """A sound replay of three arms."""
    found = Frozen("MISMATCH", threshold=0.01)
    for seed, arm in enumerate(ARMS):
        score, _, selected = kept(tmp_path / arm, seed=seed)
        found.phases[arm] = phase_of(arm, tmp_path / arm, score, np.ones(TOKENS, dtype=bool))
        found.selected = selected.numpy()
    return found


def rows_of(frozen, *, backend=REFERENCE, operator=None, table=TABLE):
    request = MatrixRequest(file=Path("none.json"), rows=tuple(table), plugins=None)
    return _Matrix(request, backend, operator or build(), frozen).rows()


def test_every_token_finds_its_own_row(tmp_path):
    """If this fails, drift is computed between different tokens."""
    score, logits, selected = kept(tmp_path / "a", seed=3)
    phase = phase_of("training", tmp_path / "a", score, np.ones(TOKENS, dtype=bool))
    seen = set()
    for call in phase.calls():
        for row, token in enumerate(call.tokens.tolist()):
            assert torch.equal(call.logits[row], logits[token])
            assert call.selected[row] == selected[token]
            seen.add(token)
    assert seen == set(range(TOKENS))


def test_a_token_without_a_row_is_refused(tmp_path):
    """If this fails, an engine that changes what its operator returned is replayed on the wrong rows."""
    score, *_ = kept(tmp_path / "a", seed=3)
    active = np.ones(TOKENS, dtype=bool)
    for broken in (score * 1.5, np.where(np.arange(TOKENS) == 4, np.nan, score)):
        with pytest.raises(IdentityError, match="name no captured row"):
            phase_of("training", tmp_path / "a", broken, active)
    with pytest.raises(IdentityError, match="share"):
        phase_of("training", tmp_path / "a", np.full(TOKENS, SCALE, dtype=np.float32), active)


def test_processes_have_rows_of_their_own(tmp_path):
    """If this fails, two ranks give one row two meanings."""
    capture = [Capture(folder=str(tmp_path), factory=REFERENCE.factory, options="{}") for _ in range(2)]
    first, second = (item(torch.zeros(3, 4), torch.zeros(3, dtype=torch.int64)) for item in capture)
    assert not set(first.tolist()) & set(second.tolist())
    assert torch.equal(second.float().double(), second), "a float32 score holds them exactly"
    for index in range(2, PROCESSES):
        (tmp_path / f"process-{index:02d}").mkdir()
    with pytest.raises(UsageError, match="processes"):
        Capture(folder=str(tmp_path), factory=REFERENCE.factory, options="{}")


def test_a_sound_replay_is_zero_on_the_reference(frozen):
    """If this fails, the matrix reports drift where there is none, or hides rows."""
    found = rows_of(frozen)
    held = [row for row in found if row.role in ("gate", "baseline", "control")]
    assert {row.status for row in held} == {"PASS"}
    assert all(row.metrics["unequal"] == 0 for row in held if row.role != "gate")
    assert all(not row.metrics for row in held if row.role == "gate")
    changed_rows = [row for row in found if row.row == "L3"]
    assert len(changed_rows) == 4 * sum(item.row == "L3" for item in TABLE)
    assert all(row.comparable and row.status == "PASS" for row in changed_rows)
    assert any(row.metrics["unequal"] for row in changed_rows if row.probe == "merge_order")
    assert [row.role for row in found].index("row") > max(i for i, row in enumerate(found) if row.role == "control")


def test_a_reference_that_depends_on_the_batch_stops_every_row(frozen):
    """If this fails, a broken control is followed by numbers."""
    whole = build()

    def depends(logits, selected):
        return whole(logits, selected) + (1e-12 if len(logits) == 1 else 0.0)

    found = rows_of(frozen, operator=depends)
    assert {row.status for row in found if row.row == "LC0"} == {"CONTROL_FAILED"}
    after = [row for row in found if row.row == "L3"]
    assert {row.status for row in after} == {"CONTROL_FAILED"}
    assert all(not row.comparable and not row.metrics and "LC0" in row.reason for row in after)
    only = rows_of(frozen, operator=depends, table=[item for item in TABLE if item.row == "L3"])
    assert {row.status for row in only} == {"CONTROL_FAILED"}, "a selection of rows does not go round the control"


def test_on_a_native_backend_the_same_control_is_a_measurement(frozen):
    """If this fails, a native kernel cannot be measured, or its batch dependence is not reported."""
    whole = build()

    def depends(logits, selected):
        return whole(logits, selected) + (2.0**-30 if len(logits) == 1 else 0.0)

    found = rows_of(frozen, backend=evolve(REFERENCE, backend_id="somebody.native"), operator=depends)
    control = [row for row in found if row.row == "LC0"]
    assert {row.status for row in control} == {"PASS"}
    assert all(row.metrics["unequal"] >= TOKENS and row.reason for row in control)
    assert control[0].metrics["out_max_abs"] == pytest.approx(2.0**-30, rel=1e-3)
    assert all(row.comparable for row in found if row.row == "L3")


def test_a_baseline_that_is_not_what_the_worker_computed_stops_every_row(frozen):
    """If this fails, rows are measured on logits that are not those of the run."""
    found = rows_of(frozen, operator=lambda logits, selected: build()(logits, selected) + 1e-9)
    assert {row.status for row in found if row.row == "L0"} == {"CONTROL_FAILED"}
    assert all(not row.metrics for row in found if row.row == "L3")


def test_an_unmet_gate_leaves_no_number(frozen):
    """If this fails, another token is scored as drift."""
    frozen.selected = frozen.selected.copy()
    frozen.selected[5] = (frozen.selected[5] + 1) % ENTRIES
    found = rows_of(frozen)
    assert {row.status for row in found if row.row != "L1"} == {"INVALID_IDENTITY"}
    assert all(not row.metrics and not row.comparable for row in found if row.row != "L1")
    assert "token 5" in next(row.reason for row in found if row.row == "L2")


def test_masked_columns_that_were_captured_unmasked_are_an_unmet_gate(frozen):
    """If this fails, padded columns in one denominator are reported as rounding."""
    said = {"vocabulary": {"policy": "mask", "real": 500, "padded": ENTRIES}}
    frozen.reports = {"training": (SimpleNamespace(mechanism=said),)}
    found = [row for row in rows_of(frozen) if row.edge == "training_vs_rollout_prefill" and row.row != "L2"]
    assert {row.status for row in found} == {"NOT_COMPARABLE"}
    assert all(not row.comparable and not row.metrics for row in found)
    assert "masks 12 of 512 columns" in found[0].reason


def test_vocabularies_of_two_sizes_are_an_unmet_gate(frozen, tmp_path):
    """If this fails, an engine that sums over padded columns is compared with one that has none."""
    folder = tmp_path / "wide"
    folder.mkdir()
    capture = Capture(folder=str(folder), factory=REFERENCE.factory, options="{}")
    score = capture(torch.zeros(TOKENS, 768), torch.from_numpy(frozen.selected)).float().numpy()
    frozen.phases["training"] = phase_of("training", folder, score, np.ones(TOKENS, dtype=bool))
    said = {"vocabulary": {"policy": "include", "real": 500, "padded": 768}}
    frozen.reports = {"training": (SimpleNamespace(mechanism=said),)}
    found = [row for row in rows_of(frozen) if row.edge == "training_vs_rollout_prefill" and row.row != "L2"]
    assert {(row.status, bool(row.metrics)) for row in found} == {("NOT_COMPARABLE", False)}
    assert "768" in found[0].reason and "512" in found[0].reason


def test_a_run_without_numbers_gives_none_here(frozen):
    """If this fails, a run that was refused has rows that pass."""
    found = rows_of(Frozen("INVALID_IDENTITY", "the sides applied other transforms"))
    assert {(row.status, row.comparable, bool(row.metrics)) for row in found} == {("INVALID_IDENTITY", False, False)}
    del frozen.phases["rollout_decode"]
    half = rows_of(frozen)
    assert {row.status for row in half if row.edge.endswith("decode")} == {"UNSUPPORTED"}
    assert {row.status for row in half if not row.edge.endswith("decode")} == {"PASS"}


@pytest.mark.parametrize("probe", [item.probe for item in TABLE if item.row == "L3"])
def test_one_factor_moves_no_more_than_float32_rounds(tmp_path, probe):
    """If this fails, a probe computes another function: float64 says how far either of the two may be."""
    score, logits, selected = kept(tmp_path / "mine", seed=11)
    phase = phase_of("training", tmp_path / "mine", score, np.ones(TOKENS, dtype=bool))
    exact = evaluate(logits, selected)
    ends = [dict(enumerate(exact.logprob.tolist())), dict(enumerate((exact.logprob - 0.5).tolist()))]
    metrics, program = change(phase, *changed(probe, ENTRIES), ends, first=True, training=True)
    bound = 4 * torch.finfo(torch.float32).eps * float(exact.logprob.abs().max() + exact.logsumexp.abs().max())
    assert 0 <= metrics["out_max_abs"] <= bound
    assert metrics["dlogits_max_abs"] <= 4 * torch.finfo(torch.float32).eps
    assert metrics["selected_max_abs_without"] == pytest.approx(0.5)
    assert abs(metrics["selected_max_abs"] - 0.5) <= bound
    assert metrics["mismatch_kl"] == pytest.approx(-0.5, abs=bound)
    assert metrics["mismatch_k3_kl"] == pytest.approx(float(np.exp(0.5)) - 1.5, abs=2 * bound)
    assert program["ran"][next(iter(program["factor"]))] == next(iter(program["factor"].values()))


def test_a_factor_without_effect_is_not_a_pass(tmp_path):
    """If this fails, a tile as wide as the vocabulary is reported as a tile that moves nothing."""
    found = Frozen("PASS", threshold=0.01)
    for arm in ARMS:
        (tmp_path / arm).mkdir()
        capture = Capture(folder=str(tmp_path / arm), factory=REFERENCE.factory, options="{}")
        score = capture(torch.zeros(TOKENS, 1), torch.zeros(TOKENS, dtype=torch.int64)).float().numpy()
        found.phases[arm] = phase_of(arm, tmp_path / arm, score, np.ones(TOKENS, dtype=bool))
    found.selected = np.zeros(TOKENS, dtype=np.int64)
    rows = rows_of(found, table=[item for item in TABLE if item.probe == "merge_order"])
    assert {(row.status, row.comparable) for row in rows} == {("UNOBSERVABLE", False)}
    assert "over 1 entries" in rows[0].reason


def test_the_float32_reference_is_invariant_too(frozen):
    """If this fails, `--backend xcfg.reference_logp_float32` has no control."""
    from xcfg_ops_logp.reference import build_float32

    base = replayed(frozen.phases["training"], build_float32())
    assert invariance(frozen.phases["training"], build_float32(), base)["unequal"] == 0
    assert base.unequal, "float64 was captured, so the float32 replay has to differ"
    assert REFERENCE_FLOAT32.backend_id.startswith("xcfg.reference_logp")


def test_the_table_names_each_row_once():
    """If this fails, a manifest cannot say which row it means."""
    keys = [(item.row, item.probe) for item in TABLE]
    assert len(set(keys)) == len(keys)
    assert set(MATRIX.rows) == {item.row for item in TABLE}
    assert CAPTURE.diagnostic_only
