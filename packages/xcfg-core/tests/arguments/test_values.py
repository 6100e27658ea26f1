"""Values that no engine takes, switches that contradict each other, and text too long to be shown.

Failing means that `xcfg doctor` calls a command line clean with which an engine does not start.
"""

from __future__ import annotations

import pytest
from xcfg.arguments import check_sides, understand
from xcfg.errors import UsageError
from xcfg.schema.arguments import ArgumentRow, ArgumentTable, Condition, Effect, EngineArgument, Outcome, Trap
from xcfg.schema.doctor import COUNTED, Verdict
from xcfg.schema.knobs import Choice, FloatRange, IntRange, KnobDefinition, Text
from xcfg.schema.names import Lifecycle, SourceClass, Target

TABLE = ArgumentTable(
    arguments=(
        EngineArgument(
            flags=("dtype",), values={"bf16": "bfloat16", "auto": None}, domain=Choice(values=("bfloat16", "float32"))
        ),
        EngineArgument(flags=("ranks",), domain=IntRange(minimum=1, maximum=8)),
        EngineArgument(flags=("heat",), domain=FloatRange(minimum=0.5)),
        EngineArgument(flags=("name",), knob="engine.name", domain=Text(pattern="[a-z]+")),
        EngineArgument(flags=("free",)),
        EngineArgument(flags=("bf16",), switch=True, sets="bfloat16", knob="engine.dtype"),
        EngineArgument(flags=("fp16",), switch=True, sets="float16", knob="engine.dtype"),
        EngineArgument(flags=("brain",), switch=True, sets="bfloat16", knob="engine.dtype"),
        EngineArgument(flags=("again",), knob="engine.again"),
    ),
    traps=(
        Trap(
            name="r",
            when=(Condition(flag="again"),),
            outcome=Outcome.REFUSED,
            happens="it wants another device",
            platforms=("cpu",),
            source="a note",
        ),
    ),
)


def row(value, outcome, *, platform="cpu", scored=True):
    effect = Effect(arm="training", tokens=4, differing=0, mean_abs=0.0, max_abs=0.0)
    return ArgumentRow(
        side="training",
        knob="engine.again",
        value=value,
        baseline="none",
        platform=platform,
        outcome=outcome,
        effects=(effect,) if scored else (),
    )


def findings(given, table=TABLE, knobs=None):
    sides = (understand("rollout", "other", ArgumentTable(), None), understand("training", "engine", table, given))
    return check_sides(*sides, platform="cpu", knobs=knobs or {}).findings


@pytest.mark.parametrize(
    ("given", "said", "hint"),
    [
        ({"dtype": "bfloat17"}, "'bfloat17' is no value of --dtype", "Did you mean 'bfloat16'"),
        ({"dtype": "bfloat17"}, "'bfloat17' is no value of --dtype", "It takes bfloat16, float32"),
        ({"dtype": 16}, "'16' is no value of --dtype", "It takes bfloat16, float32"),
        ({"ranks": 0}, "'0' is no value of --ranks", "It takes an integer from 1 to 8."),
        ({"ranks": 9}, "'9' is no value", "from 1 to 8"),
        ({"ranks": "two"}, "'two' is no value", "from 1 to 8"),
        ({"ranks": 2.5}, "'2.5' is no value", "from 1 to 8"),
        ({"heat": "warm"}, "'warm' is no value of --heat", "finite number from 0.5"),
        ({"heat": 0.1}, "'0.1' is no value", "finite number from 0.5"),
        ({"name": "UPPER"}, "'UPPER' is no value of --name", "matches '[a-z]+'"),
    ],
)  # fmt: skip
def test_a_value_that_the_engine_cannot_take_is_an_input_error_with_the_choices(given, said, hint):
    with pytest.raises(UsageError) as error:
        findings(given)
    assert error.value.exit_code == 2
    assert error.value.message.startswith(f"training: {said}")
    assert hint in error.value.hint


@pytest.mark.parametrize(
    "given", [{"dtype": "bf16"}, {"dtype": "auto"}, {"dtype": None}, {"ranks": 8}, {"heat": 1}, {"free": "anything"}]
)
def test_what_the_engine_takes_is_accepted(given):
    assert len(findings(given)) == 1


def test_two_switches_for_one_setting_are_a_conflict():
    first = findings({"bf16": True, "fp16": True})[0]
    assert (first.verdict, first.flag) == (Verdict.CONFLICT, "bf16") and first.verdict in COUNTED
    assert "--fp16 for float16" in first.happens


@pytest.mark.parametrize("given", [{"bf16": True, "fp16": False}, {"bf16": True, "brain": True}, {"fp16": True}])
def test_switches_that_agree_or_are_off_are_no_conflict(given):
    assert Verdict.CONFLICT not in {item.verdict for item in findings(given)}


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ((), [Verdict.REFUSED]),
        ((row("full", Outcome.UNOBSERVABLE),), [Verdict.UNOBSERVABLE]),
        ((row("full", Outcome.NO_EFFECT),), [Verdict.NO_EFFECT]),
        ((row("half", Outcome.NO_EFFECT),), [Verdict.REFUSED]),
        ((row("full", Outcome.NO_EFFECT, platform="cuda"),), [Verdict.REFUSED]),
        ((row("full", Outcome.REFUSED, scored=False),), [Verdict.REFUSED]),
    ],
    ids=["nothing ran", "it ran", "it ran without effect", "another value ran", "it ran elsewhere", "it was refused"],
)
def test_what_ran_here_is_not_called_refused(rows, expected):
    """Failing means that one argument is said to be refused and to be accepted in one breath."""
    table = ArgumentTable(arguments=TABLE.arguments, traps=TABLE.traps, rows=rows)
    found = findings({"again": "full"}, table)
    assert [item.verdict for item in found] == expected
    assert any("it wants another device" in item.happens for item in found), "what is known otherwise is still said"


def test_a_trap_of_several_arguments_is_not_answered_by_a_row_of_one():
    both = (Condition(flag="again"), Condition(flag="ranks"))
    traps = (Trap(name="r", when=both, outcome=Outcome.REFUSED, happens="not together"),)
    table = ArgumentTable(arguments=TABLE.arguments, traps=traps, rows=(row("full", Outcome.NO_EFFECT),))
    verdicts = [item.verdict for item in findings({"again": "full", "ranks": 2}, table)]
    assert Verdict.REFUSED in verdicts


def test_long_text_is_not_echoed_whole():
    knob = KnobDefinition(
        name="engine.name",
        summary="",
        source_class=SourceClass.EXECUTION,
        lifecycle=Lifecycle.REQUEST,
        targets=Target.TRAINING,
        domain=Text(pattern=".*"),
    )
    for given in ({"name": "x" * 100_000}, {"free": "x" * 100_000}, {"y" * 100_000: "x" * 100_000}):
        (found,) = findings(given, knobs={"engine.name": knob})
        shown = f"{found.flag}{found.value}{found.happens}{found.case}"
        assert len(shown) < 600 and "(100000 characters)" in shown
    with pytest.raises(UsageError) as error:
        findings({"dtype": "x" * 100_000})
    assert len(str(error.value)) < 600
