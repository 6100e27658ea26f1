"""The gate of determinism: flags bind where the case claims determinism and the library runs, and nowhere else."""

from __future__ import annotations

import itertools

import pytest
from xcfg.comparison.determinism_gate import claims_of, determinism_differences
from xcfg.schema.worker import ScoreReport

UNSET = {
    "NCCL_ALGO": "unset",
    "NCCL_PROTO": "unset",
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    "NVTE_ALLOW_NONDETERMINISTIC_ALGO": "0",
    "deterministic_algorithms": True,
    "deterministic_warn_only": False,
    "tf32": False,
    "bf16_reduced_precision_reduction": False,
    "fp16_reduced_precision_reduction": False,
}
LIBRARY = {
    "NCCL_ALGO": ("nccl", "Tree"),
    "NCCL_PROTO": ("nccl", "LL128"),
    "CUBLAS_WORKSPACE_CONFIG": ("cublas", ":16:8"),
    "NVTE_ALLOW_NONDETERMINISTIC_ALGO": ("transformer_engine", "1"),
    "deterministic_algorithms": ("torch", False),
    "tf32": ("cublas", True),
    "bf16_reduced_precision_reduction": ("cublas", True),
    "fp16_reduced_precision_reduction": ("cublas", True),
}
ALL = ("nccl", "cublas", "transformer_engine", "torch")
BOTH = {side: {"deterministic_algorithms": True} for side in ("training", "rollout")}


def ranks(*probes):
    """Score reports of as many ranks; a probe is (changed flags, libraries), None is a rank that says nothing."""
    found = []
    for rank, probe in enumerate(probes):
        said = {} if probe is None else {"determinism": {"flags": {**UNSET, **probe[0]}, "libraries": list(probe[1])}}
        found.append(ScoreReport(request_id="1", rank=rank, mechanism=said))
    return found


def paths(training, rollout, knobs=None, options=None, delta=()):
    found = determinism_differences({"training": training, "rollout": rollout}, knobs or {}, options or {}, delta)
    return [item["path"].removeprefix("mechanism.determinism").lstrip(".") for item in found]


@pytest.mark.parametrize(("flag", "where"), [*itertools.product(LIBRARY, ("both", "one", "none"))])
def test_a_flag_binds_where_its_library_runs_on_both_sides(flag, where):
    """If this fails, a setting that nothing reads costs a verdict, or one that acts goes unseen."""
    library, other = LIBRARY[flag]
    runs = {"both": (ALL, ALL), "one": (ALL, set(ALL) - {library}), "none": (set(ALL) - {library},) * 2}[where]
    first, second = ranks(({}, runs[0])), ranks(({flag: other}, runs[1]))
    assert (flag in paths(first, second, options=BOTH)) == (where == "both")
    assert paths(first, second) == [], "without a claim nothing binds"
    assert paths(first, ranks(({}, runs[1])), options=BOTH) == []


def test_unset_is_a_value_and_not_read_is_none():
    """If this fails, two processes that leave a choice to the library differ, or a silent one agrees with anything."""
    unset = ranks(({}, ALL))
    assert paths(unset, ranks(({}, ALL)), options=BOTH) == []
    assert paths(unset, ranks(({"NCCL_ALGO": None}, ALL)), options=BOTH) == ["NCCL_ALGO"]
    assert paths(ranks(({"NCCL_ALGO": None}, ALL)), ranks(({"NCCL_ALGO": None}, ALL)), options=BOTH) == ["NCCL_ALGO"]


def test_spellings_of_one_setting_agree():
    """If this fails, two names of one NCCL algorithm cost a verdict."""
    first, second = ranks(({"NCCL_ALGO": "Tree"}, ALL)), ranks(({"NCCL_ALGO": "allreduce:tree"}, ALL))
    assert paths(first, second, options=BOTH) == []


@pytest.mark.parametrize("silent", ["training", "rollout"])
def test_a_side_that_was_not_read_refutes_the_claim(silent):
    """If this fails, a program that reports no flags claims whatever it likes."""
    told, untold = ranks(({}, ALL), ({}, ALL)), ranks(({}, ALL), None)
    reports = (untold, told) if silent == "training" else (told, untold)
    found = determinism_differences({"training": reports[0], "rollout": reports[1]}, {}, BOTH)
    assert [(item["path"], item[silent]) for item in found] == [("mechanism.determinism", "not read")]
    assert f"a rank of {silent} did not report" in found[0]["reason"]
    assert paths([], told, options=BOTH) == [""]
    broken = [ScoreReport(request_id="1", rank=0, mechanism={"determinism": {"flags": {"tf32": "?"}, "libraries": []}})]
    assert paths(broken, told, options=BOTH) == [""]


def test_every_rank_of_both_sides_is_compared():
    """If this fails, a rank that was started with another environment goes unseen."""
    first, second = ranks(({}, ALL), ({}, ALL)), ranks(({}, ALL), ({"NCCL_PROTO": "Simple"}, ALL))
    assert paths(first, second, options=BOTH) == ["NCCL_PROTO"]
    (found,) = determinism_differences({"training": second, "rollout": first}, {}, BOTH)
    assert found["training"] == "Simple"
    assert "training has 'Simple' (read in the worker of rank 1), rollout has 'unset'" in found["reason"]


@pytest.mark.parametrize(
    ("claim", "flag", "value"),
    [
        ("deterministic_algorithms", "deterministic_algorithms", False),
        ("deterministic_algorithms", "deterministic_warn_only", True),
        ("deterministic_algorithms", "CUBLAS_WORKSPACE_CONFIG", "unset"),
        ("deterministic_mode", "NVTE_ALLOW_NONDETERMINISTIC_ALGO", "unset"),
    ],
)
def test_a_flag_that_contradicts_the_claim_of_its_side_refutes_it(claim, flag, value):
    """If this fails, a switch that was asked for and is off passes as deterministic because both sides have it off."""
    sides = ranks(({flag: value}, ALL)), ranks(({flag: value}, ALL))
    found = determinism_differences({"training": sides[0], "rollout": sides[1]}, {}, {"training": {claim: True}})
    assert [item["path"] for item in found] == [f"mechanism.determinism.{flag}"]
    assert f"{flag} is {value!r} in the worker of rank 0" in found[0]["reason"]
    assert "runtime_options.training" in found[0]["reason"]
    idle = ranks(({flag: value}, ()))
    assert paths(idle, idle, options={"training": {claim: True}}) == []


def test_the_switch_that_one_side_alone_asks_for_is_declared_by_asking():
    """If this fails, torch's deterministic algorithms on one side make every case NOT_COMPARABLE."""
    first, second = ranks(({}, ALL)), ranks(({"deterministic_algorithms": False}, ALL))
    assert paths(first, second, options={"training": {"deterministic_algorithms": True}}) == []
    changed = ranks(({"deterministic_algorithms": False, "NCCL_ALGO": "Ring"}, ALL))
    assert paths(first, changed, options={"training": {"deterministic_algorithms": True}}) == ["NCCL_ALGO"]


def test_a_switch_that_nobody_asks_for_binds_under_another_claim():
    """If this fails, torch's switch differs between two sides that claim batch invariance, and nobody says so."""
    first, second = ranks(({}, ALL)), ranks(({"deterministic_algorithms": False}, ALL))
    both = {side: {"batch_invariant": True} for side in ("training", "rollout")}
    assert paths(first, second, options=both) == ["deterministic_algorithms"]


def test_a_claim_that_the_case_varies_is_the_declared_difference():
    """If this fails, `rollout.batch_invariant` cannot be measured, since it sets flags of its own side."""
    first, second = ranks(({}, ALL)), ranks(({"NCCL_ALGO": "Tree"}, ALL))
    knobs = {"rollout.batch_invariant": True}
    assert paths(first, second, knobs=knobs) == ["NCCL_ALGO"]
    assert paths(first, second, knobs=knobs, delta=("rollout.batch_invariant",)) == []
    assert paths(first, ranks(None), knobs=knobs, delta=("rollout.batch_invariant",)) == [""]


def test_who_claims_what():
    """If this fails, a claim is not seen, or one that was not made is held against the case."""
    knobs = {
        "training.deterministic_mode": True,
        "rollout.batch_invariant": False,
        "gemm.batch_invariant@rollout": True,
        "training.dtype": "bfloat16",
    }
    assert claims_of(knobs, {"rollout": {"deterministic-algorithms": True}, "training": {"threads": 1}}) == {
        "training": {"deterministic_mode": "the knob training.deterministic_mode"},
        "rollout": {
            "batch_invariant": "the knob gemm.batch_invariant@rollout",
            "deterministic_algorithms": "runtime_options.rollout.deterministic-algorithms",
        },
    }
    assert not any(claims_of({"rollout.batch_invariant": False, "training.deterministic_mode": 1}, {}).values())
    assert claims_of({"gemm.deterministic_mode": True}, {"rollout": None}) == {
        side: {"deterministic_mode": "the knob gemm.deterministic_mode"} for side in ("training", "rollout")
    }
