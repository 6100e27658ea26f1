"""Every Struct of the schema, by what it promises: records grow, inputs are strict, nobody changes either."""

from __future__ import annotations

import json

import msgspec
import msgspec.inspect as inspect
import pytest
from xcfg.errors import ConfigError
from xcfg.schema import contract as contract_schema
from xcfg.schema._base import Input, Record
from xcfg.schema.codec import canonical_json, convert, decode_json, evolve, json_schema, plain, pretty_json

DATA_FILE = {
    value
    for value in vars(contract_schema).values()
    if isinstance(value, type) and value.__module__ == contract_schema.__name__
}
"""The packaged contract is a record that people edit: nothing in it may be ignored."""


def test_a_document_with_the_required_fields_decodes(kind, document):
    assert isinstance(convert(document(kind), kind), kind)


def test_a_full_document_comes_back_as_it_was(kind, document):
    full = document(kind, full=True)
    value = convert(full, kind)
    assert json.loads(json.dumps(plain(value))) == full
    assert decode_json(pretty_json(value), kind) == value
    assert decode_json(canonical_json(value), kind) == value


def test_a_record_ignores_a_field_of_a_later_version(record, document):
    full = document(record, full=True)
    if record in DATA_FILE:
        with pytest.raises(ConfigError, match="invented_later"):
            convert(full | {"invented_later": 1}, record)
    else:
        assert convert(full | {"invented_later": 1}, record) == convert(full, record)


def test_an_input_refuses_a_field_it_does_not_know(typed, document):
    for text in (document(typed), document(typed, full=True)):
        with pytest.raises(ConfigError, match="invented_later") as error:
            convert(text | {"invented_later": 1}, typed)
        assert error.value.path == "$"


def test_a_missing_required_field_is_named(kind, document):
    for item in inspect.type_info(kind).fields:
        if item.required:
            text = document(kind)
            del text[item.encode_name]
            with pytest.raises(ConfigError, match=f"`{item.encode_name}`"):
                convert(text, kind)


def test_a_value_of_another_kind_is_refused_at_its_path(kind, document):
    for item in inspect.type_info(kind).fields:
        if isinstance(item.type, inspect.AnyType):
            continue
        container = isinstance(
            item.type, (inspect.DictType, inspect.StructType, inspect.VarTupleType, inspect.ListType)
        )
        for wrong in (5, "x") if container else ({"x": 1}, [[[]]]):
            with pytest.raises(ConfigError) as error:
                convert(document(kind, full=True) | {item.encode_name: wrong}, kind)
            assert error.value.path.startswith(f"$.{item.encode_name}")


def test_an_integer_field_takes_no_bool_float_or_text(kind, document):
    for item in inspect.type_info(kind).fields:
        if isinstance(item.type, inspect.IntType):
            for wrong in (True, 1.0, 1.5, "1", None):
                with pytest.raises(ConfigError):
                    convert(document(kind, full=True) | {item.encode_name: wrong}, kind)


def test_nothing_can_be_changed_in_place(kind, document):
    value = convert(document(kind, full=True), kind)
    assert kind.__struct_config__.frozen
    for name in kind.__struct_fields__:
        with pytest.raises(AttributeError):
            setattr(value, name, None)


def test_every_kind_has_a_json_schema(kind):
    assert kind.__name__ in json_schema(kind)["$defs"]


def test_defaults_are_not_shared(kind, document):
    first, second = (convert(document(kind), kind) for _ in range(2))
    for name in kind.__struct_fields__:
        value = getattr(first, name)
        if isinstance(value, (dict, list)):
            assert value is not getattr(second, name)


class Named(Record):
    record: int
    changes: int = 0
    value: str = ""


def test_evolve_changes_any_field_whatever_its_name_and_keeps_the_original():
    before = Named(record=1)
    after = evolve(before, record=2, changes=3, value="x")
    assert after == Named(record=2, changes=3, value="x")
    assert before == Named(record=1)
    with pytest.raises(TypeError):
        evolve(before, unknown=1)


def test_the_bases_are_what_they_say():
    for base, strict in ((Record, False), (Input, True)):
        config = base.__struct_config__
        assert issubclass(base, msgspec.Struct)
        assert config.frozen and config.forbid_unknown_fields is strict
