"""gRPC's framing of messages on an HTTP/2 stream: prefixes, gzip, timeouts, and answers without a body."""

from __future__ import annotations

import gzip
import struct
import zlib
from enum import IntEnum

from koordlet.app.http2.frames import END_HEADERS, END_STREAM, HEADERS, head

PREFIX_BYTES = 5
_PREFIX = struct.Struct(">BL")
_TIMEOUT_UNITS = {72: 3600.0, 77: 60.0, 83: 1.0, 109: 1e-3, 117: 1e-6, 110: 1e-9}  # H M S m u n
_MAX_STATUS_TEXT = 4096


class GrpcStatus(IntEnum):
    """gRPC status codes."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class BodyError(ValueError):
    """A message that cannot be decoded; a proxy forwards it unchanged."""


def prefix(data: bytes | bytearray) -> tuple[bool, int]:
    """Whether the message after this prefix is compressed, and its size."""
    flag, size = _PREFIX.unpack_from(data)
    return bool(flag), size


def unpack(message: bytes, encoding: bytes | None, limit: int) -> bytes:
    """The body of one message, which has its prefix. `encoding`: the request's grpc-encoding; None: assume gzip if the
    message is compressed.

    Raises BodyError for an encoding other than gzip, for invalid gzip data, and for more than `limit` bytes.
    """
    compressed, size = prefix(message)
    body = message[PREFIX_BYTES : PREFIX_BYTES + size]
    if not compressed:
        return body
    if encoding not in (None, b"gzip"):
        raise BodyError(f"messages are compressed as {encoding!r}")
    reader = zlib.decompressobj(wbits=31)
    try:
        plain = reader.decompress(body, limit + 1)
    except zlib.error as error:
        raise BodyError(f"invalid gzip data in a message: {error}") from error
    if len(plain) > limit or not reader.eof:
        raise BodyError("a compressed message exceeds the limit or is truncated")
    return plain


def pack(body: bytes, *, compressed: bool) -> bytes:
    """The body as a message with its prefix."""
    if compressed:
        body = gzip.compress(body, compresslevel=1, mtime=0)
    return _PREFIX.pack(compressed, len(body)) + body


def timeout_seconds(text: bytes) -> float | None:
    """The value of a grpc-timeout header; None if it is malformed."""
    if not 2 <= len(text) <= 9 or not text[:-1].isdigit() or text[-1] not in _TIMEOUT_UNITS:
        return None
    return int(text[:-1]) * _TIMEOUT_UNITS[text[-1]]


def answer_head(stream: int) -> bytes:
    """The HEADERS of an answer with a body."""
    return head(len(_ANSWER), HEADERS, END_HEADERS, stream) + _ANSWER


def answer_tail(stream: int) -> bytes:
    """The HEADERS that end a successful answer."""
    return head(len(_OK), HEADERS, END_STREAM | END_HEADERS, stream) + _OK


def refusal(stream: int, code: int, text: str, *, begun: bool, table_size: int | None = None) -> bytes:
    """An answer with only a status: one HEADERS frame that ends the stream and does not change the client's HPACK
    table.

    `begun`: the answer's headers were already sent, and this frame ends it. `table_size`: a dynamic table size update
    that must be sent with the next header block, because the client reduced its table.
    """
    message = b"".join(
        bytes((byte,)) if 0x20 <= byte <= 0x7E and byte != 0x25 else b"%%%02X" % byte
        for byte in text.encode()[: _MAX_STATUS_TEXT // 3]
    )
    block = b"" if table_size is None else _integer(table_size, 5, 0x20)
    if not begun:
        block += _ANSWER
    block += b"\x00" + _text(b"grpc-status") + _text(b"%d" % code)
    block += b"\x00" + _text(b"grpc-message") + _text(message)
    return head(len(block), HEADERS, END_STREAM | END_HEADERS, stream) + block


def _text(value: bytes) -> bytes:
    return _integer(len(value), 7, 0) + value


def _integer(value: int, bits: int, mark: int) -> bytes:
    """RFC 7541 §5.1."""
    maximum = (1 << bits) - 1
    if value < maximum:
        return bytes((mark | value,))
    out = bytearray((mark | maximum,))
    value -= maximum
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


_ANSWER = b"\x88" + b"\x0f\x10" + _text(b"application/grpc")
""":status 200 and content-type, from the static table and without indexing."""
_OK = b"\x00" + _text(b"grpc-status") + _text(b"0")
