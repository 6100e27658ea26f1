"""The backward probe: what it measures, what it leaves alone, and what is read back without one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from xcfg.errors import WorkerError
from xcfg.schema.gradient import gradient_of
from xcfg.schema.names import Applied, EvidenceKind, Exercised
from xcfg.schema.operators import OperatorBinding
from xcfg_torch.backward import ROWS_PER_CALL, BackwardProbe

ABLATION = {"factory": "xcfg_ops_logp.ablation.operator:Ablation", "backend": "xcfg.ablation_logp"}
ANALYTIC, PLACE = "logprob.backward_impl", "logprob.grad_downcast_at"
ROUNDED = {ANALYTIC: "softmax_minus_onehot", PLACE: "dlogits"}
ENTROPY = {"logprob.entropy_reduce": "partials"}
SPLIT = {"vocab_shard_map": "even:8", "reduce": "allgather_partials_fixed_merge", "entropy_reduce": "partials"}
ONE = {"batch.size": 1}


def options(knobs):
    return {path.partition(".")[2]: value for path, value in knobs.items()}


def binding(factory: str, **chosen) -> OperatorBinding:
    return OperatorBinding(
        operation="selected_logprob", side="training", requested="x", backend_id="x", factory=factory, options=chosen
    )


def probe(**chosen) -> BackwardProbe:
    return BackwardProbe(binding(ABLATION["factory"], **chosen))


def rows_of(engine, rollout):
    """Logits float64 [T, V] of the active tokens and their ids, from the live model, one sequence at a time."""
    logits, selected = [], []
    for at in range(rollout.sequence_count):
        span = rollout.span(at)
        ids = torch.from_numpy(rollout.token_ids[span].astype(np.int64))
        with torch.no_grad():
            own = engine.adapter.engine.model(input_ids=ids[None], use_cache=False).logits[0]
        rows = np.flatnonzero(rollout.active[span])
        logits.append(own[rows - 1].double())
        selected.append(ids[rows])
    return torch.cat(logits), torch.cat(selected)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_figures_are_those_of_the_rounded_gradient(built, uneven, dtype):
    """If this fails, the probe compares another gradient, other rows, or the dtype of the logits rounds it too."""
    engine = built("training", dtype, chosen=options(ROUNDED), **ABLATION)
    found = engine.score(uneven, knobs={**ONE, **ROUNDED})
    logits, selected = rows_of(engine, uneven)
    exact = torch.nn.functional.one_hot(selected, 512).double() - logits.softmax(-1)
    gap = exact.float().bfloat16().double() - exact
    said = found.report.mechanism["backward"]
    assert (said["rows"], said["broken_rows"]) == (len(selected), 0) == (41, 0)
    assert said["max_abs"] == pytest.approx(float(gap.abs().max()), rel=1e-3)
    assert said["rel_l2"] == pytest.approx(float(gap.norm() / exact.norm()), rel=0.01)
    assert said["ran"] == {"backward_impl": "softmax_minus_onehot", "grad_downcast_at": "dlogits"}
    for path, value in ROUNDED.items():
        item = found.applications[path]
        assert (item.status, item.actual, item.exercised) == (Applied.APPLIED, value, Exercised.YES)
        assert item.evidence[0].kind is EvidenceKind.EXECUTION


def test_the_dtype_of_the_logits_rounds_no_gradient(built, uneven):
    """If this fails, what is measured is the cast to the logits' dtype, whatever the operator does."""
    plain = {ANALYTIC: "softmax_minus_onehot", PLACE: "never"}
    found = built("training", "bfloat16", chosen=options(plain), **ABLATION).score(uneven, knobs={**ONE, **plain})
    assert found.report.mechanism["backward"]["rel_l2"] < 1e-6


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_score_is_the_same_with_a_probe(built, uneven, dtype):
    """If this fails, looking at the gradient moves values, counts, state, or what the score states of itself."""
    plain = built("training", dtype, **ABLATION).score(uneven)
    mine = built("training", dtype, chosen=options(ROUNDED), **ABLATION).score(
        uneven, knobs={"batch.size": 2, **ROUNDED}
    )
    for name, column in plain.columns.items():
        assert torch.equal(column, mine.columns[name]) or name == "selected_logprob", name
    assert np.array_equal(plain.values, mine.values)
    assert plain.report.counters == mine.report.counters
    assert mine.report.state_unchanged and mine.report.mechanism["parameters_with_gradients"] == 0
    assert "backward" in mine.report.mechanism
    assert plain.report.mechanism == {key: value for key, value in mine.report.mechanism.items() if key != "backward"}


def test_without_a_planned_knob_there_is_no_backward(built, uneven):
    """If this fails, every score pays for a gradient that nobody asked about."""
    engine = built("training", chosen=options(ROUNDED), **ABLATION)
    assert "backward" not in engine.score(uneven).report.mechanism
    beside = engine.score(uneven, knobs={**ONE, "logprob.block_size": 0})
    assert "backward" not in beside.report.mechanism


def test_what_no_backward_showed_is_not_applied(built, uneven):
    """If this fails, an option of the gradient passes where no gradient was taken."""
    engine = built("rollout", chosen=options(ROUNDED), knobs=ROUNDED, **ABLATION)
    assert not {item.path for item in engine.report.applications} & ROUNDED.keys(), "no build can show them"
    found = engine.score(uneven, knobs={**ONE, **ROUNDED}).applications
    for path in ROUNDED:
        assert (found[path].status, found[path].exercised) == (Applied.UNOBSERVABLE, Exercised.NO)
        assert found[path].actual is None and "no backward" in found[path].reason


@pytest.mark.parametrize("asked", [True, False])
def test_an_entropy_is_the_operators_own_where_it_was_asked_for(built, uneven, asked):
    """If this fails, the column is not of the distribution that is scored, or is read back without having run."""
    engine = built("rollout", chosen=SPLIT, **ABLATION)
    found = engine.score(uneven, knobs={**ONE, **ENTROPY}, columns=("entropy",) if asked else ())
    item = found.applications["logprob.entropy_reduce"]
    if not asked:
        assert (item.status, item.exercised) == (Applied.UNOBSERVABLE, Exercised.NO)
        assert "--columns entropy" in item.reason
        return
    assert (item.status, item.actual) == (Applied.APPLIED, "partials")
    logits, _ = rows_of(engine, uneven)
    wanted = torch.distributions.Categorical(logits=logits).entropy()
    active = found.columns["active"]
    got = found.columns["entropy"][active]
    assert (got.double() - wanted).abs().max() < 1e-5
    plain = built("rollout").score(uneven, knobs=ONE, columns=("entropy",)).columns["entropy"][active]
    assert not torch.equal(plain, got), "torch's own softmax is another sum"


def test_rows_are_bounded(monkeypatch):
    """If this fails, a gradient of a whole vocabulary is taken for every row of a long rollout."""
    logits, selected = torch.randn(40, 8), torch.randint(0, 8, (40,))
    looked = probe()
    looked.look(logits, selected)
    assert looked.rows == ROWS_PER_CALL
    monkeypatch.setattr("xcfg_torch.backward.MOST_ROWS", 20)
    for _ in range(3):
        looked.look(logits, selected)
    assert looked.rows == 20


def test_a_gradient_that_is_not_finite_is_counted():
    """If this fails, a broken row is averaged away or makes the other rows' figures unreadable."""
    logits, selected = torch.randn(4, 8), torch.randint(0, 8, (4,))
    logits[2, 1] = torch.nan
    looked = probe()
    assert looked.report() == {}
    looked.look(logits, selected)
    said = looked.report()
    assert (said["rows"], said["broken_rows"]) == (4, 1)
    assert 0 <= said["max_abs"] < 1e-6 and 0 < said["rel_l2"] < 1e-6


@pytest.mark.parametrize(("logits", "largest"), [(torch.full((3, 8), torch.nan), None), (torch.zeros(3, 1), 0.0)])
def test_a_norm_that_was_not_measured_is_no_zero(logits, largest):
    """If this fails, rows that are all broken, or a gradient of 0, read as a gradient that is right."""
    looked = probe()
    looked.look(logits, torch.zeros(3, dtype=torch.int64))
    said = looked.report()
    assert (said["max_abs"], said["rel_l2"]) == (largest, None)
    whole = {"rows": 2, "broken_rows": 0, "max_abs": 0.5, "rel_l2": 0.25, "ran": {}}
    both = gradient_of([{"backward": said}, {"backward": whole}])
    assert (both.max_abs, both.rel_l2, both.rows) == (0.5, 0.25, 5)
    assert gradient_of([{"backward": said}]).rel_l2 is None


class Fickle:
    """An operator whose backward is another one from call to call."""

    shown_by = {"backward_impl": "backward"}

    def __init__(self):
        self.calls, self.stated = 0, {}

    def __call__(self, logits, selected):
        self.calls += 1
        self.stated = {"options": {"backward_impl": ("autograd", "softmax_minus_onehot")[self.calls % 2]}}
        return logits.log_softmax(-1).gather(-1, selected[:, None])[:, 0]


def test_backwards_that_do_not_agree_are_both_told():
    """If this fails, the last backward of a score speaks for all others."""
    looked = probe()
    looked.operator.function = Fickle()
    for _ in range(2):
        looked.look(torch.randn(4, 8), torch.randint(0, 8, (4,)))
    assert looked.stated.options == {"backward_impl": ["softmax_minus_onehot", "autograd"]}
    assert looked.report()["ran"] == {"backward_impl": "several: 'softmax_minus_onehot' | 'autograd'"}


def test_values_without_a_gradient_are_refused():
    """If this fails, a backend without a backward has a gradient of 0 that is compared."""
    looked = BackwardProbe(binding("xcfg_ops_logp.reference:build"))
    with pytest.raises(WorkerError, match="without one"):
        looked.look(torch.randn(4, 8), torch.randint(0, 8, (4,)))
