"""The engine against a brute-force oracle that knows the fields by a table of its own."""

from __future__ import annotations

from typing import Annotated

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xcfg.binding import DTYPE, END_TO_END, NCCL_ALGO, OPERATOR, EndToEnd, Global, Violation, Where, bind
from xcfg.schema._base import Record
from xcfg.schema.names import Tier


def covered(shards):
    """[start, stop) of shards that follow each other from 0; None for a gap, an overlap or none at all."""
    reached = 0
    for start, stop in sorted(shards):
        if start != reached or stop <= start:
            return None
        reached = stop
    return reached or None


class Inner(Record, frozen=True):
    """Nested: a spelled field, a field that binds rows only, a violation."""

    dtype: Annotated[str | None, Tier.IDENTICAL, DTYPE] = None
    downcast_at: Annotated[str | None, Tier.SEMANTIC, EndToEnd(Tier.RECORDED)] = None
    chain: Annotated[tuple[str, ...] | None, Tier.SEMANTIC, Violation()] = None


class Layout(Record, frozen=True):
    """Nested: shards, and a setting of a library."""

    shards: Annotated[tuple[tuple[int, int], ...] | None, Tier.IDENTICAL, Global(covered)] = None
    world: Annotated[int | None, Tier.RECORDED] = None
    nccl: Annotated[str | None, Tier.SEMANTIC, NCCL_ALGO, Where("nccl")] = None


class Whole(Record, frozen=True):
    """The contract."""

    size: Annotated[int | None, Tier.IDENTICAL] = None
    flag: Annotated[bool | int | None, Tier.SEMANTIC] = None
    note: Annotated[str | None, Tier.RECORDED] = None
    inner: Inner | None = None
    layout: Layout = Layout()


SAME, S, R = "IDENTICAL", "SEMANTIC", "RECORDED"
TABLE = {  # path -> tier of a row, tier end to end, condition, violation
    "size": (SAME, SAME, "", False),
    "flag": (S, S, "", False),
    "note": (R, R, "", False),
    "inner.dtype": (SAME, SAME, "", False),
    "inner.downcast_at": (S, R, "", False),
    "inner.chain": (S, S, "", True),
    "layout.shards": (SAME, SAME, "", False),
    "layout.world": (R, R, "", False),
    "layout.nccl": (S, S, "nccl", False),
}
MEANING = {  # spelled value -> a value that stands for its meaning
    "bf16": "B", "torch.bfloat16": "B", "bfloat16": "B", "BF16 ": "B", "fp32": "F", "float": "F",
    "Tree": "T", "tree": "T", "allreduce:tree": "T", "Ring": "N", "ring,tree": "RT", "Tree,Ring": "RT", "unset": "U",
    "": "U", "^Tree": "not T", "broadcast:ring": "U",
}  # fmt: skip
CUTS = {((0, 8),): 8, ((0, 4), (4, 8)): 8, ((4, 8), (0, 4)): 8, ((0, 4), (5, 8)): None, ((0, 4), (3, 8)): None,
        ((0, 6), (6, 9)): 9}  # fmt: skip


def some(*values):
    """One of the values, or not known."""
    return st.sampled_from((None, *values))


dtypes = some("bf16", "torch.bfloat16", "bfloat16", "BF16 ", "fp32", "float")
inners = st.builds(Inner, dtype=dtypes, downcast_at=some("never", "logits"), chain=some((), ("t:1",), ("t:2", "k:1")))
layouts = st.builds(
    Layout,
    shards=some(*CUTS),
    world=some(1, 2),
    nccl=some(
        "Tree", "tree", "allreduce:tree", "Ring", "ring,tree", "Tree,Ring", "unset", "", "^Tree", "broadcast:ring"
    ),
)
wholes = st.builds(
    Whole,
    size=some(500, 512),
    flag=some(True, 1, False, 0),
    note=some("a", "b"),
    inner=st.none() | inners,
    layout=layouts,
)


def flat(contract):
    """Path -> value, from the plain document of a contract; the parts of an absent contract are not known."""
    document = msgspec.to_builtins(contract)
    found = {}
    for path in TABLE:
        value = document
        for name in path.split("."):
            value = None if value is None else value[name]
        found[path] = value
    return found


def meaning(path, value):
    """What a value says, as the tables above have it: (type, value), None where it says nothing."""
    if value is None:
        return None
    if path in ("inner.dtype", "layout.nccl"):
        return MEANING[value]
    if path == "layout.shards":
        return CUTS[tuple(tuple(item) for item in value)]
    return (isinstance(value, bool), value)


def oracle(first, second, scope, declared, active):
    """(status, refused, measured, recorded) by the rule as it is written, one field after the other."""
    refused, measured, recorded, broken = [], [], [], False
    left, right = flat(first), flat(second)
    for path, (row, whole, condition, violation) in TABLE.items():
        tier = row if scope == OPERATOR else whole
        if condition and condition not in active:
            tier = R
        one, two = meaning(path, left[path]), meaning(path, right[path])
        if tier != R and (one is None or two is None):
            refused.append(path)
        elif one != two and tier == R:
            recorded.append(path)
        elif one != two and (violation or path not in declared):
            refused.append(path)
            broken = broken or violation
        elif one != two:
            measured.append(path)
        elif path == "layout.shards" and left[path] != right[path]:
            recorded.append(path)
    status = "" if not refused else "INVALID_IDENTITY" if broken else "NOT_COMPARABLE"
    return status, refused, measured, recorded


@settings(max_examples=400, deadline=None)
@given(
    first=wholes,
    second=wholes,
    scope=st.sampled_from((OPERATOR, END_TO_END)),
    declared=st.sets(st.sampled_from(sorted(TABLE))),
    active=st.sampled_from(((), ("nccl",))),
)
def test_the_engine_says_what_the_rule_says(first, second, scope, declared, active):
    """If this fails, two sides are called equal that are not, or a declared difference is refused."""
    found = bind(first, second, scope=scope, declared=declared, active=active)
    paths = [[item.path for item in part] for part in (found.refusals, found.measured, found.recorded)]
    assert (found.status, *paths) == oracle(first, second, scope, declared, active)
    assert found.comparable == (found.status == "")
    assert len(found.reason.split("; ")) >= len(found.refusals)


@settings(max_examples=100, deadline=None)
@given(first=wholes, second=wholes)
def test_the_order_of_the_sides_changes_no_status(first, second):
    """If this fails, which side is named first decides."""
    one, other = bind(first, second, active=("nccl",)), bind(second, first, active=("nccl",))
    assert (one.status, [item.path for item in one.refusals]) == (other.status, [item.path for item in other.refusals])


@settings(max_examples=100, deadline=None)
@given(whole=wholes)
def test_a_contract_agrees_with_itself_where_it_knows_itself(whole):
    """If this fails, equal sides are refused for more than what they do not know."""
    known = flat(whole)
    missing = [path for path, row in TABLE.items() if row[0] != R and meaning(path, known[path]) is None]
    found = bind(whole, whole, active=("nccl",))
    assert [item.path for item in found.refusals] == missing
    assert (found.measured, found.recorded) == ((), ())


@pytest.mark.parametrize("scope", [OPERATOR, END_TO_END])
def test_another_split_of_one_problem_is_recorded_not_refused(scope):
    """If this fails, TP 1 cannot be compared with TP 2, which is what the tool is for."""
    whole = Whole(size=8, flag=True, inner=Inner(dtype="bf16", downcast_at="never", chain=()))
    one = msgspec.structs.replace(whole, layout=Layout(shards=((0, 8),), world=1))
    two = msgspec.structs.replace(whole, layout=Layout(shards=((0, 4), (4, 8)), world=2))
    found = bind(one, two, scope=scope)
    assert found.comparable
    assert [item.path for item in found.recorded] == ["layout.shards", "layout.world"]
