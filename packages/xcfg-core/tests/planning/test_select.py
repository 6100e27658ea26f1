from __future__ import annotations

import pytest
from xcfg.errors import ConfigError, NothingSelectedError, UnknownNameError, UsageError
from xcfg.planning import plan_experiment, select_cases, slice_issues
from xcfg.planning.select import Term, parse_filter
from xcfg.schema.codec import evolve


@pytest.fixture(scope="module")
def experiment(load, vary):
    return load(
        strategy="product",
        interventions=vary(
            ("batch.size", [1, 4]), ("rollout.dtype", ["float32"]), ("operators.gemm.rollout", ["tree"])
        ),
        slices={"ci": {"batch.size": [8, 1], "rollout.dtype": ["bf16"]}, "none": {"batch.size": [64]}},
        controls={"repeats": 1},
    )


@pytest.fixture(scope="module")
def plan(experiment, knobs, digests):
    return plan_experiment(experiment, knobs, digests)


@pytest.fixture
def labels(plan, experiment, knobs):
    def selected(**options):
        return [case.label for case in select_cases(plan, experiment=experiment, knobs=knobs, **options)]

    return selected


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("", []),
        ("  ", []),
        ("a.b==1", [Term("a.b", (1,))]),
        ("a.b = 1", [Term("a.b", (1,))]),
        (
            "a.b@rollout!=true and c in [1, x ,'y z']",
            [Term("a.b@rollout", (True,), True), Term("c", (1, "x", "y z"))],
        ),
        ('label=="a, b=1"', [Term("label", ("a, b=1",))]),
        ("label==rollout.dtype=*", [Term("label", ("rollout.dtype=*",))]),
        ("x in [1]", [Term("x", (1,))]),
        ('s=="1"', [Term("s", ("1",))]),
    ],
)
def test_the_filter_language(text, terms):
    assert parse_filter(text) == terms


@pytest.mark.parametrize(
    "text",
    [
        "a",
        "a==",
        "==1",
        "a==1 or b==2",
        "a==1 b==2",
        "a==1 and",
        "a in 1",
        "a in []",
        "a in [1",
        "a in [1,]",
        "a>1",
        "()",
        "a==[1]",
    ],
)
def test_a_malformed_filter_is_a_usage_error(text):
    with pytest.raises(UsageError):
        parse_filter(text)


def test_without_a_wish_all_cases_are_there(plan, labels):
    assert len(labels()) == len(plan.cases) == 13


def test_filters(labels):
    assert labels(filter_expression="batch.size==8 and role==case and operators.gemm.rollout==native") == [
        "baseline",
        "rollout.dtype=float32",
    ]
    assert labels(
        filter_expression="rollout.dtype==fp32 and batch.size in [1, 4] and operators.gemm.rollout!=tree"
    ) == [
        "batch.size=1, rollout.dtype=float32",
        "batch.size=4, rollout.dtype=float32",
    ]
    assert labels(filter_expression="role!=case") == ["repeat 1"]
    assert labels(filter_expression="label==base*") == ["baseline"]
    assert labels(filter_expression="label=='repeat 1'") == ["repeat 1"]


def test_case_ids_take_globs(plan, labels):
    wanted = plan.cases[3]
    assert labels(filter_expression=f"case_id=={wanted.case_id[:14]}*") == [wanted.label]


def test_slices_use_aliases_and_combine_with_filters(labels):
    assert labels(slice_name="ci", filter_expression="operators.gemm.rollout==native") == [
        "baseline",
        "batch.size=1",
        "repeat 1",
    ]


def test_slices_that_could_not_be_run_are_issues_of_the_plan(plan, experiment, knobs):
    """Failing means that a misspelt slice is found by the night run that asks for it."""
    slices = {**experiment.slices, "typo": {"rollout.dtyp": ("float32",)}, "domain": {"batch.size": ("many",)}}
    found = slice_issues(plan, evolve(experiment, slices=slices), knobs)
    assert [(item.code, item.path) for item in found] == [
        ("EMPTY_SLICE", "$.slices.none"),
        ("UNUSABLE_SLICE", "$.slices.typo"),
        ("UNUSABLE_SLICE", "$.slices.domain"),
    ]
    assert "Did you mean 'rollout.dtype'?" in found[1].message
    assert not any(item.fatal for item in found), "the other slices can be run"


def test_axes_keep_the_baseline_and_its_controls(labels):
    assert labels(axes=["batch.size"]) == ["baseline", "batch.size=1", "batch.size=4", "repeat 1"]
    assert len(labels(axes=["batch.size", "rollout.dtype"])) == 7


def test_nothing_left_is_an_error_of_its_own(labels):
    with pytest.raises(NothingSelectedError, match="--slice none") as error:
        labels(slice_name="none")
    assert error.value.exit_code == 3
    with pytest.raises(NothingSelectedError):
        labels(filter_expression="batch.size==16")


@pytest.mark.parametrize(
    "options",
    [
        {"slice_name": "cj"},
        {"filter_expression": "batch.sice==1"},
        {"filter_expression": "batch.size@left==1"},
        {"filter_expression": "operators.attention.rollout==x"},
        {"axes": ["training.sharding"]},
    ],
)
def test_an_unknown_name_is_not_an_empty_selection(options, labels):
    with pytest.raises(UnknownNameError) as error:
        labels(**options)
    assert error.value.hint


def test_a_value_that_could_never_match_is_refused(labels):
    with pytest.raises(ConfigError):
        labels(filter_expression="batch.size==true")


def test_one_sided_values(make_plan, vary, knobs):
    plan = make_plan(interventions=vary(("batch.size", [1], "rollout")))
    case = plan.cases[1]
    for text, found in [
        ("batch.size@rollout==1", True),
        ("batch.size@training==8", True),
        ("batch.size==8", False),
        ("batch.size!=8", True),
        ("batch.size in [1, 8]", True),
    ]:
        assert (case in select_cases(plan, knobs=knobs, filter_expression=text)) == found, text
