"""Facts about struct types, computed once per type from msgspec's type information."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec
from msgspec import inspect


def unwrap(shape: inspect.Type) -> inspect.Type:
    """The type without its notes."""
    while isinstance(shape, inspect.Metadata):
        shape = shape.type
    return shape


@cache
def has_floats(type: Any) -> bool:
    """Whether a value of `type` may contain a float, which Go encodes differently from msgspec."""
    try:
        return _floats(inspect.type_info(type), set())
    except TypeError:
        return True  # msgspec does not know the type: the value must be inspected


def _floats(shape: inspect.Type, seen: set[type]) -> bool:
    match unwrap(shape):
        case inspect.StructType(cls=cls, fields=fields):
            if cls in seen:
                return False
            seen.add(cls)
            return any(_floats(field.type, seen) for field in fields)
        case inspect.UnionType(types=types):
            return any(_floats(member, seen) for member in types)
        case inspect.ListType(item_type=item):
            return _floats(item, seen)
        case inspect.DictType(value_type=value):
            return _floats(value, seen)
        case (
            inspect.IntType() | inspect.StrType() | inspect.BoolType() | inspect.NoneType()
            | inspect.CustomType() | inspect.LiteralType() | inspect.EnumType()
        ):  # fmt: skip
            return False
    return True


@cache
def written_fields(type: type[msgspec.Struct]) -> frozenset[str]:
    """Fields that are written even if they are zero: nullable and required ones, and those with an own factory."""
    names = set()
    struct = inspect.type_info(type)
    assert isinstance(struct, inspect.StructType)
    for field in struct.fields:
        shape = unwrap(field.type)
        nullable = isinstance(shape, inspect.UnionType) and any(
            isinstance(unwrap(member), inspect.NoneType) for member in shape.types
        )
        factory = field.default_factory
        if nullable or field.required or factory not in (msgspec.NODEFAULT, list, dict, set):
            names.add(field.name)
    return frozenset(names)
