"""FSDP2 over two gloo processes on a CPU: sharded parameters, the numbers of the unsharded model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from xcfg.identity.attest import expected_attestations
from xcfg.identity.rollout import write_rollout
from xcfg.schema.codec import decode_json, pretty_json
from xcfg.schema.names import Applied, EvidenceKind
from xcfg.schema.runtime import PlacementRequest
from xcfg.schema.worker import BuildReport, ScoreReport, ScoreRequest

WORLD = 2
REQUESTS = [
    ScoreRequest(id="one", arm="training", knobs={"batch.size": 1}),
    ScoreRequest(id="two", arm="training", knobs={"batch.size": 2, "batch.padding_side": "left"}),
    ScoreRequest(id="all", arm="training", knobs={"batch.size": 5, "batch.packing": True}),
]
MASTER, OUTPUT = "training.fsdp_master_dtype", "training.fsdp_output_dtype"
ENGINES = {
    "engine-plain": ({}, {MASTER: "compute", OUTPUT: "uncast"}),
    "engine-master": ({"fsdp_reshard_after_forward": False}, {MASTER: "float32"}),
    "engine-policy": (
        {"fsdp_reduce_dtype": "float32", "fsdp_cast_forward_inputs": False},
        {MASTER: "float32", OUTPUT: "float32"},
    ),
    "engine-coarse": ({}, {"training.compute_dtype": "float32", OUTPUT: "bfloat16"}),
    "engine-lossy": ({}, {"training.compute_dtype": "float32", MASTER: "float16"}),
}


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """One folder for all engines: the ranks are launched once."""
    return tmp_path_factory.mktemp("fsdp")


@pytest.fixture
def sharded(tiny, spec_of, launch, workplace, uneven):
    """`sharded(engine)` -> (builds, {id: reports}, {id: values}); all engines run in one launch of two ranks."""
    folder = workplace
    if not (folder / "rollout").exists():
        write_rollout(uneven, folder / "rollout")
        for name, (options, more) in ENGINES.items():
            (folder / name).mkdir()
            knobs = {
                "training.compute_dtype": "bfloat16",
                "training.attention_backend": "sdpa",
                "training.sharding": "fsdp",
                **more,
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


def applications(reports):
    """The records of rank 0 by path; both ranks must say the same of every knob but their own shares."""
    first, second = ({item.path: item for item in report.applications} for report in reports)
    assert {path: item.actual for path, item in first.items()} == {path: item.actual for path, item in second.items()}
    return first


def policies(found):
    """What the evidence says of MixedPrecisionPolicy in the live FSDP states."""
    return next(piece.detail for piece in found.evidence if "MixedPrecisionPolicy" in piece.source)


def test_float32_master_weights_compute_in_bfloat16(sharded, built, uneven):
    """What trainers do: float32 shards, cast to bfloat16 when gathered. Oracle: the plain model in each of the dtypes.

    Failing means that the policy moves numbers that it should not, or that float32 is attested where bfloat16 computes.
    """
    builds, reports, values = sharded("engine-master")
    plain, wide = built("training", "bfloat16"), built("training", "float32")
    assert np.array_equal(values["one"], plain.score(uneven, knobs={"batch.size": 1}).values)
    away = np.abs(values["one"] - wide.score(uneven, knobs={"batch.size": 1}).values).max()
    assert 1e-3 < away < 0.5, "bfloat16 computed, not the float32 of the master weights"
    for build, report in zip(builds, reports["one"], strict=True):
        found = {item.path: item for item in report.applications}
        compute = found["training.compute_dtype"]
        assert compute.actual == build.compute_dtype == report.compute_dtype == "bfloat16"
        assert "float32 x" in compute.evidence[1].detail, "the parameters are float32 and the evidence says so"
        assert build.weights.dtype == "bfloat16" and build.weights.tensors == plain.report.weights.tensors
        assert build.weights.fold not in ("", plain.report.weights.fold), "the fold is of this rank's float32 shards"
        assert report.state_unchanged
    master = applications(reports["one"])[MASTER]
    assert (master.status, master.actual) == (Applied.APPLIED, "float32")
    assert master.evidence[0].kind is EvidenceKind.EXECUTION and "bfloat16 x" in master.evidence[0].detail
    assert policies(master) == ("param_dtype=bfloat16 reduce_dtype=None output_dtype=None cast_forward_inputs=True x 5")


def test_shards_in_the_compute_dtype_are_not_cast(sharded):
    """Failing means that a run without master weights is reported as one with them."""
    found = applications(sharded("engine-plain")[1]["one"])
    assert [(found[path].status, found[path].actual) for path in (MASTER, OUTPUT)] == [
        (Applied.APPLIED, "compute"),
        (Applied.APPLIED, "uncast"),
    ]
    assert policies(found[MASTER]).startswith("param_dtype=None")


def test_the_whole_policy_reaches_the_live_states(sharded, built, uneven):
    """bfloat16 logits cast to float32 lose nothing. Failing means that an option of the policy is dropped."""
    _, reports, values = sharded("engine-policy")
    assert np.array_equal(values["two"], built("training", "bfloat16").score(uneven, knobs=REQUESTS[1].knobs).values)
    found = applications(reports["two"])[OUTPUT]
    assert (found.status, found.actual) == (Applied.APPLIED, "float32")
    assert found.evidence[0].kind is EvidenceKind.EXECUTION
    assert "left the head bfloat16 x" in found.evidence[0].detail and "the model float32 x" in found.evidence[0].detail
    tail = "cast_forward_inputs=False x"
    block = f"param_dtype=bfloat16 reduce_dtype=float32 output_dtype=None {tail} 4"
    root = f"param_dtype=bfloat16 reduce_dtype=float32 output_dtype=float32 {tail} 1"
    assert policies(found) == f"{root}, {block}" or policies(found) == f"{block}, {root}"


def test_a_coarse_output_rounds_the_logits(sharded, built, tiny, uneven):
    """Oracle: transformers in float32, whose logits are rounded here. Failing means a cast that is only configured."""
    from transformers import AutoModelForCausalLM

    _, reports, values = sharded("engine-coarse")
    model = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32, attn_implementation="sdpa").eval()
    expected = []
    for index in range(uneven.sequence_count):
        span = uneven.span(index)
        ids = torch.from_numpy(uneven.tensors["token_ids"][span]).long()
        with torch.no_grad():
            logits = model(ids[None], use_cache=False).logits[0].bfloat16().double()
        rows = np.flatnonzero(uneven.active[span])
        expected += logits.log_softmax(-1)[rows - 1, ids[rows]].tolist()
    assert np.abs(values["one"] - np.array(expected)).max() < 2e-6
    exact = built("training", "float32").score(uneven, knobs={"batch.size": 1}).values
    assert np.abs(values["one"] - exact).max() > 1e-3, "the rounding shows"
    found = applications(reports["one"])
    assert (found[OUTPUT].status, found[OUTPUT].actual) == (Applied.APPLIED, "bfloat16")
    assert found["training.compute_dtype"].actual == "float32"


def test_master_weights_that_lost_bits_are_not_the_checkpoint(sharded, built):
    """float16 shards, widened to compute in float32: the small numbers of a bfloat16 checkpoint are no float16.

    Failing means that lost bits pass the weights gate.
    """
    build = sharded("engine-lossy")[0][0]
    whole = built("training", "float32").report.weights
    assert build.weights.dtype == whole.dtype == "float32"
    differing = [name for name, digest in build.weights.tensors.items() if digest != whole.tensors[name]]
    assert len(differing) > 10 and set(build.weights.tensors) == set(whole.tensors)


def test_without_shards_the_knobs_are_refused():
    """Failing means that a cast which nothing performs is planned, and ends as a fallback after a build."""
    from xcfg_torch.placement import placement

    for path, value in ((MASTER, "float32"), (OUTPUT, "bfloat16")):
        knobs = {"training.sharding": "unsharded", path: value}
        request = PlacementRequest(side="training", knobs=knobs, options={}, devices=("cpu",))
        assert list(placement(request).unsupported) == [path]
