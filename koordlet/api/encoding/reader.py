"""The lenient reader behind `koordlet.api.encoding.wire.decode`: converts plain JSON values to structs like Go.

One closure per type, built once. It takes a value and returns the typed value, or raises ReadError with the path of the
invalid field. The path is built from the field outwards after an error only, because it costs as much as reading.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from msgspec import inspect

from koordlet.api.encoding.shape import unwrap

Reader = Callable[[Any], Any]
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

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self._steps: list[str] = []
        """From the invalid value to the document."""

    @property
    def path(self) -> str:
        """The invalid value in the document, for example `spec.owners[0].object`."""
        return "".join(reversed(self._steps)).removeprefix(".")

    @property
    def depth(self) -> int:
        """Number of objects and lists around the invalid value."""
        return len(self._steps)

    def inside(self, step: str) -> ReadError:
        """This error, in a value at `.field`, `[index]` or `[key]` of a larger value."""
        self._steps.append(step)
        return self


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
            return lambda value: read(zero if value is None else value)
    return read


def _build(shape: inspect.Type, hook: Hook, known: dict[type, Reader], int_format: str) -> Reader:
    match shape:
        case inspect.Metadata(type=inner, extra_json_schema=notes):
            return _build(inner, hook, known, (notes or {}).get("format", int_format))
        case inspect.AnyType():
            return lambda value: value
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

    def read(value: Any) -> Any:
        if not isinstance(value, dict):
            raise _mismatch("an object", value)
        values: dict[str, Any] = {}
        inexact: list[str] = []
        key: Any = ""
        try:
            for key, item in value.items():
                if key not in fields:
                    inexact.append(key)
                elif item is not None:
                    name, reader = fields[key]
                    values[name] = reader(item)
            for key in inexact:
                exact = folded.get(key.casefold()) if isinstance(key, str) else None
                if exact is not None and value[key] is not None and fields[exact][0] not in values:
                    name, reader = fields[exact]
                    values[name] = reader(value[key])
        except ReadError as error:
            raise error.inside(f".{key}")  # noqa: B904 - the same error
        for name, wire_name in required:
            if name not in values:
                raise ReadError("is required").inside(f".{wire_name}")
        return cls(**values)

    known[cls] = read  # before the fields are built, for recursive types
    for field in shape.fields:
        fields[field.encode_name] = (field.name, _build(field.type, hook, known, "int64"))
        folded.setdefault(field.encode_name.casefold(), field.encode_name)
        if field.required:
            required.append((field.name, field.encode_name))
    return read


def _list(item: Reader) -> Reader:
    def read(value: Any) -> Any:
        if not isinstance(value, list):
            raise _mismatch("an array", value)
        result: list[Any] = []
        try:
            for entry in value:
                result.append(item(entry))
        except ReadError as error:
            raise error.inside(f"[{len(result)}]")  # noqa: B904 - the same error
        return result

    return read


def _dict(item: Reader) -> Reader:
    def read(value: Any) -> Any:
        if not isinstance(value, dict):
            raise _mismatch("an object", value)
        result = {}
        key: Any = ""
        try:
            for key, entry in value.items():
                result[key] = item(entry)
        except ReadError as error:
            raise error.inside(f"[{key}]")  # noqa: B904 - the same error
        for key in result:
            if type(key) is not str:
                raise ReadError(f"has a key that is not a string: {key!r}")
        return result

    return read


def _union(members: list[Reader]) -> Reader:
    """The first member that accepts the value. Only `X | None` and `int | str` occur, which do not overlap."""
    if _none in members:
        members = [_none, *(member for member in members if member is not _none)]

    def read(value: Any) -> Any:
        error: ReadError | None = None
        for member in members:
            if value is None and member is _none:
                return None
            if member is _none:
                continue
            try:
                return member(value)
            except ReadError as member_error:
                # The deepest error is about the most likely member.
                deeper = error is None or member_error.depth > error.depth
                error = member_error if deeper else error
        raise error or _mismatch("another type", value)

    return read


def _custom(cls: type, hook: Hook) -> Reader:
    def read(value: Any) -> Any:
        if isinstance(value, cls):
            return value
        try:
            return hook(cls, value)
        except ValueError as error:
            raise ReadError(str(error)) from error

    return read


def _int(int_format: str) -> Reader:
    low, high = _RANGES.get(int_format, _RANGES["int64"])

    def read(value: Any) -> Any:
        if not isinstance(value, int) or isinstance(value, bool):
            raise _mismatch("an integer", value)
        if not low <= value <= high:
            raise ReadError(f"{value} does not fit into {int_format}")
        return value

    return read


def _literal(values: tuple[Any, ...]) -> Reader:
    def read(value: Any) -> Any:
        if value not in values:
            raise ReadError(f"{value!r} is not one of {', '.join(map(str, values))}")
        return value

    return read


def _none(value: Any) -> Any:
    if value is not None:
        raise _mismatch("null", value)
    return None


def _bool(value: Any) -> Any:
    if not isinstance(value, bool):
        raise _mismatch("a boolean", value)
    return value


def _float(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _mismatch("a number", value)
    return float(value)


def _str(value: Any) -> Any:
    if not isinstance(value, str):
        raise _mismatch("a string", value)
    return value


def _mismatch(expected: str, value: Any) -> ReadError:
    return ReadError(f"must be {expected}, not {json_type(value)}")


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
