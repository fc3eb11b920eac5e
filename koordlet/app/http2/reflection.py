"""gRPC server reflection, v1 and v1alpha (the same messages), which `grpcurl` queries before it calls a server.

The few messages are decoded and encoded by hand: a request is a number and a string, an answer an existing descriptor.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from google.protobuf.descriptor import FileDescriptor

from koordlet.app.http2.grpc import GrpcStatus
from koordlet.app.http2.server import CallRefused, Stream

PATHS = tuple(f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo" for version in ("v1", "v1alpha"))
_HOST, _BY_NAME, _BY_SYMBOL, _LIST = 1, 3, 4, 7
_QUERY_FIELDS = range(3, 8)
"""Fields of a request, one of which is set; the queries for extensions have no answer in proto3."""
_ORIGINAL, _FILES, _SERVICES, _ERROR = 2, 4, 6, 7
_VARINT_BYTES = 10
_FIXED = {1: 8, 5: 4}


class Reflection:
    """Describes `files`, which must not import other files."""

    def __init__(self, files: Iterable[FileDescriptor]) -> None:
        self._files = {file.name: file for file in files}

    def streams(self) -> dict[str, Stream]:
        """The methods for `GrpcServer`."""
        return dict.fromkeys(PATHS, Stream(self.answer))

    def answer(self, request: bytes) -> bytes:
        """ServerReflectionRequest to ServerReflectionResponse. Raises CallRefused for a malformed request."""
        fields = dict(_fields(request))
        query = next((number for number in _QUERY_FIELDS if number in fields), None)
        if query is None:
            raise CallRefused("a ServerReflectionRequest without a query", GrpcStatus.INVALID_ARGUMENT)
        argument = fields[query]
        if query == _LIST:
            names = [service.full_name for file in self._files.values() for service in file.services_by_name.values()]
            answer = _field(_SERVICES, b"".join(_field(1, _field(1, name.encode())) for name in sorted(names)))
        elif (file := self._find(query, argument.decode(errors="replace"))) is not None:
            answer = _field(_FILES, _field(1, file.serialized_pb))
        else:
            answer = _field(_ERROR, b"\x08" + _varint(GrpcStatus.NOT_FOUND) + _field(2, b"not found: " + argument))
        return _field(_HOST, fields.get(_HOST, b"")) + _field(_ORIGINAL, request) + answer

    def _find(self, query: int, name: str) -> FileDescriptor | None:
        if query == _BY_NAME:
            return self._files.get(name)
        if query == _BY_SYMBOL:
            for file in self._files.values():
                if name in _symbols(file):
                    return file
        return None


def _symbols(file: FileDescriptor) -> Iterator[str]:
    """Full names of services, methods, messages and enums. The project's messages have no nested types."""
    for service in file.services_by_name.values():
        yield service.full_name
        yield from (method.full_name for method in service.methods)
    yield from (message.full_name for message in file.message_types_by_name.values())
    yield from (enum.full_name for enum in file.enum_types_by_name.values())


def _field(number: int, value: bytes) -> bytes:
    """A field of length-delimited type."""
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """(number, value) of the length-delimited fields. Raises CallRefused."""
    at = 0
    while at < len(message):
        tag, at = _read_varint(message, at)
        kind = tag & 7
        if kind == 0:
            _, at = _read_varint(message, at)
            continue
        size = _FIXED.get(kind)
        if kind == 2:
            size, at = _read_varint(message, at)
        if size is None or at + size > len(message):
            raise CallRefused("malformed ServerReflectionRequest", GrpcStatus.INVALID_ARGUMENT)
        if kind == 2:
            yield tag >> 3, message[at : at + size]
        at += size


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift, byte in enumerate(message[at : at + _VARINT_BYTES]):
        value |= (byte & 0x7F) << 7 * shift
        if byte < 0x80:
            return value, at + shift + 1
    raise CallRefused("malformed ServerReflectionRequest", GrpcStatus.INVALID_ARGUMENT)
