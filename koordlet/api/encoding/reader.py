"""The lenient reader behind `koordlet.api.encoding.wire.decode`: converts plain JSON values to structs like Go.

One closure per type, built once. It takes a value and its path and returns the typed value, or raises ReadError with
the path of the invalid field.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from msgspec import inspect

from koordlet.api.encoding.shape import unwrap

Reader = Callable[[Any, str], Any]
Hook = Callable[[type, object], object]

_RANGES = {"int32": (-(2**31), 2**31 - 1), "int64": (-(2**63), 2**63 - 1)}


_ZEROS: tuple[tuple[type[inspect.Type], Any], ...] = (
    (inspect.StructType, {}),
    (inspect.DictType, {}),
    (inspect.ListType, []),
    (inspect.StrType, ""),
    (inspect.BoolType, False),
    (inspect.IntType, 0),
    (inspect.FloatType, 0),
)


class ReadError(ValueError):
    """A value has the wrong type or is out of range; `wire` converts it to a WireError."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}" if path else reason)
        self.path = path
        self.reason = reason


@cache
def reader_for(type: Any, hook: Hook) -> Reader:
    """The reader of one type."""
    return _element(inspect.type_info(type), hook, {})


def _element(shape: inspect.Type, hook: Hook, known: dict[type, Reader]) -> Reader:
    """A reader for elements of lists and maps, where `null` is read as the zero value."""
    read = _build(shape, hook, known, "int64")
    inner = unwrap(shape)
    for kind, zero in _ZEROS:
        if isinstance(inner, kind):
            return lambda value, path: read(zero if value is None else value, path)
    return read


def _build(shape: inspect.Type, hook: Hook, known: dict[type, Reader], int_format: str) -> Reader:
    match shape:
        case inspect.Metadata(type=inner, extra_json_schema=notes):
            return _build(inner, hook, known, (notes or {}).get("format", int_format))
        case inspect.AnyType():
            return lambda value, path: value
        case inspect.StructType(cls=cls):
            return known[cls] if cls in known else _struct(shape, hook, known)
        case inspect.ListType(item_type=item):
            return _list(_element(item, hook, known))
        case inspect.DictType(value_type=item):
            return _dict(_element(item, hook, known))
        case inspect.UnionType(types=types):
            return _union([_build(member, hook, known, int_format) for member in types])
        case inspect.CustomType(cls=cls):
            return _custom(cls, hook)
        case inspect.NoneType():
            return _none
        case inspect.BoolType():
            return _bool
        case inspect.IntType(ge=None, gt=None, le=None, lt=None, multiple_of=None):
            return _int(int_format)
        case inspect.FloatType(ge=None, gt=None, le=None, lt=None, multiple_of=None):
            return _float
        case inspect.StrType(min_length=None, max_length=None, pattern=None):
            return _str
        case inspect.LiteralType(values=values):
            return _literal(values)
    raise TypeError(f"{shape} is not supported in a wire struct: declare bounds with koordlet.api.encoding.fields.doc")


def _struct(shape: inspect.StructType, hook: Hook, known: dict[type, Reader]) -> Reader:
    cls = shape.cls
    fields: dict[str, tuple[str, Reader]] = {}
    folded: dict[str, str] = {}
    required: list[tuple[str, str]] = []

    def read(value: Any, path: str) -> Any:
        if not isinstance(value, dict):
            raise _mismatch(path, "an object", value)
        values: dict[str, Any] = {}
        inexact: list[str] = []
        for key, item in value.items():
            if key not in fields:
                inexact.append(key)
            elif item is not None:
                name, reader = fields[key]
                values[name] = reader(item, f"{path}.{key}" if path else key)
        for key in inexact:
            exact = folded.get(key.casefold()) if isinstance(key, str) else None
            if exact is not None and value[key] is not None and fields[exact][0] not in values:
                name, reader = fields[exact]
                values[name] = reader(value[key], f"{path}.{key}" if path else key)
        for name, wire_name in required:
            if name not in values:
                raise ReadError(f"{path}.{wire_name}" if path else wire_name, "is required")
        return cls(**values)

    known[cls] = read  # before the fields are built, for recursive types
    for field in shape.fields:
        fields[field.encode_name] = (field.name, _build(field.type, hook, known, "int64"))
        folded.setdefault(field.encode_name.casefold(), field.encode_name)
        if field.required:
            required.append((field.name, field.encode_name))
    return read


def _list(item: Reader) -> Reader:
    def read(value: Any, path: str) -> Any:
        if not isinstance(value, list):
            raise _mismatch(path, "an array", value)
        return [item(entry, f"{path}[{index}]") for index, entry in enumerate(value)]

    return read


def _dict(item: Reader) -> Reader:
    def read(value: Any, path: str) -> Any:
        if not isinstance(value, dict):
            raise _mismatch(path, "an object", value)
        result = {}
        for key, entry in value.items():
            if not isinstance(key, str):
                raise ReadError(path, f"has a key that is not a string: {key!r}")
            result[key] = item(entry, f"{path}[{key}]")
        return result

    return read


def _union(members: list[Reader]) -> Reader:
    """The first member that accepts the value. Only `X | None` and `int | str` occur, which do not overlap."""
    if _none in members:
        members = [_none, *(member for member in members if member is not _none)]

    def read(value: Any, path: str) -> Any:
        error: ReadError | None = None
        for member in members:
            if value is None and member is _none:
                return None
            if member is _none:
                continue
            try:
                return member(value, path)
            except ReadError as member_error:
                # The error with the longest path is about the most likely member.
                deeper = error is None or len(member_error.path) > len(error.path)
                error = member_error if deeper else error
        raise error or _mismatch(path, "another type", value)

    return read


def _custom(cls: type, hook: Hook) -> Reader:
    def read(value: Any, path: str) -> Any:
        if isinstance(value, cls):
            return value
        try:
            return hook(cls, value)
        except ValueError as error:
            raise ReadError(path, str(error)) from error

    return read


def _int(int_format: str) -> Reader:
    low, high = _RANGES.get(int_format, _RANGES["int64"])

    def read(value: Any, path: str) -> Any:
        if not isinstance(value, int) or isinstance(value, bool):
            raise _mismatch(path, "an integer", value)
        if not low <= value <= high:
            raise ReadError(path, f"{value} does not fit into {int_format}")
        return value

    return read


def _literal(values: tuple[Any, ...]) -> Reader:
    def read(value: Any, path: str) -> Any:
        if value not in values:
            raise ReadError(path, f"{value!r} is not one of {', '.join(map(str, values))}")
        return value

    return read


def _none(value: Any, path: str) -> Any:
    if value is not None:
        raise _mismatch(path, "null", value)
    return None


def _bool(value: Any, path: str) -> Any:
    if not isinstance(value, bool):
        raise _mismatch(path, "a boolean", value)
    return value


def _float(value: Any, path: str) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _mismatch(path, "a number", value)
    return float(value)


def _str(value: Any, path: str) -> Any:
    if not isinstance(value, str):
        raise _mismatch(path, "a string", value)
    return value


def _mismatch(path: str, expected: str, value: Any) -> ReadError:
    return ReadError(path, f"must be {expected}, not {json_type(value)}")


def json_type(value: Any) -> str:
    """The type of a JSON value as text, for error messages."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return f"the number {value}"
        case str():
            return f"the string {value[:64]!r}"
        case list():
            return "an array"
        case dict():
            return "an object"
    return type(value).__name__
