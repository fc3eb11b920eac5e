"""The part of SPDY/3.1 that a client of the remote-command protocol needs: frames to bytes and bytes to frames. Pure.

A frame is 8 bytes of head and a payload of up to 16 MiB. Payloads of data frames are returned in the pieces in which
they arrive, and never collected. Header blocks are zlib streams; those of the server are not needed and not read, and
ours do without the protocol's dictionary, which a stream may do. Servers of this protocol have no flow control: who
reads slowly stops the TCP connection.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

SYN_STREAM, SYN_REPLY, RST_STREAM, SETTINGS, PING, GOAWAY, HEADERS, WINDOW_UPDATE = 1, 2, 3, 4, 6, 7, 8, 9
VERSION: Final = 3
FIN: Final = 0x01
CONTROL_LIMIT_BYTES: Final = 64 * 1024
"""Of a control frame's payload: a larger one is an error."""
MAX_PAYLOAD_BYTES: Final = 0xFF_FFFF
_CONTROL: Final = 0x8000_0000
_WORD = struct.Struct(">I")
_HEAD = struct.Struct(">II")


class SpdyError(ConnectionError):
    """Bytes that are no frames."""


@dataclass(frozen=True, slots=True)
class DataPiece:
    """Bytes of a stream; `fin`: its last ones."""

    stream: int
    data: bytes
    fin: bool = False


@dataclass(frozen=True, slots=True)
class ControlFrame:
    """A control frame with at least its first number: the stream, the ping's id, or the last good stream."""

    type: int
    number: int
    payload: bytes
    fin: bool = False


class FrameDecoder:
    """`feed` takes bytes as they arrive and returns what is complete. After SpdyError it must not be used."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._stream = 0
        self._left = 0
        """Missing bytes of the current data frame."""
        self._fin = False

    def feed(self, data: bytes) -> list[DataPiece | ControlFrame]:
        self._buffer += data
        out: list[DataPiece | ControlFrame] = []
        while self._take(out):
            pass
        return out

    def _take(self, out: list[DataPiece | ControlFrame]) -> bool:
        """Append one piece or frame; False if more bytes are needed."""
        buffer = self._buffer
        if self._left:
            if not buffer:
                return False
            piece = bytes(buffer[: self._left])
            del buffer[: len(piece)]
            self._left -= len(piece)
            out.append(DataPiece(self._stream, piece, self._fin and not self._left))
            return True
        if len(buffer) < _HEAD.size:
            return False
        first, second = _HEAD.unpack_from(buffer)
        flags, size = second >> 24, second & MAX_PAYLOAD_BYTES
        if not first & _CONTROL:
            del buffer[: _HEAD.size]
            self._stream, self._left, self._fin = first, size, bool(flags & FIN)
            if not size and self._fin:
                out.append(DataPiece(first, b"", True))
            return True
        version, kind = first >> 16 & 0x7FFF, first & 0xFFFF
        if version != VERSION:
            raise SpdyError(f"SPDY version {version} is not {VERSION}")
        if size > CONTROL_LIMIT_BYTES:
            raise SpdyError(f"a control frame of {size} bytes, the limit is {CONTROL_LIMIT_BYTES}")
        if size < _WORD.size:
            raise SpdyError(f"a control frame of type {kind} with {size} bytes")
        if len(buffer) < _HEAD.size + size:
            return False
        payload = bytes(buffer[_HEAD.size : _HEAD.size + size])
        del buffer[: _HEAD.size + size]
        out.append(ControlFrame(kind, _WORD.unpack_from(payload)[0] & 0x7FFF_FFFF, payload, bool(flags & FIN)))
        return True


class FrameEncoder:
    """The frames of one connection's client: header blocks share one zlib stream."""

    def __init__(self) -> None:
        self._zlib = zlib.compressobj()

    def syn_stream(self, stream: int, headers: Mapping[str, str]) -> bytes:
        """Open a stream; `headers` have lower-case names."""
        block = _WORD.pack(len(headers))
        for name, value in headers.items():
            for text in (name.encode(), value.encode()):
                block += _WORD.pack(len(text)) + text
        packed = self._zlib.compress(block) + self._zlib.flush(zlib.Z_SYNC_FLUSH)
        return control_frame(SYN_STREAM, struct.pack(">IIBB", stream, 0, 0, 0) + packed)


def control_frame(kind: int, payload: bytes) -> bytes:
    return _HEAD.pack(_CONTROL | VERSION << 16 | kind, len(payload)) + payload


def data_frame(stream: int, data: bytes, *, fin: bool = False) -> bytes:
    """`data` has at most MAX_PAYLOAD_BYTES."""
    return _HEAD.pack(stream, (FIN if fin else 0) << 24 | len(data)) + data


def ping(number: int) -> bytes:
    return control_frame(PING, _WORD.pack(number))
