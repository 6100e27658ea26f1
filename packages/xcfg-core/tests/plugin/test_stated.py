"""What an operator states of its calls: added up, brought over a process boundary, and read by every runtime alike."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
from xcfg.plugin.operators import BoundOperator
from xcfg.plugin.readback import application
from xcfg.plugin.stated import Statements, option_reading
from xcfg.schema.names import Applied, Exercised
from xcfg.schema.operators import OperatorBinding

IDS = np.array([4, 5, 6])
PATH = "logprob.block_size"


class Teller:
    """An operator that states whatever the test puts into it."""

    def __init__(self, **said):
        self.stated = {"options": {"block_size": 16}}
        self.transforms, self.scored_ids = (), None
        vars(self).update(said)

    def __call__(self, logits, selected):
        return selected


def bound(function, operation="selected_logprob"):
    binding = OperatorBinding(
        operation=operation,
        side="training",
        requested="mine",
        backend_id="mine",
        factory="mine:make",
        options={"block_size": 16},
    )
    return BoundOperator(binding, function)


def read(operator, requested=16, path=PATH):
    binding = operator.binding
    reading = option_reading(path, binding.backend_id, binding.options, operator.statements, operator.calls)
    return application(path, requested, reading, side="training", rank=0)


def test_calls_that_agree_are_what_ran():
    """If this fails, an option that every call did is not shown to have run."""
    operator = bound(Teller())
    operator(None, IDS)
    operator(None, IDS)
    found = read(operator)
    assert (found.status, found.actual, found.exercised) == (Applied.APPLIED, 16, Exercised.YES)
    assert [item.kind.value for item in found.evidence] == ["execution", "state"]


@pytest.mark.parametrize(
    ("did", "status", "actual"),
    [
        ([0, 0], Applied.FALLBACK, 0),
        ([16, 0], Applied.UNOBSERVABLE, None),
        ([0, 16], Applied.UNOBSERVABLE, None),
        ([16.0], Applied.FALLBACK, 16.0),
        ([SimpleNamespace(columns=16)], Applied.FALLBACK, "namespace(columns=16)"),
    ],
)
def test_calls_that_did_something_else_or_not_all_the_same_are_not_applied(did, status, actual):
    """If this fails, a mixture of two options passes for the one that was asked for; 16.0 is not 16."""
    teller = Teller()
    operator = bound(teller)
    for value in did:
        teller.stated = {"options": {"block_size": value}}
        operator(None, IDS)
    found = read(operator)
    assert (found.status, found.actual) == (status, actual)
    shown = [value if isinstance(value, (int, float)) else repr(value) for value in did]
    assert all(f"block_size={value!r}" in found.reason for value in shown)


def test_only_calls_since_the_last_clear_count():
    """If this fails, a warm-up speaks for the score behind it."""
    teller = Teller(stated={"options": {"block_size": 0}}, transforms=("temperature:0.5",))
    operator = bound(teller)
    operator(None, IDS)
    operator.clear()
    assert operator.statements.options == {}
    assert operator.statements.transforms == ("temperature:0.5",), "what it declares holds before the first call"
    teller.stated, teller.transforms = {"options": {"block_size": 16}}, ()
    operator(None, IDS)
    assert (operator.statements.transforms, read(operator).status) == ((), Applied.APPLIED)


def test_a_backend_that_states_nothing_is_not_taken_at_its_word():
    """If this fails, an option that a backend takes and ignores counts as applied, and is exonerated."""
    operator = bound(lambda logits, selected: selected)
    assert read(operator).actual == 16, "what it was built with, until it is called"
    operator(None, IDS)
    found = read(operator)
    assert (found.status, [item.kind.value for item in found.evidence]) == (Applied.UNOBSERVABLE, ["state"])
    assert "states nothing of its calls" in found.reason
    assert operator.statements.mechanism() == {}
    there = Statements.of(json.loads(json.dumps(operator.statements.plain())))
    assert option_reading(PATH, "mine", {"block_size": 16}, there, 1).actual is None
    absent = read(operator, path="logprob.merge_order")
    assert absent.status is Applied.UNOBSERVABLE and "without the option 'merge_order'" in absent.reason
    idle = bound(Teller())
    assert read(idle).exercised is Exercised.NO


def test_an_option_that_a_stating_backend_leaves_out_is_not_what_ran():
    """If this fails, a choice that no call could show is applied because the operator was built with it."""
    operator = bound(Teller(stated={"options": {"other": 1}}))
    operator(None, IDS)
    found = read(operator)
    assert (found.status, found.actual) == (Applied.UNOBSERVABLE, None)
    assert "nothing of 'block_size'" in found.reason


def test_rows_decide_only_over_options_that_rows_show():
    """If this fails, a fall-back on small calls is hidden by a large one, or a last batch takes back the others."""
    teller, found = Teller(), Statements()
    for rows, chunk, kernel in ((4, 0, "own"), (48, 24, "own"), (3, 0, "library"), (48, 24, "own")):
        teller.stated = {"options": {"chunk": chunk, "kernel": kernel}, "rows": rows, "by_rows": ("chunk",)}
        found.take(teller, IDS)
    assert found.options == {"kernel": ["own", "library"], "chunk": [24]}
    small = Statements()
    teller.stated = {"options": {"chunk": 0, "kernel": "own"}, "rows": 2, "by_rows": ("chunk",)}
    small.take(teller, IDS)
    came = Statements.of(json.loads(json.dumps(small.plain())))
    came.add(found)
    assert came.options == {"kernel": ["own", "library"], "chunk": [24]}
    found.add(small)
    assert found.options["chunk"] == [24]


def test_an_option_of_the_backward_is_what_a_backward_states():
    """If this fails, an option that no log probability depends on is applied by a score that never ran it."""
    teller = Teller(shown_by={"grad": "backward", "sum": "entropy", "odd": "moonlight"})
    operator, built = bound(teller), {"grad": "own", "sum": "partials", "odd": 1}
    operator(None, IDS)
    came = Statements.of(json.loads(json.dumps(operator.statements.plain())))
    for name, said in (("grad", "no backward"), ("sum", "--columns entropy"), ("odd", "moonlight")):
        found = option_reading(f"logprob.{name}", "mine", built, came, 1)
        assert (found.actual, found.exercised) == (None, Exercised.NO) and said in found.reason
    teller.stated = {"options": {"grad": "own", "sum": "logits"}}
    operator.restate()
    assert option_reading("logprob.grad", "mine", built, operator.statements, 1).actual == "own"
    assert "did sum='logits'" in option_reading("logprob.sum", "mine", built, operator.statements, 1).reason


@pytest.mark.parametrize(
    ("scored", "moved"), [(None, 0), (IDS, 0), (IDS.copy(), 0), (np.array([4, 6, 5]), 2), (np.array([4]), 3)]
)
def test_rows_of_other_ids_than_those_handed_over_are_counted(scored, moved):
    """If this fails, a shifted target keeps the name of the token that was asked for."""
    operator = bound(Teller(scored_ids=scored))
    operator(None, IDS)
    assert operator.statements.moved == moved
    operator(logits=None, selected=IDS)
    assert operator.statements.moved == 2 * moved


def test_calls_that_do_not_agree_are_nobody_s_distribution():
    """If this fails, a score that is half under a temperature equals a side that is wholly so, or not at all."""
    teller = Teller(transforms=("temperature:0.5",))
    teller.stated["vocabulary"] = {"policy": "mask", "real": 500, "padded": 512}
    operator = bound(teller)
    operator(None, IDS)
    assert operator.statements.mechanism()["vocabulary"] == {"policy": "mask", "real": 500, "padded": 512}
    teller.transforms, teller.stated["vocabulary"] = (), {"policy": "include", "real": 500, "padded": 512}
    operator(None, IDS)
    assert operator.statements.transforms == ("several: temperature:0.5 | none",)
    policy = operator.statements.mechanism()["vocabulary"]["policy"]
    assert policy not in ("mask", "include") and "'mask'" in policy and "'include'" in policy


def test_what_ranks_bring_back_is_plain_and_adds_up():
    """If this fails, a worker's statements change on their way, or groups of requests hide each other."""
    teller = Teller(transforms=("soft_cap:5.0",), scored_ids=np.array([4, 6, 5]))
    teller.stated = {"options": {"block_size": 16, "odd": (1, 2)}, "vocabulary": {"policy": "mask"}}
    first = bound(teller)
    first(None, IDS)
    came = Statements.of(json.loads(json.dumps(first.statements.plain())))
    assert came == first.statements
    second = bound(Teller(stated={"options": {"block_size": 0}}))
    second(None, IDS)
    came.add(second.statements)
    assert came.options == {"block_size": [16, 0], "odd": ["(1, 2)"]}
    assert came.chains == [("soft_cap:5.0",), ()] and came.moved == 2
    assert came.mechanism()["logprob"]["options"]["block_size"] == "several: 16 | 0"


def test_other_operations_state_nothing():
    """If this fails, a compiled layer is asked what it stated in the middle of a graph."""
    operator = bound(SimpleNamespace(), "norm")
    operator.function = lambda x: x
    operator(IDS)
    assert operator.statements == Statements() and operator.calls == 1


def test_a_value_that_did_not_run_says_what_it_needs():
    """If this fails, a fallback names what ran, and nobody learns what to set."""
    operator = bound(Teller(stated={"options": {"block_size": 0}}, acts_where={"block_size": "it acts below 8"}))
    operator(None, IDS)
    found = read(operator)
    assert found.status is Applied.FALLBACK and found.reason.endswith("its calls did block_size=0; it acts below 8")
    there = Statements.of(json.loads(json.dumps(operator.statements.plain())))
    assert there.acts_where == {"block_size": "it acts below 8"}
