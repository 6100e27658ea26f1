"""cpu-smoke: the six values of the published formula, and the double authorisation of its operators."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from xcfg.errors import XcfgError
from xcfg.identity.attest import expected_attestations
from xcfg.identity.rollout import make_rollout
from xcfg.plugin.protocols import RankContext, RuntimeAdapter
from xcfg.schema.identity import CheckpointRef
from xcfg.schema.names import Applied, EvidenceKind
from xcfg.schema.operators import OperatorBinding
from xcfg.schema.worker import PROTOCOL, ScoreRequest, WorkerSpec
from xcfg_torch.smoke.adapter import SmokeAdapter
from xcfg_torch.smoke.placement import placement

SIX = [-3.331023, -3.121226, -3.248954, -3.366723, -3.062074, -3.161932]


@pytest.fixture
def fixture():
    ids = np.array([11, 12, 13, 21, 22, 23, 31, 32, 33, 41, 42, 43])
    active = np.tile([False, False, False, True, True, True], 2)
    return make_rollout(
        {
            "token_ids": ids,
            "offsets": np.array([0, 6, 12]),
            "active_mask": active,
            "attention_mask": np.ones(12, dtype=bool),
            "position_ids": np.tile(np.arange(6), 2),
            "selected_token_ids": ids,
            "segment": active.astype(np.int8),
            "weight_version": np.zeros(12, dtype=np.int32),
        },
        checkpoint=CheckpointRef(uri="cpu-smoke:synthetic"),
    )


def _engine(side, tmp_path, *, backend="smoke_only.logp_reference", factory="logp_reference", options=None, **knobs):
    binding = OperatorBinding(
        operation="selected_logprob",
        side=side,
        requested=backend,
        backend_id=backend,
        factory=f"xcfg_torch.smoke.operators:{factory}",
        options=options or {},
        smoke_only=True,
    )
    spec = WorkerSpec(
        protocol=PROTOCOL,
        runtime="cpu-smoke",
        adapter="",
        side=side,
        knobs={"logp.backend": backend, **knobs},
        options={},
        operators={"selected_logprob": binding},
        checkpoint="",
        checkpoint_uri="cpu-smoke:synthetic",
        rollout="",
        world_size=1,
    )
    adapter = SmokeAdapter()
    assert isinstance(adapter, RuntimeAdapter)
    return adapter, adapter.build(spec, RankContext(0, 1, "cpu", tmp_path, ""))


@pytest.mark.parametrize(("side", "arm"), [("training", "training"), ("rollout", "rollout_prefill")])
@pytest.mark.parametrize("size", [1, 2])
def test_the_six_values(fixture, tmp_path, side, arm, size):
    adapter, build = _engine(side, tmp_path)
    report, columns = adapter.score(ScoreRequest(id="s0", arm=arm, knobs={"batch.size": size}), fixture)
    np.testing.assert_allclose(columns["selected_logprob"].numpy()[fixture.active], SIX, atol=5e-7)
    assert np.isnan(columns["selected_logprob"].numpy()[~fixture.active]).all()
    assert build.compute_dtype == report.compute_dtype == "float32"
    assert build.weights.tensors == {} and build.weights.method == "digest"
    assert report.attestations == expected_attestations(fixture)
    found = {item.path: item for item in report.applications}
    assert (found["batch.size"].actual, found["batch.size"].status) == (size, Applied.APPLIED)
    assert found["logp.backend"].evidence[0].kind is EvidenceKind.EXECUTION


def test_the_operator_reads_back_as_its_id_whatever_name_it_was_asked_for_by(fixture, tmp_path):
    """`_engine` binds what the knob names, so `native` is bound by no name here and is a fallback."""
    for asked, status in (("smoke_only.logp_reference", Applied.APPLIED), ("native", Applied.FALLBACK)):
        adapter, build = _engine("training", tmp_path, **{"logp.backend": asked})
        report, _ = adapter.score(ScoreRequest(id="s0", arm="training"), fixture)
        for applications in (build.applications, report.applications):
            (item,) = (item for item in applications if item.path == "logp.backend")
            assert (item.actual, item.status) == ("smoke_only.logp_reference", status)


def test_the_formula_in_float64(fixture, tmp_path):
    adapter, _ = _engine("training", tmp_path)
    _, columns = adapter.score(ScoreRequest(id="s0", arm="training", score_dtype="float64"), fixture)
    expected = []
    for flat in np.flatnonzero(fixture.active):
        token, position = int(fixture.token_ids[flat - 1]), (flat - 1) % 6
        logits = -0.125 * np.abs(np.arange(60) - (token + position + 1) % 60)
        expected.append(logits[fixture.token_ids[flat]] - np.log(np.exp(logits).sum()))
    np.testing.assert_allclose(columns["selected_logprob"].numpy()[fixture.active], expected, atol=1e-6)


def test_the_offset_shifts_every_active_value(fixture, tmp_path):
    reference, _ = _engine("rollout", tmp_path)
    offset, _ = _engine(
        "training",
        tmp_path,
        backend="smoke_only.logp_offset",
        factory="logp_offset",
        options={"offset": 0.05},
    )
    one = reference.score(ScoreRequest(id="a", arm="rollout_prefill"), fixture)[1]["selected_logprob"]
    two = offset.score(ScoreRequest(id="b", arm="training"), fixture)[1]["selected_logprob"]
    np.testing.assert_allclose((two - one).numpy()[fixture.active], 0.05, atol=1e-6)


def test_what_a_synthetic_model_cannot_do_is_no_pass(fixture, tmp_path):
    adapter, build = _engine(
        "rollout",
        tmp_path,
        **{"rollout.tensor_parallel_size": 2, "rollout.enforce_eager": True, "rollout.dtype": "bfloat16"},
    )
    found = {item.path: item for item in build.applications}
    assert found["rollout.tensor_parallel_size"].status is Applied.FALLBACK
    assert found["rollout.enforce_eager"].evidence[0].kind is EvidenceKind.INHERENT
    assert found["rollout.dtype"].actual == "bfloat16"
    with pytest.raises(XcfgError, match="rollout_decode"):
        adapter.score(ScoreRequest(id="d", arm="rollout_decode"), fixture)
    adapter.close()
    with pytest.raises(XcfgError, match="not built"):
        adapter.score(ScoreRequest(id="d", arm="rollout_prefill"), fixture)


def test_placement_is_one_process_without_options():
    from xcfg.schema.runtime import PlacementRequest

    request = PlacementRequest(side="training", knobs={}, options={}, devices=("cpu",))
    assert placement(request).world_size == 1
    with pytest.raises(XcfgError, match="'threads'"):
        placement(PlacementRequest(side="training", knobs={}, options={"threads": 1}, devices=("cpu",)))


def test_logits_are_in_the_asked_dtype():
    from xcfg_torch.smoke.model import synthetic_logits

    ids = torch.arange(3)
    assert synthetic_logits(ids, ids, 20, torch.bfloat16).dtype is torch.bfloat16
