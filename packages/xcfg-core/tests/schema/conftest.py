"""Every Struct of the schema, and documents made from what its fields say they take."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from enum import Enum
from typing import Any

import msgspec.inspect as inspect
import pytest
import xcfg.schema
from xcfg.schema._base import Input, Record

MODULES = [f"xcfg.schema.{item.name}" for item in pkgutil.iter_modules(xcfg.schema.__path__)]
MODULES += ["xcfg.flow.documents", "xcfg.plugin.provide"]

NEVER_DECODED = {"Experiment"}
"""A value between two stages: its identity is one of two inputs, which only the config room can tell apart."""


def _structs() -> list[type[Any]]:
    found = {
        value
        for module in MODULES
        for value in vars(importlib.import_module(module)).values()
        if isinstance(value, type) and issubclass(value, (Record, Input)) and value not in (Record, Input)
        if value.__name__ not in NEVER_DECODED
    }
    return sorted(found, key=lambda kind: (kind.__module__, kind.__name__))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    for name, base in (("kind", (Record, Input)), ("record", (Record,)), ("typed", (Input,))):
        if name in metafunc.fixturenames:
            kinds = [kind for kind in _structs() if issubclass(kind, base)]
            metafunc.parametrize(name, kinds, ids=lambda kind: kind.__name__)


def _value(info: Any, full: bool) -> Any:
    match info:
        case inspect.BoolType():
            return True
        case inspect.IntType():
            return 3
        case inspect.FloatType():
            return 0.5
        case inspect.StrType() | inspect.AnyType():
            return "text"
        case inspect.NoneType():
            return None
        case inspect.EnumType(cls=cls):
            return next(iter(cls)).value if issubclass(cls, Enum) else None
        case inspect.LiteralType(values=values):
            return values[0]
        case inspect.DictType(value_type=inner):
            return {"name": _value(inner, full)}
        case inspect.VarTupleType(item_type=inner) | inspect.ListType(item_type=inner):
            return [_value(inner, full)]
        case inspect.TupleType(item_types=inner):
            return [_value(item, full) for item in inner]
        case inspect.StructType(cls=cls):
            return _document(cls, full)
        case inspect.UnionType(types=types):
            return _value(next(item for item in types if not isinstance(item, inspect.NoneType)), full)
    raise TypeError(f"the schema uses {info}, which these tests do not know")


def _document(kind: type[Any], full: bool) -> dict[str, Any]:
    info = inspect.type_info(kind)
    found = {info.tag_field: info.tag} if info.tag_field else {}
    return found | {item.encode_name: _value(item.type, full) for item in info.fields if full or item.required}


@pytest.fixture
def document() -> Callable[..., dict[str, Any]]:
    """document(kind): its required fields only; document(kind, full=True): every field."""
    return lambda kind, full=False: _document(kind, full)
