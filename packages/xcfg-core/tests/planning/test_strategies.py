from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xcfg.errors import ConfigError
from xcfg.planning.covering import _complete, cover, pair_count

AXES = (("batch.size", [1, 2, 4]), ("rollout.dtype", ["float32", "float16"]), ("gemm.kernel", ["tree"]))


def codes(plan):
    return [issue.code for issue in plan.issues]


def test_listed_pairs(make_plan, vary):
    plan = make_plan(
        "v1",
        strategy="pairwise",
        interventions=vary(("batch.size", [1, 2]), ("rollout.dtype", ["float32"]), ("training.sharding", ["fsdp"])),
        pairwise_paths=[["rollout.dtype", "batch.size"]],
    )
    assert [case.label for case in plan.cases] == [
        "baseline",
        "batch.size=1",
        "batch.size=2",
        "rollout.dtype=float32",
        "training.sharding=fsdp",
        "batch.size=1, rollout.dtype=float32",
        "batch.size=2, rollout.dtype=float32",
    ]
    assert plan.cases[5].delta == {"batch.size": 1, "rollout.dtype": "float32"}


@pytest.mark.parametrize(
    ("code", "change"),
    [
        ("PAIRWISE_NOT_ENABLED", {"pairwise_paths": [["batch.size", "rollout.dtype"]]}),
        ("PAIRWISE_PATHS_REQUIRED", {"strategy": "pairwise"}),
        ("INVALID_PAIR", {"strategy": "pairwise", "pairwise_paths": [["batch.size", "batch.size"]]}),
        (
            "UNDECLARED_PAIR_PATH",
            {"strategy": "pairwise", "pairwise_paths": [["batch.size", "logp.backend"]]},
        ),
    ],
)
def test_a_bad_pair_is_a_fault(code, change, make_plan, vary):
    with pytest.raises(ConfigError, match=code):
        make_plan("v1", interventions=vary(("batch.size", [1]), ("rollout.dtype", ["float32"])), **change)


def test_a_repeated_or_empty_pair_is_an_issue(make_plan, vary):
    plan = make_plan(
        strategy="pairwise",
        interventions=vary(("batch.size", [1]), ("rollout.dtype", ["float32"]), ("gemm.kernel", ["native"])),
        pairwise_paths=[
            ["batch.size", "rollout.dtype"],
            ["rollout.dtype", "batch.size"],
            ["batch.size", "gemm.kernel"],
        ],
    )
    assert codes(plan) == ["REPEATED_LEVEL", "EMPTY_INTERVENTION", "DUPLICATE_PAIR", "EMPTY_PAIR"]
    assert len(plan.cases) == 4


def test_only_empty_pairs_make_no_covering_array(make_plan, vary):
    plan = make_plan(
        strategy="pairwise",
        interventions=vary(("batch.size", [1]), ("rollout.dtype", ["float32"]), ("gemm.kernel", ["native"])),
        pairwise_paths=[["batch.size", "gemm.kernel"]],
    )
    assert len(plan.cases) == 3


def test_zip_pairs_values_by_position(make_plan, vary):
    plan = make_plan(
        strategy="zip",
        interventions=vary(
            ("rollout.dtype", ["float32", "float16", "bfloat16", "float32"]),
            ("training.compute_dtype", ["float32", "bfloat16", "bfloat16", "float32"]),
        ),
    )
    assert [case.label for case in plan.cases] == [
        "baseline",
        "rollout.dtype=float32",
        "rollout.dtype=float16",
        "training.compute_dtype=float32",
        "rollout.dtype=float32, training.compute_dtype=float32",
    ]
    assert codes(plan) == ["REPEATED_ROW"]


def test_zip_needs_equal_lengths(make_plan, vary):
    with pytest.raises(ConfigError, match="ZIP_LENGTH_MISMATCH"):
        make_plan(strategy="zip", interventions=vary(("batch.size", [1, 2]), ("rollout.dtype", ["float32"])))


def test_product_is_every_combination_once(make_plan, vary):
    plan = make_plan(strategy="product", interventions=vary(*AXES))
    seen = {tuple(case.knobs[path] for path, _ in AXES) for case in plan.cases}
    wanted = itertools.product((8, 1, 2, 4), ("bfloat16", "float32", "float16"), ("native", "tree"))
    assert seen == set(wanted)
    assert len(plan.cases) == 4 * 3 * 2
    assert [len(case.delta) for case in plan.cases[:7]] == [0, 1, 1, 1, 1, 1, 1]


CONSTRAINT = {"code": "NO", "when": {"batch.size": [1], "rollout.dtype": ["fp32"]}, "reason": "too slow"}


def test_a_constraint_filters_cells_with_its_code(make_plan, vary):
    plan = make_plan(strategy="product", interventions=vary(*AXES), constraints=[CONSTRAINT])
    assert len(plan.cases) == 22
    assert {(cell.code, cell.reason) for cell in plan.filtered} == {("NO", "too slow")}
    assert [cell.label for cell in plan.filtered] == [
        "batch.size=1, rollout.dtype=float32",
        "batch.size=1, rollout.dtype=float32, gemm.kernel=tree",
    ]
    ids = {case.case_id for case in make_plan(strategy="product", interventions=vary(*AXES)).cases}
    assert {case.case_id for case in plan.cases} < ids


def test_require_and_the_constraints_of_knobs(make_plan, vary):
    plan = make_plan(
        strategy="product",
        interventions=vary(("rollout.kv_cache_dtype", ["fp8"]), ("rollout.dtype", ["float32"])),
    )
    (cell,) = plan.filtered
    assert cell.code == "FP8_NEEDS_BF16"
    assert cell.reason == "where rollout.kv_cache_dtype is fp8, rollout.dtype must be bfloat16"


def test_a_one_sided_value_cannot_slip_past_a_constraint(make_plan, vary):
    forbid = [{"code": "NO", "when": {"batch.size": [1]}}]
    plan = make_plan(interventions=vary(("batch.size", [1], "rollout")), constraints=forbid)
    assert [cell.code for cell in plan.filtered] == ["NO"]
    require = [{"code": "EIGHT", "when": {"rollout.dtype": ["bf16"]}, "require": {"batch.size": [8]}}]
    plan = make_plan(interventions=vary(("batch.size", [1], "training")), constraints=require)
    assert [cell.code for cell in plan.filtered] == ["EIGHT"]
    sided = [{"code": "NO", "when": {"batch.size@training": [1]}}]
    plan = make_plan(interventions=vary(("batch.size", [1], "rollout")), constraints=sided)
    assert plan.filtered == ()


def test_operators_can_be_constrained(make_plan, vary):
    rule = [{"code": "NO", "when": {"operators.gemm.rollout": ["tree"]}, "require": {"batch.size": [1]}}]
    plan = make_plan(
        strategy="product",
        interventions=vary(("operators.gemm.rollout", ["tree"]), ("batch.size", [1])),
        constraints=rule,
    )
    assert [cell.label for cell in plan.filtered] == ["operators.gemm.rollout=tree"]
    assert len(plan.cases) == 3


def test_a_baseline_that_breaks_a_constraint_is_a_fault(make_plan):
    with pytest.raises(ConfigError, match="BASELINE_FILTERED"):
        make_plan(constraints=[{"code": "NO", "when": {"batch.size": [8]}}])


LEVELS = {
    "batch.size": [8, 1, 2, 4],
    "rollout.dtype": ["bfloat16", "float32", "float16"],
    "gemm.kernel": ["native", "tree"],
    "rollout.enforce_eager": [True, False],
    "training.attention_backend": ["sdpa", "eager", "flash_attention_2"],
    "rollout.tensor_parallel_size": [1, 2],
}


def covered(plan, pair_levels):
    """Brute force: which pairs of values stand together in some case."""
    return {
        (a, x, b, y)
        for (a, xs), (b, ys) in itertools.combinations(pair_levels.items(), 2)
        for x in xs
        for y in ys
        if any(case.knobs[a] == x and case.knobs[b] == y for case in plan.cases)
    }


def every(pair_levels):
    return {(a, x, b, y) for (a, xs), (b, ys) in itertools.combinations(pair_levels.items(), 2) for x in xs for y in ys}


def test_pairwise_without_pairs_is_a_covering_array(make_plan, vary):
    interventions = vary(*((path, values[1:]) for path, values in LEVELS.items()))
    plan = make_plan(strategy="pairwise", interventions=interventions)
    assert covered(plan, LEVELS) == every(LEVELS)
    assert len(plan.cases) < 1 + 9 + 20  # the product has 288
    single = [case for case in plan.cases if len(case.delta) == 1]
    assert len(single) == 3 + 2 + 1 + 1 + 2 + 1


def test_a_covering_array_under_constraints_covers_every_possible_pair(make_plan, vary):
    interventions = vary(*((path, values[1:]) for path, values in LEVELS.items()))
    rules = [
        {"code": "A", "when": {"batch.size": [4]}, "require": {"rollout.dtype": ["float32"]}},
        {"code": "B", "when": {"gemm.kernel": ["tree"], "rollout.enforce_eager": [False]}},
    ]
    plan = make_plan(strategy="pairwise", interventions=interventions, constraints=rules)

    def fine(values):
        return not (values["batch.size"] == 4 and values["rollout.dtype"] != "float32") and not (
            values["gemm.kernel"] == "tree" and not values["rollout.enforce_eager"]
        )

    everything = [dict(zip(LEVELS, row, strict=True)) for row in itertools.product(*LEVELS.values())]
    possible = {
        (a, x, b, y)
        for a, x, b, y in every(LEVELS)
        if any(values[a] == x and values[b] == y and fine(values) for values in everything)
    }
    assert len(possible) < len(every(LEVELS))
    assert covered(plan, LEVELS) == possible
    assert all(fine(case.knobs) for case in plan.cases)
    assert {cell.code for cell in plan.filtered} == {"A", "B"}
    base = {path: values[0] for path, values in LEVELS.items()}
    changed = [
        {pair for pair in pairs if base[pair[0]] != pair[1] and base[pair[2]] != pair[3]}
        for pairs in (every(LEVELS), possible)
    ]
    assert (plan.coverage.pairs, plan.coverage.covered) == tuple(map(len, changed))
    assert plan.coverage.rows == sum(len(case.delta) > 1 for case in plan.cases)


def test_only_a_covering_array_says_what_it_covers(make_plan, vary):
    interventions = vary(*((path, values[1:]) for path, values in LEVELS.items()))
    for changes in ({"strategy": "one_at_a_time"}, {"strategy": "pairwise", "pairwise_paths": [list(LEVELS)[:2]]}):
        assert make_plan(interventions=interventions, **changes).coverage is None
    whole = make_plan(strategy="pairwise", interventions=interventions)
    assert whole.coverage.covered == whole.coverage.pairs == pair_count([len(values) - 1 for values in LEVELS.values()])


def test_a_pair_that_another_pairs_row_holds_is_not_called_impossible():
    """Axis 0 needs two others changed, which no row is begun with; the row of those two takes it in nevertheless."""

    def allowed(row):
        return not row[0] or (row[2] and row[3])

    singles = [(0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 2, 0), (0, 0, 0, 1), (0, 0, 0, 2)]
    found = cover([1, 1, 2, 2], [(0, 0, 0, 0), *singles], allowed, limit=100)
    assert any(row[0] and row[1] for row in found.rows)
    held = {(0, row[0], axis, row[axis]) for row in found.rows for axis in (1, 2, 3)}
    assert not held & set(found.impossible)
    assert set(found.impossible) == {(0, 1, 2, 0), (0, 1, 3, 0)}


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 3), min_size=3, max_size=5), st.data())
def test_coverage_under_constraints_between_axes_against_the_whole_product(levels, data):
    """Failing means that a constraint takes more interactions away than it has to, or that a refused row is planned."""
    axes = st.integers(0, len(levels) - 1)
    rules = []
    for first, second in data.draw(st.lists(st.tuples(axes, axes).filter(lambda two: two[0] != two[1]), max_size=4)):
        rules.append(
            (first, data.draw(st.integers(0, levels[first])), second, data.draw(st.integers(1, levels[second])))
        )

    def allowed(row):
        return not any(row[first] == a and row[second] == b for first, a, second, b in rules)

    singles = [tuple(level if i == axis else 0 for i in range(len(levels)))
               for axis, count in enumerate(levels) for level in range(1, count + 1)]  # fmt: skip
    done = [row for row in ((0,) * len(levels), *singles) if allowed(row)]
    found = cover(levels, done, allowed, limit=10_000)
    rows = [*done, *found.rows]
    assert all(map(allowed, rows)) and len(set(rows)) == len(rows)
    product = [row for row in itertools.product(*(range(count + 1) for count in levels)) if allowed(row)]
    for first, second in itertools.combinations(range(len(levels)), 2):
        for a, b in itertools.product(range(levels[first] + 1), range(levels[second] + 1)):
            held = any(row[first] == a and row[second] == b for row in rows)
            near = [row for row in product if row[first] == a and row[second] == b
                    and sum(bool(level) for i, level in enumerate(row) if i not in (first, second)) <= 1]  # fmt: skip
            assert held or not near, "a row with the pair and one more change would have been allowed"
            assert held != ((first, a, second, b) in found.impossible)
            assert sum(held for _ in product[:1]) <= sum(row[first] == a and row[second] == b for row in product)


def test_the_library_s_rows_are_taken_where_they_are_fewer():
    """Failing means that nobody asks the library, whose arrays for many equal axes are about half as long."""
    levels = [3] * 12
    single = [
        (0,) * 12,
        *(tuple(level if i == axis else 0 for i in range(12)) for axis in range(12) for level in (1, 2, 3)),
    ]
    assert len(cover(levels, single, lambda row: True, limit=4096).rows) <= 20
    assert len(_complete(levels, single, [], lambda row: True, 4096).rows) > 25


@settings(max_examples=40)
@given(st.lists(st.integers(1, 4), min_size=2, max_size=6), st.randoms(use_true_random=False))
def test_a_covering_array_has_every_pair(levels, random):
    banned = {
        (axis, level) for axis, count in enumerate(levels) for level in range(1, count + 1) if random.random() < 0.1
    }

    def allowed(row):
        return not any((axis, level) in banned for axis, level in enumerate(row))

    covering = cover(levels, [(0,) * len(levels)], allowed, limit=10_000)
    rows = [(0,) * len(levels), *covering.rows]
    assert all(allowed(row) for row in rows)
    for first, second in itertools.combinations(range(len(levels)), 2):
        for a in range(levels[first] + 1):
            for b in range(levels[second] + 1):
                found = any(row[first] == a and row[second] == b for row in rows)
                possible = (first, a) not in banned and (second, b) not in banned
                assert found == possible
                assert ((first, a, second, b) in covering.impossible) == (not possible)


def test_the_number_of_pairs(make_plan):
    levels = [3, 1, 2]
    assert pair_count(levels) == 3 * 1 + 3 * 2 + 1 * 2


def test_a_covering_array_that_needs_too_many_cases_is_refused(make_plan, vary):
    interventions = vary(*((path, values[1:]) for path, values in LEVELS.items()))
    needed = len(make_plan(strategy="pairwise", interventions=interventions).cases)
    exact = make_plan(strategy="pairwise", limits={"max_cases": needed}, interventions=interventions)
    assert len(exact.cases) == needed
    with pytest.raises(ConfigError, match="PLAN_TOO_LARGE"):
        make_plan(strategy="pairwise", limits={"max_cases": needed - 1}, interventions=interventions)


def test_the_work_of_a_covering_array_is_bounded(make_plan, vary):
    many = vary(*((f"operators.op{number}.rollout", ["a"]) for number in range(300)))
    with pytest.raises(ConfigError, match="44850 pairs"):
        make_plan(strategy="pairwise", limits={"max_cases": 4096}, interventions=many)


def test_covering_stops_at_its_limit():
    assert cover([9, 9], [], lambda row: True, limit=10) is None
    assert len(cover([9, 9], [], lambda row: True, limit=100).rows) == 100
