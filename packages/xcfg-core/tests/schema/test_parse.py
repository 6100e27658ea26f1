"""The one door for JSON: what is not strict JSON is refused as a ConfigError, never as something else."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xcfg.errors import ConfigError
from xcfg.schema import codec
from xcfg.schema._base import Record, Value
from xcfg.schema.codec import MAX_DEPTH, convert, parse_row, parse_strict, read_strict
from xcfg.schema.names import Status


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not JSON"),
        (" ", "not JSON"),
        ("{", "line 1"),
        ('{"a": 1,}', "not JSON"),
        ("{'a': 1}", "not JSON"),
        ("[1] [2]", "not JSON"),
        ("// note\n1", "not JSON"),
        ("01", "not JSON"),
        ("+1", "not JSON"),
        (".5", "not JSON"),
        ("0x10", "not JSON"),
        ("nan", "not JSON"),
        ("NaN", "NaN is not JSON"),
        ("[Infinity]", "Infinity is not JSON"),
        ('{"a": -Infinity}', "-Infinity is not JSON"),
        ("1e999", "$: the number is not finite"),
        ('{"a": [0, {"b": -1e999}]}', "$.a[1].b: the number is not finite"),
        ('{"a": 1, "a": 1}', "the key 'a' stands twice"),
        ('[{"x": {"a": 1, "b": 2, "a": 3}}]', "the key 'a' stands twice"),
        ('{"a": 1, "\\u0061": 2}', "the key 'a' stands twice"),
        ('{"": 1, "": 2}', "the key '' stands twice"),
        ("\ufeff{}", "BOM"),
        ('"a\nb"', "not JSON"),
        ('"\\x"', "not JSON"),
        ('"\\ud800"', "$: the text is not valid Unicode"),
        ('"\\uD800x"', "$: the text is not valid Unicode"),
        ('{"a": ["ok", "\\udfff"]}', "$.a[1]: the text is not valid Unicode"),
        ('{"\\ud800": 1}', "$: the text is not valid Unicode"),
        ('["\\udc00\\ud800"]', "not valid Unicode"),
        ("9" * 5000, "not JSON"),
        ("[" * 100000, "nested too deeply"),
        ("[" * 1000 + "]" * 1000, "nested too deeply"),
        ('{"a":' * 70 + "1" + "}" * 70, "nested too deeply"),
    ],
)
def test_what_is_not_strict_json_is_a_config_error_with_the_file(text, says):
    for given_text in (text, text.encode()):
        with pytest.raises(ConfigError) as error:
            parse_strict(given_text, source="file.json")
        assert says in error.value.message
        assert error.value.message.startswith("file.json")
        assert error.value.exit_code == 2


@pytest.mark.parametrize(
    "data", [b"\xff\xfe{\x00}\x00", b'"\xe9"', b'"\xed\xa0\x80"', b'"\xc0\xaf"', b'"\xf8\x88\x80\x80\x80"']
)
def test_bytes_that_are_no_utf8_are_refused(data):
    with pytest.raises(ConfigError, match="UTF-8"):
        parse_strict(data)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("-0", 0),
        ("1e5", 1e5),
        ("1.0", 1.0),
        ("123456789012345678901234567890", 123456789012345678901234567890),
        ('"\\ud83d\\ude00"', "😀"),
        ('"\\\\ud800"', "\\ud800"),
        ('{"a": {"a": 1}, "b": [{"a": 2}, {"a": 3}]}', {"a": {"a": 1}, "b": [{"a": 2}, {"a": 3}]}),
        ("[" * MAX_DEPTH + "]" * MAX_DEPTH, None),
    ],
)
def test_what_is_strict_json_is_read_as_it_stands(text, value):
    found = parse_strict(text)
    assert value is None or (found == value and type(found) is type(value))


def test_the_size_is_limited_before_anything_is_read(monkeypatch):
    monkeypatch.setattr(codec, "MAX_BYTES", 10)
    assert parse_strict("[" + " " * 8 + "]") == []
    with pytest.raises(ConfigError, match="11 bytes"):
        parse_strict("[" + " " * 9 + "]")


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    for place in (tmp_path / "nowhere.json", tmp_path):
        with pytest.raises(ConfigError, match="cannot be read") as error:
            read_strict(place)
        assert error.value.source == str(place)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(PLAIN)
def test_every_document_that_json_can_write_is_read_back(value):
    for text in (json.dumps(value), json.dumps(value, ensure_ascii=False).encode()):
        assert parse_strict(text) == value


@given(st.text(alphabet='{}[]",:\\u0123456789abcdeEINaftrnlsuy.+- \n', max_size=40) | st.binary(max_size=40))
@settings(max_examples=300)
def test_no_text_gets_past_as_another_error(text):
    try:
        found = parse_strict(text)
    except ConfigError:
        return
    assert found == json.loads(text)
    assert not (isinstance(found, float) and not math.isfinite(found))


class Inner(Record):
    count: int
    scale: float = 1.0
    value: Value = None
    status: Status = Status.PASS


class Outer(Record):
    inner: Inner
    many: tuple[Inner, ...] = ()
    named: dict[str, Inner] = {}
    pair: tuple[int, int] = (0, 0)
    numbers: dict[int, int] = {}


GOOD = {"inner": {"count": 1}}


@pytest.mark.parametrize(
    ("change", "path", "says"),
    [
        ({"inner": {"count": True}}, "$.inner.count", "Expected `int`, got `bool`"),
        ({"inner": {"count": 1.0}}, "$.inner.count", "got `float`"),
        ({"inner": {"count": "1"}}, "$.inner.count", "got `str`"),
        ({"inner": {"count": None}}, "$.inner.count", "got `null`"),
        ({"inner": {}}, "$.inner", "`count`"),
        ({"inner": []}, "$.inner", "got `array`"),
        ({"inner": {"count": 1, "scale": True}}, "$.inner.scale", "got `bool`"),
        ({"inner": {"count": 1, "scale": "1"}}, "$.inner.scale", "got `str`"),
        ({"inner": {"count": 1, "value": []}}, "$.inner.value", "got `array`"),
        ({"inner": {"count": 1, "status": "pass"}}, "$.inner.status", "'pass'"),
        ({"inner": {"count": 1, "status": "x - at `$.y`"}}, "$.inner.status", "x - at `$.y`"),
        ({"many": [{"count": 1}, {"count": 1}, {"count": "x"}]}, "$.many[2].count", "got `str`"),
        ({"named": {"a": {"count": 1}, "b": {"count": "x"}}}, "$.named[...].count", "got `str`"),
        ({"pair": [1]}, "$.pair", "length"),
        ({"pair": [1, "x"]}, "$.pair[1]", "got `str`"),
        ({"numbers": {"x": 1}}, "$.numbers", "got `str`"),
    ],
)
def test_a_fault_is_refused_with_file_and_json_path(change, path, says):
    with pytest.raises(ConfigError) as error:
        convert(GOOD | change, Outer, source="file.json")
    assert (error.value.source, error.value.path) == ("file.json", path)
    assert says in error.value.message
    assert error.value.message.startswith(f"file.json: {path}: ")


@pytest.mark.parametrize("document", [[], "text", 3, None, {}])
def test_a_fault_of_the_whole_document_stands_at_its_root(document):
    with pytest.raises(ConfigError) as error:
        convert(document, Outer)
    assert error.value.path == "$"


@pytest.mark.parametrize("value", [True, 1, 1.0, "1", None])
def test_a_knob_value_keeps_its_type(value):
    found = convert({"count": 1, "value": value}, Inner).value
    assert found == value and type(found) is type(value)


@given(
    st.dictionaries(
        st.text(max_size=3) | st.just("a"),
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.just([1]) | st.just({}),
        max_size=4,
    )
)
def test_a_row_is_read_as_the_strict_parser_reads_it_or_left_to_it(document):
    """Failing means that the fast path of a dump accepts what the strict one refuses, or reads it otherwise."""
    for ascii_only in (True, False):
        text = json.dumps(document, ensure_ascii=ascii_only)
        try:
            line = text.encode()
        except UnicodeEncodeError:
            continue
        row = parse_row(line)
        if row is not None:
            assert row == parse_strict(line) == document
        else:
            plain = all(type(value) in (str, int, float, bool, type(None)) for value in document.values())
            finite = all(math.isfinite(value) for value in document.values() if type(value) is float)
            assert not (plain and finite) or "\\" in text


@pytest.mark.parametrize(
    "line", [b"", b"[1]", b"1", b'{"a": 1, "a": 1}', b'{"a": NaN}', b'{"a": 1e999}', b'{"a": 1} x', b"\xff"]
)
def test_what_is_no_plain_row_is_left_to_the_strict_parser(line):
    assert parse_row(line) is None
