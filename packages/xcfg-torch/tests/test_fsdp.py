"""FSDP2 over two gloo processes on a CPU: sharded parameters, the numbers of the unsharded model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from xcfg.identity.attest import expected_attestations
from xcfg.identity.rollout import write_rollout
from xcfg.schema.codec import decode_json, pretty_json
from xcfg.schema.names import Applied, EvidenceKind
from xcfg.schema.worker import BuildReport, ScoreReport, ScoreRequest

WORLD = 2
REQUESTS = [
    ScoreRequest(id="one", arm="training", knobs={"batch.size": 1}),
    ScoreRequest(id="two", arm="training", knobs={"batch.size": 2, "batch.padding_side": "left"}),
    ScoreRequest(id="all", arm="training", knobs={"batch.size": 5, "batch.packing": True}),
]
ENGINES = {"engine-plain": {}, "engine-master": {"fsdp_master_dtype": "float32", "fsdp_reshard_after_forward": False}}


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """One folder for both engines: the ranks are launched once."""
    return tmp_path_factory.mktemp("fsdp")


@pytest.fixture
def sharded(tiny, spec_of, launch, workplace, uneven):
    """`sharded(engine)` -> (builds, {id: reports}, {id: values}); both engines run in one launch of two ranks."""
    folder = workplace
    if not (folder / "rollout").exists():
        write_rollout(uneven, folder / "rollout")
        for name, options in ENGINES.items():
            (folder / name).mkdir()
            knobs = {
                "training.compute_dtype": "bfloat16",
                "training.attention_backend": "sdpa",
                "training.sharding": "fsdp",
            }
            spec = spec_of(tiny, "training", knobs, options=options, world_size=WORLD)
            (folder / name / "spec.json").write_bytes(pretty_json(spec))
            for request in REQUESTS:
                (folder / name / f"request-{request.id}.json").write_bytes(pretty_json(request))
        launch(folder, WORLD)
    return lambda name: read_back(folder / name, uneven)


def read_back(folder: Path, rollout):
    """Return what the ranks wrote, each rank's own ranges merged."""

    def of(name, kind):
        return [decode_json((folder / f"{name}-{rank}.json").read_bytes(), kind) for rank in range(WORLD)]

    reports, values = {}, {}
    for request in REQUESTS:
        reports[request.id] = of(f"report-{request.id}", ScoreReport)
        merged = np.full(len(rollout.token_ids), np.nan)
        for report in reports[request.id]:
            columns = load_file(folder / f"columns-{request.id}-{report.rank}.safetensors")
            for start, stop in report.record.ranges:
                merged[start:stop] = columns["selected_logprob"][start:stop]
        values[request.id] = merged[rollout.active]
    return of("build", BuildReport), reports, values


def test_two_ranks_give_the_bits_of_the_unsharded_model(sharded, built, uneven):
    builds, reports, values = sharded("engine-plain")
    plain = built("training", "bfloat16")
    for request in REQUESTS:
        expected = plain.score(uneven, knobs=request.knobs).values
        assert np.array_equal(values[request.id], expected), request.id
    _check_builds(builds, plain)
    _check_reports(reports, uneven)


def _check_builds(builds, plain):
    for rank, build in enumerate(builds):
        assert build.weights.tensors == plain.report.weights.tensors, "digests are of full tensors"
        assert 0 < build.weights.local_parameters < build.weights.total_parameters == 722304
        found = {item.path: item for item in build.applications}["training.sharding"]
        assert (found.status, found.actual, found.rank) == (Applied.APPLIED, "fsdp", rank)
        kinds = {piece.kind for piece in found.evidence}
        assert kinds == {EvidenceKind.STATE, EvidenceKind.EXECUTION}
        assert "Shard(dim=0)" in found.evidence[0].detail
    assert sum(build.weights.local_parameters for build in builds) == 722304


def _check_reports(reports, uneven):
    expected = {item.index: item for item in expected_attestations(uneven)}
    for answers in reports.values():
        seen = [item for report in answers for item in report.attestations]
        assert sorted(item.index for item in seen) == list(range(5))
        assert all(item == expected[item.index] for item in seen)
        assert len({report.forwards for report in answers}) == 1, "every rank runs the same number of forwards"
        assert all(report.state_unchanged and report.fold_before == report.fold_after for report in answers)
        # Four blocks and the rest: five gathers a forward, whatever a rank scores.
        assert all(report.counters["all_gathers"] >= 4 * report.forwards for report in answers)
        sharding = [{a.path: a for a in report.applications}["training.sharding"] for report in answers]
        assert {item.status for item in sharding} == {Applied.APPLIED}
    # One packed batch: rank 1 owns nothing and says so.
    assert [report.record.role for report in reports["all"]] == ["owner", "none"]
    assert reports["all"][1].record.ranges == ()
    spans = sorted(span for report in reports["two"] for span in report.record.ranges)
    assert spans == [(int(a), int(b)) for a, b in zip(uneven.offsets[:-1], uneven.offsets[1:], strict=True)]


def test_float32_master_weights_compute_in_bfloat16(sharded, built, uneven):
    """The form trainers use: float32 shards that are cast to bfloat16 when they are gathered."""
    builds, reports, values = sharded("engine-master")
    plain = built("training", "bfloat16")
    assert np.array_equal(values["one"], plain.score(uneven, knobs={"batch.size": 1}).values)
    for build, report in zip(builds, reports["one"], strict=True):
        found = {item.path: item for item in report.applications}["training.compute_dtype"]
        assert found.actual == build.compute_dtype == report.compute_dtype == "bfloat16"
        assert "float32 x" in found.evidence[1].detail, "the parameters are float32 and the evidence says so"
        assert build.weights.tensors == plain.report.weights.tensors
        assert report.state_unchanged
