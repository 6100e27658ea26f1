"""The classes of a finding, on two small engines that exist nowhere: every expected class is written by hand."""

from __future__ import annotations

import pytest
from xcfg.arguments import SideArguments, check_sides, understand
from xcfg.arguments.alone import Place, same
from xcfg.arguments.check import has_traps
from xcfg.errors import UsageError
from xcfg.schema.arguments import ArgumentRow, ArgumentTable, Condition, Effect, EngineArgument, Outcome, Trap
from xcfg.schema.knobs import Choice, IntRange, KnobDefinition, Text
from xcfg.schema.names import Lifecycle, SourceClass, Target


def row(value, outcome, *, knob="rollout.cache", baseline="auto", platform="cpu", **more):
    effects = ()
    if outcome in (Outcome.APPLIED, Outcome.NO_EFFECT):
        moved = outcome is Outcome.APPLIED
        effects = (
            Effect(
                arm="rollout_decode",
                tokens=10,
                differing=7 if moved else 0,
                mean_abs=0.125 * moved,
                max_abs=0.75 * moved,
            ),
        )
    return ArgumentRow(
        side="rollout",
        knob=knob,
        value=value,
        baseline=baseline,
        platform=platform,
        outcome=outcome,
        effects=effects,
        model="a model",
        dtype="bfloat16",
        versions={"engine": "1.2"},
        **more,
    )


ROLLOUT = ArgumentTable(
    arguments=(
        EngineArgument(flags=("dtype",), values={"bf16": "bfloat16", "auto": None}, group="dtype"),
        EngineArgument(flags=("cache-format", "kv"), knob="rollout.cache", group="cache", neutral=("auto",)),
        EngineArgument(flags=("ranks",), knob="rollout.ranks", group="ranks", default=1, neutral=(1,)),
        EngineArgument(flags=("heat",), group="heat", default=1.0, neutral=(1.0,), confirm="look at it"),
        EngineArgument(flags=("mode",), default="raw"),
        EngineArgument(flags=("eager",), switch=True),
        EngineArgument(flags=("X_FAST",), switch=True),
    ),
    traps=(
        Trap(name="a", when=(Condition(flag="eager", values=(False,)),), outcome=Outcome.TRAP, happens="two at once"),
        Trap(
            name="b",
            when=(Condition(flag="X_FAST", values=(True,)),),
            outcome=Outcome.REFUSED,
            happens="no",
            platforms=("cpu",),
        ),
        Trap(
            name="c",
            when=(Condition(flag="heat", excluded=(1.0,)), Condition(flag="mode", values=("raw",))),
            outcome=Outcome.TRAP,
            happens="scored cold",
        ),
        Trap(name="d", when=(Condition(flag="kv", values=("odd",)),), outcome=Outcome.IGNORED, happens="auto runs"),
    ),
    rows=(
        row("fp8", Outcome.APPLIED),
        row("odd", Outcome.IGNORED, note="auto runs"),
        row("big", Outcome.REFUSED),
        row("dark", Outcome.UNOBSERVABLE),
        row("same", Outcome.NO_EFFECT),
        row("gpu", Outcome.APPLIED, platform="cuda"),
        row(2, Outcome.APPLIED, knob="rollout.ranks", baseline=1),
    ),
)
TRAINING = ArgumentTable(
    arguments=(
        EngineArgument(flags=("half",), switch=True, sets="float16", group="dtype", default="float32"),
        EngineArgument(flags=("brain",), switch=True, sets="bfloat16", group="dtype", default="float32"),
        EngineArgument(flags=("ranks",), group="ranks", default=1, neutral=(1,)),
        EngineArgument(flags=("heat",), group="heat", default=1.0, neutral=(1.0,)),
    )
)


def knob(name, domain):
    return KnobDefinition(
        name=name,
        summary="",
        source_class=SourceClass.EXECUTION,
        lifecycle=Lifecycle.REQUEST,
        targets=Target.ROLLOUT,
        domain=domain,
    )


KNOBS = {
    "rollout.cache": knob("rollout.cache", Choice(values=("auto", "fp8", "odd"))),
    "rollout.ranks": knob("rollout.ranks", IntRange()),
}


def check(rollout, training=None, platform="cpu"):
    sides = (understand("rollout", "engine", ROLLOUT, rollout), understand("training", "trainer", TRAINING, training))
    return check_sides(*sides, platform=platform, knobs=KNOBS, command="xcfg run mine.json")


def verdicts(found, side="rollout"):
    return sorted((item.flag, item.verdict.value) for item in found.findings if item.side == side)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"kv": "fp8"}, [("kv", "applied")]),
        ({"cache-format": "odd"}, [("cache-format", "ignored")]),
        ({"kv": "big"}, [("kv", "refused")]),
        ({"kv": "dark"}, [("kv", "unobservable")]),
        ({"kv": "same"}, [("kv", "no_effect")]),
        ({"kv": "auto"}, [("kv", "applied")]),
        ({"kv": "never"}, [("kv", "not_run")]),
        ({"kv": "gpu"}, [("kv", "not_run")]),
        ({"eager": True}, [("eager", "not_run")]),
        ({"eager": False}, [("eager", "trap")]),
        ({"no-eager": True}, [("no-eager", "trap")]),
        ({"X_FAST": "1"}, [("X_FAST", "refused")]),
        ({"X_FAST": "0"}, [("X_FAST", "not_run")]),
        ({"heat": 0.7}, [("heat", "trap")]),
        ({"heat": 1}, [("heat", "not_run")]),
        ({"heat": 0.7, "mode": "processed"}, [("heat", "not_run"), ("mode", "not_run")]),
        ({"deep.er.kv": "fp8"}, [("deep.er.kv", "applied")]),
        ({"kvv": "fp8"}, [("kvv", "unknown")]),
        ({}, []),
    ],
)
def test_each_argument_has_its_class(settings, expected):
    """Failing means that a trap is passed over, or that something harmless is called one."""
    assert verdicts(check(settings)) == expected


def test_a_gpu_is_not_judged_by_a_cpu():
    """Failing means that a row or a trap of one platform is shown as true of the other."""
    assert verdicts(check({"kv": "gpu", "X_FAST": "1"}, platform="cuda")) == [("X_FAST", "not_run"), ("kv", "applied")]
    (found,) = check({"kv": "fp8"}, platform="cuda").findings
    assert (found.verdict.value, found.effects) == ("not_run", ())
    assert "on cpu applied: fp8 against auto" in found.happens


@pytest.mark.parametrize(
    ("rollout", "training", "expected"),
    [
        ({"kv": "fp8"}, {}, {"one_sided": "kv"}),
        ({"kv": "auto"}, {}, {}),
        ({"ranks": 2}, {}, {"one_sided": "ranks"}),
        ({"ranks": 1}, {}, {}),
        ({"ranks": 2}, {"ranks": 2}, {}),
        ({"ranks": 2}, {"ranks": 4}, {"unequal": "ranks"}),
        ({"dtype": "bf16"}, {"brain": True}, {}),
        ({"dtype": "bf16"}, {"half": True}, {"unequal": "dtype"}),
        ({"dtype": "bf16"}, {}, {"one_sided": "dtype"}),
        ({"dtype": "float32"}, {}, {}),
        ({"dtype": "bf16"}, {"brain": False}, {"unequal": "dtype"}),
        ({"dtype": "auto"}, {"brain": True}, {}),
        ({}, {"brain": True}, {"one_sided": "brain"}),
        ({"heat": 0.7, "mode": "x"}, {"heat": 0.7}, {}),
        ({"heat": 0.7, "mode": "x"}, {"heat": 1}, {"unequal": "heat"}),
        ({"heat": 1.0}, {"heat": 1}, {}),
    ],
)
def test_pairs_that_should_agree(rollout, training, expected):
    """Failing means that a difference between the sides is missed, or made up."""
    found = check(rollout, training)
    pairs = {item.verdict.value: item.flag for item in found.findings if item.verdict.value in ("one_sided", "unequal")}
    assert pairs == expected


def test_one_side_alone_is_compared_with_nothing():
    """Failing means that arguments nobody gave count as absent: not given is not known."""
    assert "one_sided" not in check({"kv": "fp8"}, None).counts
    assert "one_sided" in check({"kv": "fp8"}, {}).counts


def test_a_finding_has_the_case_that_shows_it():
    found = {item.verdict.value: item for item in check({"kv": "fp8", "ranks": 2}, {"ranks": 4}).findings}
    case = found["one_sided"].case
    assert (case.path, case.values) == ("rollout.cache", ("fp8", "auto"))
    assert case.command == "xcfg run mine.json --axis rollout.cache"
    assert found["unequal"].case.values == (4, 2)  # the other side's value, on this side
    assert "max 0.75, mean 0.125 nats, 7 of 10 tokens" in found["one_sided"].measured
    assert "a model" in found["one_sided"].measured and "engine 1.2" in found["one_sided"].measured


def test_no_case_is_offered_that_a_plan_would_refuse():
    """Failing means that a person pastes an intervention and is told that the value does not exist."""
    (found,) = check({"kv": "big"}).findings
    assert found.case is None


def test_a_trap_takes_the_figures_of_our_own_row():
    (found,) = check({"kv": "odd"}).findings
    assert found.happens == "auto runs" and "case  of" in found.source


@pytest.mark.parametrize(
    ("settings", "traps"),
    [({"kv": "fp8"}, False), ({"kvv": 1}, False), ({"kv": "dark"}, True), ({"kv": "big"}, True), ({}, False)],
)
def test_only_what_is_known_to_be_wrong_counts(settings, traps):
    assert has_traps(check(settings)) is traps


def test_everything_given_is_in_a_finding():
    """Failing means that an argument is dropped without a word."""
    settings = {"kv": "fp8", "never-heard": [1, {"a": None}], "dtype": "auto", "X_FAST": "off", "mode": "m"}
    assert {item.flag for item in check(settings, {"odd": None}).findings} == {*settings, "odd"}


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"kv": True}, "has no value"),
        ({"kv": ["fp8", "org/model"]}, "takes one value"),
        ({"eager": "maybe"}, "is a switch"),
        ({"eager": 3}, "is a switch"),
        ({"eager": [True]}, "is a switch"),
        ({"kv": "fp8", "cache-format": "odd"}, "one argument"),
    ],
)
def test_a_value_that_cannot_be_meant_is_refused(settings, told):
    with pytest.raises(UsageError, match=told):
        check(settings)


def test_two_spellings_with_one_value_are_one_argument():
    assert verdicts(check({"kv": "fp8", "cache-format": "fp8"})) == [("cache-format", "applied"), ("kv", "applied")]


def test_words_that_are_no_option_are_listed():
    """Failing means that a model name, or a value that slipped from its option, is dropped without a word."""
    rollout = SideArguments("rollout", "engine", ROLLOUT, words=("serve", "org/model"))
    found = check_sides(rollout, SideArguments("training", "trainer", TRAINING), platform="cpu", knobs=KNOBS)
    assert [(item.flag, item.verdict.value) for item in found.findings] == [
        ("serve", "unknown"),
        ("org/model", "unknown"),
    ]


def test_an_option_of_the_launcher_is_not_called_a_word():
    rollout = SideArguments("rollout", "engine", ROLLOUT, words=("torchrun", "--nproc-per-node=8", "x.py"))
    found = check_sides(rollout, SideArguments("training", "trainer", TRAINING), platform="cpu", knobs=KNOBS)
    assert ["launcher's" in item.happens for item in found.findings] == [False, True, False]


@pytest.mark.parametrize(
    ("first", "second", "equal"),
    [
        (True, 1, False),
        (0, False, False),
        (True, True, True),
        (1, 1.0, True),
        ("1", 1, False),
        (None, None, True),
        (None, False, False),
    ],
)
def test_values_are_equal_by_kind(first, second, equal):
    """Failing means that a switch is taken for a number, so that `1` rank fires the trap of a switch."""
    assert same(first, second) is equal


@pytest.mark.parametrize(
    ("domain", "value", "offered"),
    [
        (IntRange(maximum=4), 4, True),
        (IntRange(maximum=4), 8, False),
        (Text(pattern="[A-Z_]+"), "FLASH_ATTN", True),
        (Text(pattern="[A-Z_]+"), "flash", False),
    ],
)
def test_a_case_asks_only_for_what_an_experiment_may(domain, value, offered):
    """Failing means that the command which would confirm a finding is refused by the planner."""
    place = Place("cpu", "xcfg run mine.json", {"rollout.any": knob("rollout.any", domain)})
    assert (place.case("rollout.any", value) is not None) is offered
