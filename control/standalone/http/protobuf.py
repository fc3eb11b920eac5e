"""Decodes request bodies in Kubernetes' protobuf form, which kubectl's typed commands and Go clients send.

A body is the four bytes `k8s\\0` and an envelope (runtime.Unknown) with apiVersion, kind and the message. Field
numbers and types are in `protobuf_fields.yaml`, read once on first use (about 20 ms). Responses are always JSON,
which those clients accept. Pure except for reading the table. A body that doesn't parse is a StatusError 400,
a kind that is not in the table 415.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
import yaml

from control.standalone import errors
from control.standalone.objectmeta import micro_timestamp, timestamp

Json = dict[str, Any]
CONTENT_TYPE = "application/vnd.kubernetes.protobuf"
MAGIC = b"k8s\x00"
_TABLE = Path(__file__).with_name("protobuf_fields.yaml")
_MAX_DEPTH = 64


class MalformedMessage(ValueError):
    """The bytes are not a message of the expected type."""


@dataclass(frozen=True, slots=True)
class MessageField:
    name: str
    type: str
    repeated: bool
    map: bool
    inline: bool
    keep_zero: bool


@dataclass(frozen=True, slots=True)
class MessageTable:
    roots: dict[str, str]
    messages: dict[str, dict[int, MessageField]]


@lru_cache(maxsize=1)
def table() -> MessageTable:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    data = yaml.load(_TABLE.read_text(), Loader=loader)
    messages = {name: dict(map(_field, text.split())) for name, text in data["messages"].items()}
    return MessageTable(data["roots"], {"empty": {}, **messages})


def _field(text: str) -> tuple[int, MessageField]:
    name, _, rest = text.partition("=")
    number, _, kind = rest.partition(":")
    field = MessageField(
        name.rstrip("!"),
        kind.removeprefix("[]").removeprefix("{}"),
        kind.startswith("[]"),
        kind.startswith("{}"),
        name == "^",
        name.endswith("!"),
    )
    return int(number), field


def decode(body: bytes) -> Json:
    """The object in a body with envelope, as JSON data."""
    if not body.startswith(MAGIC):
        raise errors.bad_request("the body is not protobuf: it does not begin with the expected prefix")
    try:
        envelope = {number: value for number, _, value in _fields(body[len(MAGIC) :])}
        type_meta = {number: value.decode() for number, _, value in _fields(envelope.get(1, b""))}
        api_version, kind = type_meta.get(1, ""), type_meta.get(2, "")
        root = table().roots.get(f"{api_version} {kind}")
        if kind == "DeleteOptions":  # the same message in every group
            root = "meta.DeleteOptions"
        if root is None:
            raise errors.unsupported_media_type("application/json (this kind has no known protobuf form)")
        return {"apiVersion": api_version, "kind": kind, **_message(root, envelope.get(2, b""), 0)}
    except (MalformedMessage, UnicodeDecodeError, AttributeError, struct.error) as error:
        raise errors.bad_request(f"error decoding protobuf: {error}") from error


def _message(name: str, data: bytes, depth: int) -> Json:
    if depth > _MAX_DEPTH:
        raise MalformedMessage("messages are nested too deeply")
    known = table().messages[name]
    out: Json = {}
    for number, wire, raw in _fields(data):
        field = known.get(number)
        if field is None:
            continue  # a field newer than this table: dropped, as Kubernetes drops unknown fields
        if field.map:
            key, value = _map_entry(field, raw, depth)
            out.setdefault(field.name, {})[key] = value
        elif field.repeated:
            out.setdefault(field.name, []).extend(_repeated(field, wire, raw, depth))
        elif field.inline:
            out.update(_message(field.type, raw, depth + 1))
        else:
            value = _value(field.type, raw, depth)
            if value is not None and (field.keep_zero or value not in ("", 0, False) or value == {}):
                out[field.name] = value
    return out


def _map_entry(field: MessageField, raw: bytes, depth: int) -> tuple[str, Any]:
    parts = {number: value for number, _, value in _fields(raw)}
    empty: Any = 0 if field.type in ("int", "bool") else b""
    return parts.get(1, b"").decode(), _value(field.type, parts.get(2, empty), depth)


def _repeated(field: MessageField, wire: int, raw: Any, depth: int) -> Iterator[Any]:
    if field.type in ("int", "bool") and wire == 2:  # packed
        at = 0
        while at < len(raw):
            number, at = _varint(raw, at)
            yield _value(field.type, number, depth)
    else:
        yield _value(field.type, raw, depth)


def _value(kind: str, raw: Any, depth: int) -> Any:
    convert = _SCALARS.get(kind)
    if convert is not None:
        return convert(raw)
    return _message(kind, raw, depth + 1)


def _signed(number: int) -> int:
    return number - (1 << 64) if number >= 1 << 63 else number


def _numbers(raw: bytes) -> dict[int, Any]:
    return {number: value for number, _, value in _fields(raw)}


def _time(render: Callable[[float], str]) -> Callable[[bytes], str | None]:
    def convert(raw: bytes) -> str | None:
        parts = _numbers(raw)
        seconds, nanos = _signed(parts.get(1, 0)), parts.get(2, 0)
        return render(seconds + nanos / 1e9) if seconds or nanos else None

    return convert


def _go_duration(raw: bytes) -> str:
    return f"{_signed(_numbers(raw).get(1, 0)) / 1e9:g}s"


def _intstr(raw: bytes) -> Any:
    parts = _numbers(raw)
    return parts.get(3, b"").decode() if parts.get(1, 0) == 1 else _signed(parts.get(2, 0))


def _raw_json(raw: bytes) -> Any:
    inner = _numbers(raw).get(1, b"")
    try:
        return msgspec.json.decode(inner) if inner else None
    except msgspec.DecodeError as error:
        raise MalformedMessage(f"embedded JSON: {error}") from error


_SCALARS: dict[str, Callable[[Any], Any]] = {
    "string": lambda raw: raw.decode(),
    "bool": bool,
    "int": _signed,
    "double": lambda raw: struct.unpack("<d", raw)[0],
    "bytes": lambda raw: base64.b64encode(raw).decode(),
    "time": _time(timestamp),
    "microtime": _time(micro_timestamp),
    "duration": _go_duration,
    "quantity": lambda raw: _numbers(raw).get(1, b"").decode(),
    "intstr": _intstr,
    "raw": _raw_json,
    "items": lambda raw: [value.decode() for number, _, value in _fields(raw) if number == 1],
}


def _fields(data: bytes) -> Iterator[tuple[int, int, Any]]:
    """(field number, wire type, value): ints for varints, bytes for everything else."""
    if not isinstance(data, bytes):
        raise MalformedMessage("expected a message, got a number")
    at, end = 0, len(data)
    while at < end:
        key, at = _varint(data, at)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, at = _varint(data, at)
            yield number, wire, value
            continue
        if wire == 2:
            size, at = _varint(data, at)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise MalformedMessage(f"unknown wire type {wire}")
        if at + size > end:
            raise MalformedMessage("the message ends in the middle of a field")
        yield number, wire, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise MalformedMessage("bad varint")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
