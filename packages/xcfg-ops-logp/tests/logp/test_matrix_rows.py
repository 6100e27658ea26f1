"""The matrix on phases made by hand: gates that are not met, controls that fail, and one factor against float64."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from xcfg.errors import IdentityError, UsageError, XcfgError
from xcfg.plugin.protocols import MatrixRequest
from xcfg.schema.codec import evolve
from xcfg_ops_logp.ablation.descriptor import ORDERS
from xcfg_ops_logp.ablation.operator import Ablation
from xcfg_ops_logp.matrix import measure
from xcfg_ops_logp.matrix.capture import PROCESSES, SCALE, Capture
from xcfg_ops_logp.matrix.frozen import Frozen
from xcfg_ops_logp.matrix.guarded import Guarded
from xcfg_ops_logp.matrix.measure import change, invariance, replayed
from xcfg_ops_logp.matrix.replay import phase_of
from xcfg_ops_logp.matrix.rows import CAPTURE, MATRIX, TABLE, changed
from xcfg_ops_logp.matrix.run import _Matrix
from xcfg_ops_logp.plugin import REFERENCE
from xcfg_ops_logp.reference import build, evaluate
from xcfg_ops_logp.torch_backends import REFERENCE_FLOAT32, TREE

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

    found = rows_of(frozen, backend=evolve(REFERENCE, backend_id="somebody.native", properties=()), operator=depends)
    control = [row for row in found if row.row == "LC0"]
    assert {row.status for row in control} == {"PASS"}
    assert all(row.metrics["unequal"] >= TOKENS and row.reason for row in control)
    assert control[0].metrics["out_max_abs"] == pytest.approx(2.0**-30, rel=1e-3)
    assert all(row.comparable for row in found if row.row == "L3")


@pytest.fixture
def sound(tmp_path):
    """A sound replay of three arms, and what becomes of its baselines under another operator."""

    def rows(operator, backend=TREE):
        found = Frozen("MISMATCH", threshold=0.01)
        for seed, arm in enumerate(ARMS):
            folder = tmp_path / f"{arm}-{len(list(tmp_path.iterdir()))}"
            score, _, selected = kept(folder, seed=seed)
            found.phases[arm] = phase_of(arm, folder, score, np.ones(TOKENS, dtype=bool))
            found.selected = selected.numpy()
        return rows_of(found, backend=backend, operator=operator)

    return rows


def test_a_backend_that_is_far_from_the_reference_does_not_pass(sound):
    """If this fails, a wrong kernel is held against itself alone, and passes."""
    exact = build()
    unclaimed = evolve(TREE, properties=())
    found = sound(lambda logits, ids: exact(logits, ids) + 0.5, unclaimed)
    baselines = [row for row in found if row.row == "L0"]
    assert {row.status for row in baselines} == {"MISMATCH"}
    assert all("nats from xcfg.reference_logp" in row.reason for row in baselines)
    assert all(row.metrics["reference_max_abs"] == pytest.approx(0.5) for row in baselines)
    near = sound(exact)
    assert {row.metrics["reference_max_abs"] for row in near if row.row == "L0"} == {0.0}
    assert {row.status for row in near} == {"PASS"}


@pytest.mark.parametrize("value", [float("nan"), -float("inf"), float("inf")])
def test_values_that_are_not_finite_have_no_row(sound, value):
    """If this fails, a NaN equals a NaN, and a side without one number passes."""
    found = sound(lambda logits, ids: torch.full(ids.shape, value, dtype=torch.float64))
    later = [row for row in found if row.role != "gate"]
    assert {row.status for row in later} == {"INVALID_ARTIFACT"}
    assert not any(row.metrics or row.comparable for row in later)
    assert all(f"{TOKENS} of {TOKENS} active log probabilities" in row.reason for row in later)
    exact = build()

    def alone(logits, ids):
        return exact(logits, ids) + (value if len(ids) == 1 else 0.0)

    control = [row for row in sound(alone) if row.row == "LC0"]
    assert {row.status for row in control} == {"INVALID_ARTIFACT"} and not any(row.metrics for row in control)


def test_a_claim_that_the_control_refutes_is_no_measurement(sound):
    """If this fails, a backend that declares batch invariance and lacks it passes."""
    exact = build()
    found = sound(lambda logits, ids: exact(logits, ids) + (2.0**-30 if len(ids) == 1 else 0.0))
    assert {row.status for row in found if row.row == "LC0"} == {"CONTROL_FAILED"}
    assert all("declares batch-invariant" in row.reason for row in found if row.row == "LC0")
    assert {row.status for row in found if row.row == "L3"} == {"CONTROL_FAILED"}


class Odd:
    """A right operator with one fault."""

    def __init__(self, fault):
        self.fault, self.transforms, self.scored_ids = fault, (), None
        if fault == "transforms":
            self.transforms = ("temperature:0.5",)

    def __call__(self, logits, selected):
        found = build()(logits, selected)
        if self.fault == "writes":
            logits.mul_(0)
        if self.fault == "raises":
            raise KeyError("lost")
        if self.fault == "other ids":
            self.scored_ids = selected.roll(1)
        return {"short": found[:-1], "half": found.half(), "none": None}.get(self.fault, found)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("transforms", "transforms logits"),
        ("writes", "wrote into its argument 0"),
        ("raises", "failed in the replay: KeyError"),
        ("other ids", "scored other ids"),
        ("short", "returned (4,), not (5,) values"),
        ("half", "returned torch.float16"),
        ("none", "returned NoneType"),
    ],
)
def test_what_a_run_refuses_of_an_operator_the_replay_refuses(fault, words):
    """If this fails, the matrix gives numbers of a backend that a run would not take, or calls its fault xcfg's."""
    with pytest.raises(XcfgError, match=re.escape(words)) as caught:
        Guarded(Odd(fault), "mine")(torch.randn(5, 16), torch.arange(5))
    assert "'mine'" in str(caught.value)


def test_what_a_backend_prints_is_not_in_the_report(capsys):
    """If this fails, the JSON of a matrix begins with what an operator printed."""

    def loud(logits, selected):
        print("loud")
        return build()(logits, selected)

    Guarded(loud, "mine")(torch.randn(5, 16), torch.arange(5))
    assert capsys.readouterr() == ("", "loud\n")


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


def placed(phase, shards, **extra):
    """Rewrite what an engine of several ranks would have left: where its ranks were placed."""
    for file in phase.files:
        torch.save({**torch.load(file), "shards": torch.tensor(shards), **extra}, file)


def ranks(*said, **shared):
    """Score reports of tensor-parallel ranks 0, 1, ...: the ids that each says it holds (None: it does not say)."""
    reports = []
    for rank, shard in enumerate(said):
        mechanism = shared if shard is None else {**shared, "vocabulary_shard": list(shard)}
        reports.append(SimpleNamespace(mechanism=mechanism, record=SimpleNamespace(coordinates={"tp": rank})))
    return tuple(reports)


WRONG_MAPS = {
    "overlap": (((0, 257), (256, 512)), "the id 256 is owned by ranks 0, 1"),
    "gap": (((0, 255), (256, 512)), "the id 255 is owned by no rank"),
    "shifted by one": (((1, 257), (257, 513)), "the id 0 is owned by no rank"),
    "one rank twice": (((0, 256), (0, 256)), "the id 0 is owned by ranks 0, 1"),
    "below zero": (((-1, 256), (256, 512)), "do not tile"),
    "too short": (((0, 256), (256, 511)), "end at 511, and the vocabulary has 512 ids"),
    "too long": (((0, 257), (257, 514)), "end at 514, and 512 columns are reported"),
}
SAYS = {"vocabulary": {"policy": "mask", "real": ENTRIES, "padded": ENTRIES}}


@pytest.mark.parametrize("source", ["placed", "reported"])
@pytest.mark.parametrize("fault", WRONG_MAPS)
def test_a_wrong_shard_map_is_an_unmet_gate(frozen, fault, source):
    """If this fails, an id that two ranks summed, or none, is measured as drift of a merge order."""
    shards, said = WRONG_MAPS[fault]
    if source == "placed":
        placed(frozen.phases["training"], shards)
        frozen.reports = {"training": ranks(None, None, **SAYS)}
    else:
        frozen.reports = {"training": ranks(*shards, **SAYS)}
    if (fault, source) == ("one rank twice", "reported"):
        said = "end at 256, and the vocabulary has 512 ids"  # as if each held the whole of it
    found = rows_of(frozen)
    refused = [row for row in found if row.edge == "training_vs_rollout_prefill" and row.row != "L2"]
    assert {(row.status, row.comparable, bool(row.metrics or row.program)) for row in refused} == {
        ("NOT_COMPARABLE", False, False)
    }
    assert all(said in row.reason and "training" in row.reason for row in refused), refused[0].reason
    assert {row.status for row in found if row.edge.endswith("decode")} == {"PASS"}
    only = rows_of(frozen, table=[item for item in TABLE if item.row == "L3"])
    assert not any(row.metrics for row in only if row.edge == "training_vs_rollout_prefill")


@pytest.mark.parametrize("source", ["placed", "reported"])
def test_two_splits_of_one_vocabulary_are_shown(frozen, source):
    """If this fails, sides that split the vocabulary otherwise are refused, or nobody sees how they did."""
    shards = ((0, 384), (384, 768))
    says = {"vocabulary": {"policy": "mask", "real": ENTRIES, "padded": 768}, "head_padding": {"largest_norm": 0.0}}
    if source == "placed":
        placed(frozen.phases["training"], shards)
    frozen.reports = {
        "training": ranks(*(shards if source == "reported" else (None, None)), **says),
        "rollout_prefill": ranks((0, 256), (256, 512)),
    }
    gate = rows_of(frozen)[0]
    assert (gate.row, gate.status, gate.comparable, gate.metrics) == ("L1", "PASS", True, {})
    assert gate.program["training"] == {
        "shards": [[0, 384], [384, 768]],
        "real": 512,
        "columns": 768,
        "policy": "mask",
        "pad_row_norm": 0.0,
        "largest_padded_logit": 0.0,
    }
    assert gate.program["rollout_prefill"]["shards"] == [[0, 256], [256, 512]]
    assert gate.program["common_tiles"] == [[0, 256, 0, 0], [256, 384, 0, 1], [384, 512, 1, 1]]
    frozen.reports["rollout_prefill"] = ranks((0, 512), (0, 512))
    assert rows_of(frozen)[0].program["rollout_prefill"]["shards"] == [[0, 512]], "every rank holds the whole head"


CONTRADICTIONS = {
    "a rank that says nothing": (ranks((0, 256), None, **SAYS), "the ranks [1] do not say which ids"),
    "no rank says anything": (ranks(None, None), "split over 2 ranks"),
    "other ids than the operator was given": (ranks((0, 256), (256, 500), **SAYS), "holds the ids (256, 500)"),
    "more ranks than shards": (ranks(None, None, None, None, **SAYS), "4 tensor-parallel ranks"),
    "zero rows with a logit": (ranks(None, None, **SAYS, head_padding={"largest_norm": 0.0}), "a logit there is 0.5"),
    "zero rows that enter the sum with a logit": (
        ranks(
            None,
            None,
            vocabulary={"policy": "include", "real": 500, "padded": 512},
            head_padding={"largest_norm": 0.0},
        ),
        "every head row beyond 500 ids is zero",
    ),
    "two vocabularies": (
        (*ranks(None, **SAYS), *ranks(None, None, vocabulary={"policy": "include", "real": 1, "padded": 2})[1:]),
        "different vocabularies",
    ),
}


@pytest.mark.parametrize("fault", CONTRADICTIONS)
def test_what_ranks_say_and_what_ran_must_fit(frozen, fault):
    """If this fails, a map is believed that nobody stated, or one that the run contradicts."""
    frozen.reports["training"], said = CONTRADICTIONS[fault]
    if "says" not in fault:
        placed(frozen.phases["training"], ((0, 256), (256, 512)), beyond=0.5)
    gate = rows_of(frozen)[0]
    assert (gate.status, gate.comparable, gate.metrics, gate.program) == ("NOT_COMPARABLE", False, {}, {})
    assert said in gate.reason


def test_replicas_and_calls_must_agree(frozen):
    """If this fails, a rank that was placed elsewhere half of the time is judged by its first call."""
    one, other = ranks((0, 512)), ranks((0, 500))
    frozen.reports["training"] = (*one, *other)
    assert "replicas of the tensor-parallel rank 0" in rows_of(frozen)[0].reason
    frozen.reports = {}
    file, *_ = frozen.phases["training"].files
    torch.save({**torch.load(file), "shards": torch.tensor([[0, 256], [256, 512]])}, file)
    assert "from one call to the next" in rows_of(frozen)[0].reason


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
    field = {"block_size": "fusion.block_size"}.get(*program["factor"], f"reduction.{next(iter(program['factor']))}")
    kind = "recorded" if field.startswith("fusion") else "measured"
    assert program["contract"] == {"status": "", "refused": "", "measured": [], "recorded": []} | {kind: [field]}


@pytest.mark.parametrize(
    ("more", "status", "field"),
    [
        ({"accum_dtype": "float64"}, "NOT_COMPARABLE", "precision.accum_dtype"),
        ({"transform_chain": "temperature:0.5"}, "INVALID_IDENTITY", "transform.transform_chain"),
    ],
)
def test_an_end_that_differs_in_more_than_the_factor_has_no_number(frozen, monkeypatch, more, status, field):
    """If this fails, what the contract of the operator binds is not asked, and two changes read as one."""

    class Careless(Ablation):
        def __init__(self, **options):
            super().__init__(**options | (more if options["merge_order"] != ORDERS[0] else {}))

    monkeypatch.setattr(measure, "Ablation", lambda **options: Careless(**{"merge_order": ORDERS[0]} | options))
    rows = rows_of(frozen, table=[item for item in TABLE if item.probe == "merge_order"])
    assert {(row.status, row.comparable, str(row.metrics)) for row in rows} == {(status, False, "{}")}
    assert field in rows[0].reason and "the changed end" in rows[0].reason


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
