"""Facts about struct types, worked out once per type from msgspec's description of them."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec
from msgspec import inspect


def unwrap(shape: inspect.Type) -> inspect.Type:
    """The type under its notes."""
    while isinstance(shape, inspect.Metadata):
        shape = shape.type
    return shape


@cache
def has_floats(type: Any) -> bool:
    """Whether a value of `type` may hold a float, which Go writes differently from msgspec."""
    try:
        return _floats(inspect.type_info(type), set())
    except TypeError:
        return True  # not a type msgspec knows; look at the value itself


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
    """Fields that are written even when zero: nullable scalars and those with a factory of their own."""
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
