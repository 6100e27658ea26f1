from __future__ import annotations

import pytest
from xcfg.errors import ConfigError, UnknownNameError


def labels(plan):
    return [case.label for case in plan.cases]


def codes(plan):
    return [issue.code for issue in plan.issues]


def only(plan, label):
    (case,) = [case for case in plan.cases if case.label == label]
    return case


def test_one_at_a_time_is_the_baseline_and_one_change_each(make_plan, vary):
    plan = make_plan(interventions=vary(("batch.size", [1, 2]), ("rollout.dtype", ["fp32"])))
    assert labels(plan) == ["baseline", "batch.size=1", "batch.size=2", "rollout.dtype=float32"]
    assert [case.delta for case in plan.cases] == [
        {},
        {"batch.size": 1},
        {"batch.size": 2},
        {"rollout.dtype": "float32"},
    ]
    assert len(plan.cases[0].knobs) == 10
    assert all(case.role == "case" and case.index == 0 for case in plan.cases)
    assert plan.contract.digest == "d" * 64
    assert plan.reference is True


def test_v2_fills_defaults_and_holds_only_what_is_named(make_plan, vary):
    plan = make_plan(baseline={}, interventions=vary(("gemm.kernel", ["tree"])))
    assert plan.cases[0].knobs == {
        "batch.size": 8,
        "gemm.kernel": "native",
        "logp.backend": "native",
        "rollout.context_parallel_size": 1,
        "rollout.dtype": "bfloat16",
        "rollout.enable_prefix_caching": False,
        "rollout.enforce_eager": True,
        "rollout.tensor_parallel_size": 1,
        "training.attention_backend": "sdpa",
        "training.compute_dtype": "bfloat16",
        "training.sharding": "unsharded",
    }


def test_aliases_do_not_change_a_plan(make_plan, vary):
    spelled = make_plan(
        baseline={"rollout.dtype": "torch.bfloat16", "training.attention_backend": "flash-attention-2"},
        interventions=vary(("rollout.dtype", ["half"]), ("logp.backend", ["reference"])),
    )
    plain = make_plan(
        baseline={"rollout.dtype": "bfloat16", "training.attention_backend": "flash_attention_2"},
        interventions=vary(("rollout.dtype", ["float16"]), ("logp.backend", ["reference"])),
    )
    assert spelled == plain


def test_auto_is_native_and_other_ids_stay(make_plan, vary):
    plan = make_plan(
        baseline={"logp.backend": "auto"}, interventions=vary(("logp.backend", ["default", "pytorch", "x.y"]))
    )
    assert labels(plan) == ["baseline", "logp.backend=pytorch", "logp.backend=x.y"]
    assert plan.cases[0].knobs["logp.backend"] == "native"
    assert codes(plan) == ["REPEATED_LEVEL"]


def test_a_repeated_level_is_dropped_with_an_issue(make_plan, vary):
    plan = make_plan(interventions=vary(("batch.size", [8, 1, 1]), ("rollout.dtype", ["bf16"])))
    assert labels(plan) == ["baseline", "batch.size=1"]
    assert codes(plan) == ["REPEATED_LEVEL", "REPEATED_LEVEL", "REPEATED_LEVEL", "EMPTY_INTERVENTION"]
    assert plan.issues[0].path == "$.interventions[0].values[0]"


def test_a_path_that_stands_twice_is_joined_with_an_issue(make_plan, vary):
    plan = make_plan(interventions=vary(("batch.size", [1]), ("batch.size", [2])))
    assert labels(plan) == ["baseline", "batch.size=1", "batch.size=2"]
    assert codes(plan) == ["DUPLICATE_INTERVENTION"]


def test_logp_backend_sets_the_operator_on_both_sides(make_plan, vary):
    case = make_plan(interventions=vary(("logp.backend", ["x.ref"]))).cases[1]
    assert {side: c.backend for side, c in case.operators["selected_logprob"].items()} == {
        "rollout": "x.ref",
        "training": "x.ref",
    }


def test_one_sided_settings(make_plan, vary):
    plan = make_plan(
        interventions=vary(
            ("batch.size", [1], "rollout"),
            ("batch.size", [2], "training"),
            ("logp.backend", ["x"], "training"),
        )
    )
    assert labels(plan)[1:] == ["batch.size@rollout=1", "batch.size@training=2", "logp.backend@training=x"]
    first, second, third = plan.cases[1:]
    assert (first.knobs["batch.size"], first.knobs["batch.size@rollout"]) == (8, 1)
    assert "batch.size@training" not in first.knobs
    assert (second.knobs["batch.size"], second.knobs["batch.size@training"]) == (8, 2)
    assert second.delta == {"batch.size@training": 2}
    assert third.operators["selected_logprob"]["rollout"].backend == "native"
    assert third.operators["selected_logprob"]["training"].backend == "x"


def test_both_sides_set_alike_is_the_plain_case(make_plan, vary):
    plan = make_plan(
        strategy="product",
        interventions=vary(("batch.size", [1], "rollout"), ("batch.size", [1], "training"), ("batch.size", [1])),
    )
    assert labels(plan) == ["baseline", "batch.size@rollout=1", "batch.size@training=1", "batch.size=1"]
    assert "batch.size@rollout" not in plan.cases[-1].knobs
    assert set(codes(plan)) == {"DUPLICATE_CELL"}


def test_operator_axes(make_plan, vary):
    chosen = {"backend": "x", "options": {"chunk": 4}}
    plan = make_plan(
        operators={"attention": {"training": "native"}},
        interventions=vary(
            ("operators.selected_logprob.rollout", ["reference", chosen]),
            ("operators.gemm.training", ["tree"]),
        ),
    )
    assert labels(plan)[1:] == [
        "operators.selected_logprob.rollout=reference",
        'operators.selected_logprob.rollout=x{"chunk": 4}',
        "operators.gemm.training=tree",
    ]
    assert plan.cases[1].delta == {"operators.selected_logprob.rollout": "reference"}
    assert plan.cases[2].delta == {"operators.selected_logprob.rollout": chosen}
    assert set(plan.cases[0].operators) == {"selected_logprob", "attention", "gemm"}
    for case in plan.cases:
        assert all(set(sides) == {"rollout", "training"} for sides in case.operators.values())
    assert plan.cases[3].operators["gemm"]["rollout"].backend == "native"


def test_operator_levels_differ_by_options_strictly(make_plan, vary):
    values = [{"backend": "x", "options": {"n": n}} for n in (1, True, 1)]
    plan = make_plan(interventions=vary(("operators.gemm.rollout", values)))
    assert len(plan.cases) == 3
    assert codes(plan) == ["REPEATED_LEVEL"]


def test_the_four_arms_of_a_swap(make_plan, vary):
    plan = make_plan(
        interventions=vary(
            ("logp.backend", ["reference"]),
            ("operators.selected_logprob.rollout", ["reference"]),
            ("operators.selected_logprob.training", ["reference"]),
        )
    )
    arms = [tuple(c.backend for c in case.operators["selected_logprob"].values()) for case in plan.cases]
    assert arms == [
        ("native", "native"),
        ("reference", "reference"),
        ("reference", "native"),
        ("native", "reference"),
    ]


def test_a_knob_that_its_cell_makes_idle_is_filtered(make_plan, vary):
    plan = make_plan(
        strategy="product",
        interventions=vary(
            ("logp.backend", ["a"]),
            ("operators.selected_logprob.rollout", ["b"]),
            ("operators.selected_logprob.training", ["b"]),
        ),
    )
    (cell,) = plan.filtered
    assert cell.code == "INEFFECTIVE_KNOB"
    assert cell.delta["logp.backend"] == "a"
    assert len(plan.cases) == 7


def test_v2_derives_logp_backend_from_an_explicit_mapping(make_plan):
    plan = make_plan(baseline={}, operators={"selected_logprob": {"rollout": "a", "training": "b"}})
    case = plan.cases[0]
    assert case.knobs["logp.backend"] == "a"
    assert [c.backend for c in case.operators["selected_logprob"].values()] == ["a", "b"]


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_logp_backend_cannot_be_varied_beside_a_mapping(version, make_plan, vary):
    with pytest.raises(ConfigError, match="varied beside") as error:
        make_plan(
            version,
            operators={"selected_logprob": {"rollout": "native", "training": "native"}},
            interventions=vary(("logp.backend", ["x"])),
        )
    assert error.value.path == "$.interventions[0].path"


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_logp_backend_must_agree_with_a_mapping(version, make_plan):
    with pytest.raises(ConfigError, match=r"logp\.backend") as error:
        make_plan(version, operators={"selected_logprob": {"rollout": "a", "training": "native"}})
    assert error.value.path == "$.baseline.logp.backend"


def test_an_alias_in_the_mapping_agrees(make_plan):
    assert make_plan("v1", operators={"selected_logprob": {"rollout": "auto", "training": "x"}}).cases


def test_fixed_overrides_the_baseline_of_every_case(make_plan, vary):
    plan = make_plan(
        baseline={"batch.size": 8, "batch.size@rollout": 2},
        fixed={"batch": {"size": 4}, "operators": {"gemm": {"rollout": "tree"}}},
        interventions=vary(("rollout.dtype", ["float32"])),
    )
    assert [case.knobs["batch.size"] for case in plan.cases] == [4, 4]
    assert "batch.size@rollout" not in plan.cases[0].knobs
    assert plan.cases[0].operators["gemm"]["rollout"].backend == "tree"
    assert plan.cases[1].delta == {"rollout.dtype": "float32"}


@pytest.mark.parametrize("key", ["batch.size", "batch.size@rollout"])
def test_a_fixed_knob_cannot_be_varied(key, make_plan, vary):
    with pytest.raises(ConfigError, match="FIXED_AND_VARIED"):
        make_plan(fixed={key: 4}, interventions=vary(("batch.size", [1])))


def test_a_one_sided_baseline(make_plan, vary):
    plan = make_plan(baseline={"batch.size": 8, "batch.size@training": 4}, interventions=vary(("batch.size", [8, 4])))
    assert plan.cases[0].knobs["batch.size@training"] == 4
    assert labels(plan) == ["baseline", "batch.size=8", "batch.size=4"]
    assert "batch.size@training" not in plan.cases[1].knobs


def test_controls_are_cases_of_the_baseline(make_plan, vary):
    controls = {"repeats": 2, "fresh_processes": 1, "shuffled": 1, "cold": 1, "warm": 1, "at_end": 1}
    controls["reference"] = False
    plan = make_plan(controls=controls, interventions=vary(("batch.size", [1])))
    assert labels(plan)[2:] == ["repeat 1", "repeat 2", "fresh 1", "shuffled 1", "cold 1", "warm 1", "at_end 1"]
    assert [(case.role, case.index) for case in plan.cases[2:4]] == [("repeat", 1), ("repeat", 2)]
    assert all(case.knobs == plan.cases[0].knobs and case.delta == {} for case in plan.cases[2:])
    assert len({case.case_id for case in plan.cases}) == len(plan.cases)
    assert plan.reference is False


UNKNOWN = [
    ("$.baseline.batch.sise", {"baseline": {"batch": {"sise": 8}}}, "'batch.size'"),
    ("$.fixed.rollout.dtyp", {"fixed": {"rollout.dtyp": "bf16"}}, "'rollout.dtype'"),
    ("$.interventions[0].path", {"interventions": [{"path": "gemm.tile", "values": [1]}]}, "'xcfg-ops-gemm'"),
    ("$.align[0].path", {"align": [{"path": "rollout.dtypes", "to": "rollout"}]}, "'rollout.dtype'"),
    ("$.constraints[0].when.x.y", {"constraints": [{"code": "C", "when": {"x.y": [1]}}]}, "Available"),
    ("$.baseline.operators.gemm.rollout", {"baseline": {"operators.gemm.rollout": "x"}}, "`operators`"),
]


@pytest.mark.parametrize(("path", "change", "hint"), UNKNOWN)
def test_an_unknown_path_names_the_nearest_and_the_package(path, change, hint, make_plan):
    with pytest.raises(UnknownNameError) as error:
        make_plan(**change)
    assert f"e.json: {path}: " in error.value.message
    assert hint in error.value.hint
    assert error.value.exit_code == 2


def test_a_knob_outside_the_ten_is_refused_in_v1(make_plan, vary):
    with pytest.raises(ConfigError, match="ten knobs") as error:
        make_plan("v1", interventions=vary(("gemm.kernel", ["tree"])))
    assert "v2" in error.value.hint
    with pytest.raises(UnknownNameError):
        make_plan("v1", interventions=vary(("operators.selected_logprob.rollout", ["x"])))


@pytest.mark.parametrize("path", ["logp.tp_layout", "training.derived_thing"])
def test_a_derived_knob_cannot_be_set(path, make_plan, vary):
    with pytest.raises(ConfigError, match="DERIVED_KNOB"):
        make_plan(interventions=vary((path, [2])))
    with pytest.raises(ConfigError, match="DERIVED_KNOB"):
        make_plan(baseline={path: 2})


def test_v1_needs_all_ten_and_v2_needs_what_has_no_default(make_plan, make_document, vary):
    baseline = make_document()["baseline"]
    del baseline["training"]["sharding"]
    with pytest.raises(ConfigError, match="MISSING_BASELINE_VALUE") as error:
        make_plan("v1", baseline=baseline)
    assert error.value.path == "$.baseline.training.sharding"
    assert make_plan("v2", baseline=baseline).cases
    with pytest.raises(ConfigError, match="MISSING_BASELINE_VALUE"):
        make_plan(interventions=vary(("rollout.block", [16])))


VALUES = [
    ("batch.size", True),
    ("batch.size", 0),
    ("batch.size", 1.0),
    ("batch.size", "1"),
    ("rollout.enforce_eager", 1),
    ("rollout.enforce_eager", "true"),
    ("rollout.dtype", "float64"),
    ("rollout.dtype", "BF16"),
    ("training.sharding", "ddp"),
    ("training.attention_backend", "flash_attention_3"),
    ("logp.backend", ""),
    ("logp.backend", "a b"),
    ("rollout.block", 65),
    ("rollout.block", 15),
]


@pytest.mark.parametrize(("path", "value"), VALUES)
def test_a_value_outside_the_domain_is_refused_wherever_it_stands(path, value, make_plan, vary):
    with pytest.raises(ConfigError, match="UNSUPPORTED_VALUE") as error:
        make_plan(baseline={path: value})
    assert error.value.path == f"$.baseline.{path}"
    assert error.value.hint
    good = {"rollout.block": 32} if path == "rollout.block" else {}
    with pytest.raises(ConfigError, match="UNSUPPORTED_VALUE") as error:
        make_plan(baseline=good, interventions=vary((path, [value])))
    assert error.value.path == "$.interventions[0].values[0]"


def test_a_side_needs_a_knob_of_both_sides(make_plan, vary):
    with pytest.raises(ConfigError, match="INVALID_PATH"):
        make_plan(interventions=vary(("rollout.dtype", ["float32"], "rollout")))
    with pytest.raises(ConfigError, match="INVALID_PATH"):
        make_plan(baseline={"batch.size@left": 2})
    assert len(make_plan(interventions=vary(("gemm.kernel", ["tree"], "training"))).cases) == 2


def test_an_empty_list_of_values_is_a_fault(make_plan, vary):
    with pytest.raises(ConfigError, match="EMPTY_INTERVENTION"):
        make_plan(interventions=vary(("batch.size", [])))


def test_the_cap_is_checked_before_anything_is_expanded(make_plan, vary):
    sizes = list(range(100, 400))
    with pytest.raises(ConfigError, match="PLAN_TOO_LARGE: the plan would have 301 cases"):
        make_plan(interventions=vary(("batch.size", sizes)))
    assert len(make_plan(limits={"max_cases": 301}, interventions=vary(("batch.size", sizes))).cases) == 301
    huge = [("batch.size", sizes), ("gemm.kernel", ["tree"]), ("rollout.tensor_parallel_size", sizes)]
    with pytest.raises(ConfigError, match="181202 cases"):
        make_plan(strategy="product", limits={"max_cases": 4096}, interventions=vary(*huge))
    with pytest.raises(ConfigError, match="PLAN_TOO_LARGE"):
        make_plan(strategy="pairwise", limits={"max_cases": 4096}, interventions=vary(*huge))
    with pytest.raises(ConfigError, match="PLAN_TOO_LARGE"):
        make_plan(controls={"repeats": 10**12})


@pytest.mark.parametrize("joined", [False, True])
def test_the_cap_is_reached_in_time_whatever_the_number_of_values(make_plan, vary, monkeypatch, joined):
    """Failing means that each value is held against all before it, so that a long list ends in no error and no plan."""
    count, compared = 2_000, []
    monkeypatch.setattr("xcfg.planning.axes.same", lambda *pair: bool(compared.append(pair)))
    sizes = range(100, 100 + count)
    varied = vary(*(("batch.size", [size]) for size in sizes)) if joined else vary(("batch.size", [*sizes, 100]))
    with pytest.raises(ConfigError, match=f"PLAN_TOO_LARGE: the plan would have {count + 1} cases, more than 256"):
        make_plan(interventions=varied)
    assert len(compared) <= 2 * count


def test_levels_are_told_apart_by_type_and_by_what_they_say(make_plan, vary):
    """Failing means that a plan drops a level that is none of those before it, or plans one twice."""
    written = ["native", {"backend": "native"}, {"backend": "a", "options": {"x": 1, "y": 2}}]
    again = {"backend": "a", "options": {"y": 2, "x": 1}}
    other = {"backend": "a", "options": {"x": True, "y": 2}}
    path = "operators.softmax.rollout"
    plan = make_plan(interventions=vary((path, [*written, again, other])))
    assert len(plan.cases) == 3
    assert codes(plan) == ["REPEATED_LEVEL"] * 3


def test_v1_has_the_cap_of_256(make_plan, vary):
    assert len(make_plan("v1", interventions=vary(("batch.size", list(range(100, 355))))).cases) == 256
    with pytest.raises(ConfigError, match="PLAN_TOO_LARGE"):
        make_plan("v1", interventions=vary(("batch.size", list(range(100, 356)))))


def test_every_case_carries_the_engine_arguments(make_plan, vary):
    plan = make_plan(runtime_options={"rollout": {"max_num_seqs": 8}}, interventions=vary(("batch.size", [1])))
    assert all(case.runtime_options == {"rollout": {"max_num_seqs": 8}} for case in plan.cases)


@pytest.mark.parametrize("order", [1, -1])
def test_a_one_sided_value_stands_on_top_whatever_the_order(order, make_plan, vary):
    plan = make_plan(
        strategy="product", interventions=vary(("batch.size", [1], "rollout"), ("batch.size", [2]))[::order]
    )
    assert plan.filtered == ()
    both = [case for case in plan.cases if len(case.delta) == 2]
    # Written against the baseline's 8, from which both sides differ here.
    assert [(case.knobs["batch.size@rollout"], case.knobs["batch.size"]) for case in both] == [(1, 2)]
