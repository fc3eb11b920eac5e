"""HTTP/2 frames as places in the bytes that were read: found, not copied (RFC 9113 §4, §6).

Only heads are looked at here. A header block is one unit, its CONTINUATION frames included, so that whoever inserts a
frame of its own between two units never breaks a block. What can't be a frame for this connection's limits raises
FrameError; everything else is left to the peers to judge.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM = ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8
PRIORITISED = 0x20

HEADER_TABLE_SIZE, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE = 0x1, 0x4, 0x5
CANCEL = 0x8

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEAD_BYTES = 9
LEAST_MAX_FRAME = 16384
"""What every peer takes, whatever it announces: the most that frames of our own carry."""
MAX_BLOCK = 1 << 20
"""Bytes of one header block with its frames' heads."""

_HEAD = struct.Struct(">HBBBL")
_SETTING = struct.Struct(">HL")
_NUMBER = struct.Struct(">L")


class FrameError(ValueError):
    """Bytes that are no frame of this connection; the message says which rule they break."""


class Frame(NamedTuple):
    """One unit in a buffer: `start` is its head's first byte, `end` the byte behind it."""

    kind: int
    flags: int
    stream: int
    start: int
    end: int

    @property
    def length(self) -> int:
        """Bytes behind the (first) head; of DATA what flow control counts."""
        return self.end - self.start - HEAD_BYTES


class Splitter:
    """Finds units in what arrives in any pieces; keeps what is not whole yet, at most one unit."""

    def __init__(self) -> None:
        self.limit = LEAST_MAX_FRAME
        """The longest payload that the reader of these frames has ever said it takes."""
        self._pieces: list[bytes] = []
        self._missing = 0

    def feed(self, data: bytes) -> tuple[bytes, list[Frame]]:
        """The buffer that the places belong to, and the whole units in it, in order."""
        if self._pieces:
            self._pieces.append(data)
            self._missing -= len(data)
            if self._missing > 0:
                return b"", []
            data = b"".join(self._pieces)
        frames: list[Frame] = []
        at = 0
        while unit := self._unit(data, at):
            frames.append(unit)
            at = unit.end
        self._pieces = [data[at:]] if at < len(data) else []
        return data, frames

    def _unit(self, data: bytes, at: int) -> Frame | None:
        """The unit that begins at `at`; None and `_missing` when it is not whole."""
        size = len(data)
        if size - at < HEAD_BYTES:
            self._missing = HEAD_BYTES - (size - at)
            return None
        high, low, kind, flags, stream = _HEAD.unpack_from(data, at)
        end = at + HEAD_BYTES + (high << 8 | low)
        if end - at - HEAD_BYTES > self.limit:
            raise FrameError(f"a frame of {end - at - HEAD_BYTES} bytes where {self.limit} are allowed")
        if kind == CONTINUATION:
            raise FrameError("CONTINUATION without a header block")
        if size < end:
            self._missing = end - size
            return None
        if kind in (HEADERS, PUSH_PROMISE) and not flags & END_HEADERS:
            whole = self._block_end(data, at, end, stream)
            if whole is None:
                return None
            end = whole
        return Frame(kind, flags, stream & 0x7FFFFFFF, at, end)

    def _block_end(self, data: bytes, start: int, at: int, stream: int) -> int | None:
        """Where the block ends that began at `start`; `at` is the end of its first frame."""
        while True:
            if at - start > MAX_BLOCK:
                raise FrameError(f"a header block of more than {MAX_BLOCK} bytes")
            if len(data) - at < HEAD_BYTES:
                self._missing = HEAD_BYTES - (len(data) - at)
                return None
            high, low, kind, flags, same = _HEAD.unpack_from(data, at)
            length = high << 8 | low
            if kind != CONTINUATION or same != stream or length > self.limit:
                raise FrameError("a header block that does not go on as one")
            at += HEAD_BYTES + length
            if at > len(data):
                self._missing = at - len(data)
                return None
            if flags & END_HEADERS:
                return at


def payload(data: bytes, frame: Frame) -> tuple[int, int]:
    """First byte and end of what a DATA frame carries, without padding."""
    start, end = frame.start + HEAD_BYTES, frame.end
    return _unpadded(data, start, end, frame.flags)


def header_block(data: bytes, frame: Frame) -> bytes:
    """The block of a HEADERS unit: without padding, priority and CONTINUATION heads."""
    high, low, _, flags, _ = _HEAD.unpack_from(data, frame.start)
    at = frame.start + HEAD_BYTES + (high << 8 | low)
    start, end = _unpadded(data, frame.start + HEAD_BYTES, at, flags)
    if flags & PRIORITISED:
        start += 5
    if start > end:
        raise FrameError("HEADERS shorter than its own fields")
    if at == frame.end:
        return data[start:end]
    parts = [data[start:end]]
    while at < frame.end:
        high, low, *_ = _HEAD.unpack_from(data, at)
        parts.append(data[at + HEAD_BYTES : at + HEAD_BYTES + (high << 8 | low)])
        at += HEAD_BYTES + (high << 8 | low)
    return b"".join(parts)


def _unpadded(data: bytes, start: int, end: int, flags: int) -> tuple[int, int]:
    if not flags & PADDED:
        return start, end
    if start == end or data[start] > end - start - 1:
        raise FrameError("more padding than frame")
    return start + 1, end - data[start]


def number(data: bytes, frame: Frame) -> int:
    """The one number of a WINDOW_UPDATE or RST_STREAM frame."""
    if frame.length != _NUMBER.size:
        raise FrameError(f"frame of type {frame.kind} with {frame.length} bytes")
    value: int = _NUMBER.unpack_from(data, frame.start + HEAD_BYTES)[0]
    return value & 0x7FFFFFFF


def settings_in(data: bytes, frame: Frame) -> list[tuple[int, int]]:
    """Numbers and values of a SETTINGS frame, in order."""
    if frame.length % _SETTING.size or frame.stream:
        raise FrameError(f"SETTINGS of {frame.length} bytes on stream {frame.stream}")
    return list(_SETTING.iter_unpack(memoryview(data)[frame.start + HEAD_BYTES : frame.end]))


def head(length: int, kind: int, flags: int, stream: int) -> bytes:
    return _HEAD.pack(length >> 8, length & 0xFF, kind, flags, stream)


def window_update(stream: int, more: int) -> bytes:
    return head(4, WINDOW_UPDATE, 0, stream) + _NUMBER.pack(more)


def rst_stream(stream: int, code: int = CANCEL) -> bytes:
    return head(4, RST_STREAM, 0, stream) + _NUMBER.pack(code)


def settings(*values: tuple[int, int], ack: bool = False) -> bytes:
    return head(6 * len(values), SETTINGS, ACK if ack else 0, 0) + b"".join(_SETTING.pack(*one) for one in values)


def goaway(last_stream: int = 0x7FFFFFFF, code: int = 0) -> bytes:
    return head(8, GOAWAY, 0, 0) + _NUMBER.pack(last_stream) + _NUMBER.pack(code)
