"""Content ids rest on RFC 8785: its own vectors, and a second encoder written from its text."""

from __future__ import annotations

import hashlib
import json
import struct
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from xcfg.schema._base import Record
from xcfg.schema.codec import canonical_json, digest, parse_strict, plain, pretty_json
from xcfg.schema.names import Status

APPENDIX_B = {
    "0000000000000000": "0",
    "8000000000000000": "0",
    "0000000000000001": "5e-324",
    "8000000000000001": "-5e-324",
    "7fefffffffffffff": "1.7976931348623157e+308",
    "ffefffffffffffff": "-1.7976931348623157e+308",
    "4340000000000000": "9007199254740992",
    "c340000000000000": "-9007199254740992",
    "4430000000000000": "295147905179352830000",
    "44b52d02c7e14af5": "9.999999999999997e+22",
    "44b52d02c7e14af6": "1e+23",
    "44b52d02c7e14af7": "1.0000000000000001e+23",
    "444b1ae4d6e2ef4e": "999999999999999700000",
    "444b1ae4d6e2ef4f": "999999999999999900000",
    "444b1ae4d6e2ef50": "1e+21",
    "3eb0c6f7a0b5ed8c": "9.999999999999997e-7",
    "3eb0c6f7a0b5ed8d": "0.000001",
    "41b3de4355555553": "333333333.3333332",
    "41b3de4355555554": "333333333.33333325",
    "41b3de4355555555": "333333333.3333333",
    "41b3de4355555556": "333333333.3333334",
    "41b3de4355555557": "333333333.33333343",
    "becbf647612f3696": "-0.0000033333333333333333",
    "43143ff3c1cb0959": "1424953923781206.2",
}


@pytest.mark.parametrize("bits", APPENDIX_B)
def test_numbers_of_appendix_b(bits):
    (number,) = struct.unpack(">d", bytes.fromhex(bits))
    assert canonical_json(number) == APPENDIX_B[bits].encode()


def test_the_sample_of_section_3_2_2():
    text = r"""{
      "numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],
      "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/",
      "literals": [null, true, false]
    }"""
    expected = (
        r'{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],'
        r'"string":"€$\u000f\nA' + "'" + r'B\"\\\\\"/"}'
    )
    assert canonical_json(parse_strict(text)) == expected.encode()


def test_keys_are_sorted_by_utf16_units_as_in_section_3_2_3():
    keys = ["\u20ac", "\r", "\ufb33", "1", "\U0001f600", "\u0080", "\u00f6"]
    found = list(parse_strict(canonical_json(dict.fromkeys(keys, 0))))
    assert found == ["\r", "1", "\u0080", "\u00f6", "\u20ac", "\U0001f600", "\ufb33"]
    assert found != sorted(keys)  # by code point the emoji would be last


def es6(number: float) -> str:
    """Return a number as ECMAScript writes it: the shortest digits, placed by the rules of Number::toString."""
    if number == 0:
        return "0"
    sign, digits, exponent = Decimal(repr(number)).as_tuple()
    text = "".join(map(str, digits)).rstrip("0")
    point = len(digits) + int(exponent)  # the value is 0.text times 10 to this power
    if len(text) <= point <= 21:
        body = text + "0" * (point - len(text))
    elif 0 < point <= 21:
        body = f"{text[:point]}.{text[point:]}"
    elif -6 < point <= 0:
        body = f"0.{'0' * -point}{text}"
    else:
        mantissa = text[0] + (f".{text[1:]}" if len(text) > 1 else "")
        body = f"{mantissa}e{point - 1:+d}"
    return ("-" if sign else "") + body


def second(value) -> str:
    if isinstance(value, float):
        return es6(value)
    if isinstance(value, dict):
        keys = sorted(value, key=lambda key: key.encode("utf-16-be"))
        return "{" + ",".join(f"{second(key)}:{second(value[key])}" for key in keys) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(second, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=5),
    max_leaves=12,
)


@given(JSON)
def test_a_second_encoder_writes_the_same_bytes(value):
    found = canonical_json(value)
    assert found == second(value).encode()
    assert json.loads(found, parse_int=float) == value


@given(st.dictionaries(st.text(max_size=3), JSON, max_size=5))
def test_neither_key_order_nor_spacing_enters_a_digest(value):
    turned = dict(reversed(value.items()))
    assert digest(turned) == digest(value) == digest(parse_strict(pretty_json(value)))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({}, b"{}"),
        ({"a": 1, "B": [True, None, "é"]}, '{"B":[true,null,"é"],"a":1}'.encode()),
        ((1, (2,)), b"[1,[2]]"),
        (Status.PASS, b'"PASS"'),
        ("\u007f\u2028\u0000", b'"\x7f\xe2\x80\xa8\\u0000"'),
    ],
)
def test_a_digest_is_sha256_of_these_bytes(value, text):
    assert canonical_json(value) == text
    assert digest(value) == hashlib.sha256(text).hexdigest()


def test_digests_never_change():
    """Case ids, keys and seals of every stored run hang on these."""
    assert digest({"a": 1, "b": [1.5, True, None, "text"]}) == (
        "2b2ee8091567320f23a93d2a1015f19016b55dab35938b82e6dc51ef5b370b03"
    )


@pytest.mark.parametrize(
    ("first", "other"), [(1, True), (0, False), (1, "1"), (None, "null"), ([], {}), ([1, 2], [2, 1]), ("", None)]
)
def test_values_that_python_or_people_confuse_have_different_digests(first, other):
    assert digest({"x": first}) != digest({"x": other})


def test_an_integral_float_is_the_integer():
    assert canonical_json(1.0) == canonical_json(1) == canonical_json(1e0) == b"1"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 2**53, -(2**53), "\ud800", {1: 2}])
def test_what_canonical_json_cannot_hold_is_refused(value):
    with pytest.raises(ValueError):
        canonical_json({"x": value})


@pytest.mark.parametrize("value", [np.float32(1), np.int64(1), object(), 1j])
def test_what_is_no_plain_value_is_refused_instead_of_written_as_text(value):
    for write in (plain, canonical_json, pretty_json, digest):
        with pytest.raises(TypeError, match=type(value).__name__):
            write({"x": value})


class Version(str):
    """As torch.__version__: a str with a mind of its own."""

    __slots__ = ()

    def __str__(self) -> str:
        return "other"


class Holder(Record):
    version: str
    inner: tuple[Status, ...] = ()


def test_a_subclass_of_str_is_its_text():
    assert canonical_json({"v": Version("2.6")}) == b'{"v":"2.6"}'
    found = plain(Holder(version=Version("2.6"), inner=(Status.MISMATCH,)))
    assert json.dumps(found) == '{"version": "2.6", "inner": ["MISMATCH"]}'


def test_pretty_json_is_sorted_readable_and_ends_in_a_newline():
    assert pretty_json({"b": 1, "a": "é"}) == '{\n "a": "é",\n "b": 1\n}\n'.encode()
    for value in (float("nan"), float("inf")):
        with pytest.raises(ValueError):
            pretty_json({"x": value})
