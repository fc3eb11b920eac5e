"""Encodes an OpenAPI v2 document as protobuf, the only form in which kubectl requests /openapi/v2.

kubectl uses it to validate the items of a `kind: List`, which the server can't validate. `encode` walks the document
by `openapi_proto.yaml`, which has the field numbers and is read once at first use. Keywords without a field in the
message are left out; so are null and zero values of scalar fields, as always in protobuf. Pure except for reading the
table. A keyword whose value has the wrong type raises `EncodeError`, which names the keyword.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
import yaml

_TABLE = Path(__file__).with_name("openapi_proto.yaml")
_FIELD = re.compile(r"(?P<name>\S+)=(?P<number>\d+):(?P<inner>\d*)(?P<shape>\[\]|\{\})?(?P<type>\w+)")
_EXTENSIONS = "x-*"
_NAME, _VALUE, _ANY_YAML = 1, 2, 2
_VARINT, _FIXED64, _BYTES = 0, 1, 2


class EncodeError(ValueError):
    """A keyword of the document has a value of the wrong type."""


@dataclass(frozen=True, slots=True)
class EncodingField:
    number: int
    type: str
    shape: str  # "", "[]" or "{}"
    inner: int  # number of the repeated field, if a message wraps the list or map; else 0


@dataclass(frozen=True, slots=True)
class EncodingTable:
    messages: dict[str, dict[str, EncodingField]]
    unions: dict[str, dict[str, tuple[tuple[int, ...], str]]]


@lru_cache(maxsize=1)
def table() -> EncodingTable:
    data = yaml.safe_load(_TABLE.read_text())
    unions = {name: {shape: _case(text) for shape, text in cases.items()} for name, cases in data["unions"].items()}
    return EncodingTable({name: dict(map(_field, text.split())) for name, text in data["messages"].items()}, unions)


def _field(text: str) -> tuple[str, EncodingField]:
    match = _FIELD.fullmatch(text)
    assert match is not None, text
    inner = int(match["inner"] or 0)
    return match["name"], EncodingField(int(match["number"]), match["type"], match["shape"] or "", inner)


def _case(text: str) -> tuple[tuple[int, ...], str]:
    numbers, _, message = text.partition(" ")
    return tuple(map(int, reversed(numbers.split(".")))), message


def encode(document: Mapping[str, Any]) -> bytes:
    """The bytes of an openapi.v2.Document."""
    return _message("Document", document)


def _message(name: str, data: Any) -> bytes:
    if not isinstance(data, Mapping):
        raise EncodeError(f"{name}: expected an object, got {type(data).__name__}")
    fields = table().messages[name]
    out = bytearray()
    for keyword, value in data.items():
        extension = keyword.startswith("x-")
        field = fields.get(_EXTENSIONS if extension else keyword)
        if field is None:
            continue
        if extension:
            out += _entries(field.number, field.type, ((keyword, value),))
        elif value is not None or (field.type == "any" and not field.shape):
            try:
                out += _keyword(field, value)
            except (TypeError, AttributeError, UnicodeEncodeError, OverflowError, struct.error) as error:
                raise EncodeError(f"{keyword}: invalid value of type {type(value).__name__}") from error
    return bytes(out)


def _keyword(field: EncodingField, value: Any) -> bytes:
    if field.shape == "{}":
        return _block(field.number, _entries(field.inner, field.type, value.items()))
    if not field.shape:
        return _one(field.number, field.type, value, keep_zero=False)
    if field.inner:
        items = value if isinstance(value, list) else [value]
        return _block(field.number, b"".join(_one(field.inner, field.type, item) for item in items))
    if not isinstance(value, list):
        raise TypeError("not a list")
    return b"".join(_one(field.number, field.type, item) for item in value)


def _entries(number: int, kind: str, items: Iterable[tuple[str, Any]]) -> bytes:
    return b"".join(_block(number, _block(_NAME, name.encode()) + _one(_VALUE, kind, value)) for name, value in items)


def _one(number: int, kind: str, value: Any, keep_zero: bool = True) -> bytes:
    scalar = _SCALARS.get(kind)
    if scalar is not None:
        wire, convert, zero = scalar
        return b"" if value == zero and not keep_zero else _varint(number << 3 | wire) + convert(value)
    cases = table().unions.get(kind)
    if cases is None:
        return _block(number, _message(kind, value))
    path, inner = _choose(kind, cases, value)
    body = _one(path[0], inner, value)
    for each in path[1:]:
        body = _block(each, body)
    return _block(number, body)


def _choose(kind: str, cases: Mapping[str, tuple[tuple[int, ...], str]], value: Any) -> tuple[tuple[int, ...], str]:
    shapes = ("boolean",) if isinstance(value, bool) else ("$ref",) if "$ref" in value else (value.get("in"),)
    for shape in (*shapes, "*"):
        if shape in cases:
            return cases[shape]
    raise EncodeError(f"{kind}: no known shape")


def _block(number: int, body: bytes) -> bytes:
    return _varint(number << 3 | _BYTES) + _sized(body)


def _sized(body: bytes) -> bytes:
    return _varint(len(body)) + body


def _varint(value: int) -> bytes:
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _any(value: Any) -> bytes:
    """A value of any type, as JSON (the field is YAML, of which JSON is a subset)."""
    return _sized(_block(_ANY_YAML, msgspec.json.encode(value)))


def _integer(value: Any) -> bytes:
    whole = int(value) if isinstance(value, float) and value.is_integer() else value
    return _varint(int.from_bytes(struct.pack("<q", whole), "little"))


def _boolean(value: Any) -> bytes:
    if not isinstance(value, bool):
        raise TypeError("neither true nor false")
    return _varint(value)


_SCALARS: dict[str, tuple[int, Callable[[Any], bytes], Any]] = {
    "string": (_BYTES, lambda value: _sized(value.encode()), ""),
    "bool": (_VARINT, _boolean, False),
    "int": (_VARINT, _integer, 0),
    "double": (_FIXED64, struct.Struct("<d").pack, 0),
    "any": (_BYTES, _any, msgspec.UNSET),  # null is a value, too
}
