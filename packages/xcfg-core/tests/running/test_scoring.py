"""What works: one rank, several ranks, hosted ranks, reuse, sampling; against values computed by hand."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from xcfg.errors import ArtifactError, UsageError, WorkerError
from xcfg.running.process import resident_bytes
from xcfg.running.supervisor import Worker
from xcfg.schema.codec import evolve
from xcfg.schema.names import Applied, Lifecycle
from xcfg.schema.operators import OperatorBinding
from xcfg.schema.runtime import KnobApplication, Placement
from xcfg.schema.worker import BuildReport

pytestmark = pytest.mark.timeout(60)
GENERATE = {"prompts": [{"token_ids": [1, 2, 3]}, {"token_ids": [4]}], "max_new_tokens": 2}
EXPECTED = np.float32([-0.005, -0.006, -0.007, -0.008, -0.009, -0.010, -0.011])


def test_one_rank_scores_what_the_adapter_computed(pool, launch, request_of):
    score = pool.score(launch(), request_of())
    columns = score.tensors(0)
    assert np.array_equal(columns["selected_logprob"], EXPECTED)
    assert columns["selected_logprob"].dtype == np.float32
    assert columns["active"].dtype == np.bool_ and columns["active"].tolist() == [0, 1, 1, 0, 1, 1, 1]
    assert score.reports[0].request_id == "one" and score.reports[0].seconds > 0
    assert score.seconds["build"] > 0 and not score.reused
    assert "building rank 0 héllo ✓" in score.logs["worker-0.log"].read_text(encoding="utf-8")


def test_the_flags_of_the_scoring_process_are_in_its_report(pool, launch, request_of, monkeypatch):
    """If this fails, what the worker was started with is not what the claim of determinism is held against."""
    monkeypatch.setenv("NCCL_ALGO", "Tree")
    monkeypatch.delenv("NCCL_PROTO", raising=False)
    placement = Placement(world_size=2, processes=1, env={"CUBLAS_WORKSPACE_CONFIG": ":16:8"})
    reports = pool.score(launch({"hosted": [1]}, placement=placement), request_of()).reports
    assert [report.mechanism["determinism"]["flags"]["NCCL_ALGO"] for report in reports] == ["Tree", "Tree"]
    flags = reports[0].mechanism["determinism"]["flags"]
    assert (flags["NCCL_PROTO"], flags["CUBLAS_WORKSPACE_CONFIG"]) == ("unset", ":16:8")
    assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ


def test_two_ranks_each_bring_their_own(pool, launch, request_of):
    score = pool.score(launch(placement=Placement(world_size=2, processes=2)), request_of())
    assert [report.rank for report in score.builds] == [0, 1]
    assert np.allclose(score.tensors(1)["selected_logprob"], EXPECTED - 1, atol=1e-6)
    rendezvous = {report.provenance["rendezvous"] for report in score.builds}
    assert len(rendezvous) == 1 and rendezvous.pop().startswith("file:///")
    env = [report.provenance["env"] for report in score.builds]
    assert [item["RANK"] for item in env] == ["0", "1"] and env[0]["WORLD_SIZE"] == "2"


def test_one_process_can_host_all_ranks(pool, launch, request_of):
    score = pool.score(launch({"hosted": [1, 2]}, placement=Placement(world_size=3, processes=1)), request_of())
    assert [report.rank for report in score.reports] == [0, 1, 2]
    assert sorted(score.columns) == [0, 1, 2]


def test_environment_is_the_placements_and_nothing_of_another_launcher(pool, launch, request_of, monkeypatch):
    monkeypatch.setenv("XCFG_OLD", "1")
    monkeypatch.setenv("MASTER_PORT", "1234")
    monkeypatch.setenv("RANK", "7")
    placement = Placement(env={"MARKER": "here"})
    provenance = pool.score(launch(placement=placement), request_of()).builds[0].provenance
    expected = {"RANK": "0", "WORLD_SIZE": "1", "MARKER": "here", "XCFG_OLD": None, "MASTER_PORT": None}
    assert provenance["env"] == expected
    assert "MARKER" not in os.environ
    assert provenance["stdin"] == "" and provenance["odd"] == "nan"
    assert provenance["torch"] is False, "the worker module itself must not import torch"


def test_devices_follow_the_local_rank(pool, launch, request_of):
    placement = Placement(world_size=2, processes=2, devices=("cuda:2", "cuda:5"))
    builds = pool.score(launch(placement=placement), request_of()).builds
    assert [report.provenance["device"] for report in builds] == ["cuda:2", "cuda:5"]


def test_request_knobs_come_with_the_request(pool, launch, request_of):
    pool.score(launch(), request_of("a"))
    score = pool.score(launch(), request_of("b", knobs={"offset": 1.0}))
    assert np.allclose(score.tensors(0)["selected_logprob"], EXPECTED + 1, atol=1e-6)


def test_same_id_twice_is_answered_twice(pool, launch, request_of):
    counts = [pool.score(launch(), request_of()).reports[0].counters["count"] for _ in range(3)]
    assert counts == [1, 2, 3]


def test_generate(pool, launch, request_of):
    made = pool.generate(launch(), request_of(generate=GENERATE))
    assert [item["token_ids"] for item in made.generated[0]] == [[3, 7], [1, 7]]
    assert made.paths == {}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"drop": "prompt_ids"}, "answer to prompt 1 is not usable: it lacks prompt_ids"),
        ({"drop": "logprobs"}, "prompt 1 .*: it lacks logprobs"),
        ({"answer": {"logprobs": [-0.5]}}, "prompt 1 .*: it has 2 tokens and 1 log probabilities"),
        ({"answers": 1}, "1 continuations for 2 prompts"),
    ],
)
def test_an_unusable_answer_is_a_named_fault_of_the_worker_which_serves_on(options, says, pool, launch, request_of):
    """If this fails, a sampling engine's mistake ends `xcfg freeze` with a KeyError far from its cause."""
    started = launch(options)
    with pytest.raises(WorkerError, match=says) as caught:
        pool.generate(started, request_of(generate=GENERATE))
    assert caught.value.error_kind == "worker" and pool.alive == 1


def test_an_operator_is_materialised_as_the_binding_says_whatever_a_rank_reports(launch, tmp_path):
    """If this fails, a rank that runs another operator and names it twice passes for one that runs the bound one."""
    binding = OperatorBinding(
        operation="selected_logprob", side="training", requested="native", backend_id="kit.plain", factory="a:b"
    )
    spec = evolve(launch().spec, operators={"selected_logprob": binding}, knobs={"logp.backend": "native"})
    items = tuple(
        KnobApplication(
            path=path, side="training", rank=0, requested="native", materialized="kit.other", actual="kit.other",
            status=Applied.APPLIED, lifecycle=Lifecycle.ENGINE_CONSTRUCTION,
        )
        for path in ("logp.backend", "batch.size")
    )  # fmt: skip
    worker = Worker(spec, Placement(), tmp_path / "exchange")
    settled = worker._settled(BuildReport(rank=0, world_size=1, applications=items)).applications
    assert [(item.materialized, item.actual) for item in settled] == [
        ("kit.plain", "kit.other"),
        ("kit.other", "kit.other"),
    ]


def test_generate_needs_a_generator(pool, launch, request_of):
    with pytest.raises(WorkerError, match="cannot sample") as caught:
        pool.generate(launch(adapter="fake_engine:Scorer"), request_of(generate=GENERATE))
    assert caught.value.error_kind == "unsupported"


def test_rank_without_tokens_has_no_file(pool, launch, request_of):
    score = pool.score(launch(adapter="fake_engine:Scorer"), request_of())
    assert score.paths == {} and score.tensors(0) == {}


def test_lazily_read_scores_are_checked_again(pool, launch, request_of):
    score = pool.score(launch(), request_of())
    path = score.paths[0]
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(ArtifactError, match="not the file"):
        score.tensors(0)


@pytest.mark.parametrize("identifier", ["", "a/b", "../x", "-a", "a b", "x" * 129])
def test_unsafe_request_ids_are_refused(pool, launch, request_of, identifier):
    with pytest.raises(UsageError):
        pool.score(launch(), request_of(identifier))


@pytest.mark.parametrize("name", ["ünï cödé ✓", "what?is#this", "/".join(["deep" * 30] * 7)])
def test_odd_and_deep_scratch_folders(tmp_path, launch, request_of, name):
    from xcfg.running.pool import WorkerPool

    with WorkerPool(tmp_path / name, build_timeout=20) as pool:
        score = pool.score(launch(placement=Placement(world_size=2, processes=2)), request_of())
        assert np.array_equal(score.tensors(0)["selected_logprob"], EXPECTED)
        url = score.builds[0].provenance["rendezvous"]
        assert "?" not in url and "#" not in url


def test_torch_accepts_the_rendezvous_of_two_ranks(tmp_path, adapters, pool, launch, request_of):
    (adapters / "gloo_engine.py").write_text(
        "import torch, torch.distributed as dist\n"
        "from fake_engine import Fake\n"
        "from xcfg.schema.worker import BuildReport\n"
        "class Gloo(Fake):\n"
        "    def build(self, spec, context):\n"
        "        report = super().build(spec, context)\n"
        "        dist.init_process_group('gloo', init_method=context.rendezvous, rank=context.rank,\n"
        "                                world_size=context.world_size)\n"
        "        total = torch.tensor([float(context.rank + 1)]); dist.all_reduce(total)\n"
        "        provenance = {'total': total.item()}\n"
        "        world = context.world_size\n"
        "        return BuildReport(rank=context.rank, world_size=world, provenance=provenance)\n"
        "    def score(self, request, rollout):\n"
        "        report, columns = super().score(request, rollout)\n"
        "        return report, {name: torch.from_numpy(value.copy()) for name, value in columns.items()}\n"
    )
    score = pool.score(launch(adapter="gloo_engine:Gloo", placement=Placement(world_size=2, processes=2)), request_of())
    assert [report.provenance["total"] for report in score.builds] == [3.0, 3.0]
    assert np.array_equal(score.tensors(0)["selected_logprob"], EXPECTED)
    assert score.tensors(0)["active"].dtype == np.bool_


def test_close_is_clean(tmp_path, launch, request_of, is_alive):
    from xcfg.running.pool import WorkerPool

    with WorkerPool(tmp_path / "s") as pool:
        score = pool.score(launch(), request_of())
        pid = score.builds[0].provenance["pid"]
        assert is_alive(pid)
        assert resident_bytes([pid]) > 5_000_000
    assert not is_alive(pid)
    assert "closed rank 0" in score.logs["worker-0.log"].read_text(encoding="utf-8")


def test_worker_runs_the_same_interpreter_and_not_the_current_folder(pool, launch, request_of, tmp_path, monkeypatch):
    trap = tmp_path / "trap"
    trap.mkdir()
    (trap / "msgspec.py").write_text("raise SystemExit('shadowed')")
    monkeypatch.chdir(trap)
    score = pool.score(launch(), request_of())
    assert Path(score.builds[0].provenance["argv"][0]).name == "serve.py"
