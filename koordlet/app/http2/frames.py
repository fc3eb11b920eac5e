"""HTTP/2 frames as offsets in the received bytes, without copying (RFC 9113 §4, §6).

Only frame headers are parsed here. A header block with its CONTINUATION frames is one unit, so a frame inserted between
two units never splits a block. Frames that violate this connection's limits raise FrameError; everything else is left
to the peers to check.
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
"""Payload bytes that each peer must accept. Frames generated here carry no more."""
MAX_BLOCK_BYTES = 1 << 20
"""Of one header block including its frames' headers."""
MAX_BLOCK_FRAMES = 256
"""Frames of one header block; 64 hold `MAX_BLOCK_BYTES`. Without a limit, each of many empty CONTINUATION frames that
arrive one by one would copy the block collected so far."""

_HEAD = struct.Struct(">HBBBL")
_SETTING = struct.Struct(">HL")
_NUMBER = struct.Struct(">L")


class FrameError(ValueError):
    """Bytes that are not a valid frame of this connection; the message names the violated rule."""


class Frame(NamedTuple):
    """One unit in a buffer: `start` is the offset of its first byte, `end` the offset after its last."""

    kind: int
    flags: int
    stream: int
    start: int
    end: int

    @property
    def length(self) -> int:
        """Bytes after the (first) frame header; for DATA the bytes that flow control counts."""
        return self.end - self.start - HEAD_BYTES


class Splitter:
    """Splits received bytes into units; buffers at most one incomplete unit."""

    def __init__(self) -> None:
        self.limit = LEAST_MAX_FRAME
        """The largest MAX_FRAME_SIZE that the receiver of these frames has announced."""
        self._pieces: list[bytes] = []
        self._missing = 0
        self._block = (0, 0)
        """Of the incomplete header block at the beginning of the buffer: scanned bytes and frames, so that it is not
        scanned again when more arrives."""

    def feed(self, data: bytes) -> tuple[bytes, list[Frame]]:
        """A buffer and the complete units in it, in order."""
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
        """The unit that begins at `at`; if it is incomplete, sets `_missing` and returns None."""
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
            whole = self._block_end(data, at, max(end, at + self._block[0]), stream)
            if whole is None:
                return None
            end = whole
        return Frame(kind, flags, stream & 0x7FFFFFFF, at, end)

    def _block_end(self, data: bytes, start: int, at: int, stream: int) -> int | None:
        """The end of the block that begins at `start`; `at` is the end of its last scanned frame."""
        frames = max(self._block[1], 1)
        while True:
            if at - start > MAX_BLOCK_BYTES:
                raise FrameError(f"a header block of more than {MAX_BLOCK_BYTES} bytes")
            if frames > MAX_BLOCK_FRAMES:
                raise FrameError(f"a header block of more than {MAX_BLOCK_FRAMES} frames")
            self._block = (at - start, frames)
            if len(data) - at < HEAD_BYTES:
                self._missing = HEAD_BYTES - (len(data) - at)
                return None
            high, low, kind, flags, same = _HEAD.unpack_from(data, at)
            length = high << 8 | low
            if kind != CONTINUATION or same != stream or length > self.limit:
                raise FrameError("a header block is not followed by its CONTINUATION frame")
            at += HEAD_BYTES + length
            frames += 1
            if at > len(data):
                self._missing = at - len(data)
                return None
            if flags & END_HEADERS:
                self._block = (0, 0)
                return at


def payload(data: bytes, frame: Frame) -> tuple[int, int]:
    """Start and end of a DATA frame's payload without padding."""
    start, end = frame.start + HEAD_BYTES, frame.end
    return _unpadded(data, start, end, frame.flags)


def header_block(data: bytes, frame: Frame) -> bytes:
    """The block of a HEADERS unit, without padding, priority and headers of CONTINUATION frames."""
    high, low, _, flags, _ = _HEAD.unpack_from(data, frame.start)
    at = frame.start + HEAD_BYTES + (high << 8 | low)
    start, end = _unpadded(data, frame.start + HEAD_BYTES, at, flags)
    if flags & PRIORITISED:
        start += 5
    if start > end:
        raise FrameError("HEADERS is shorter than its fields")
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
        raise FrameError("the padding is longer than the frame")
    return start + 1, end - data[start]


def number(data: bytes, frame: Frame) -> int:
    """The number in a WINDOW_UPDATE or RST_STREAM frame."""
    if frame.length != _NUMBER.size:
        raise FrameError(f"frame of type {frame.kind} with {frame.length} bytes")
    value: int = _NUMBER.unpack_from(data, frame.start + HEAD_BYTES)[0]
    return value & 0x7FFFFFFF


def settings_in(data: bytes, frame: Frame) -> list[tuple[int, int]]:
    """(identifier, value) of the settings in a SETTINGS frame, in order."""
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
    return head(6 * len(values), SETTINGS, ACK if ack else 0, 0) + b"".join(_SETTING.pack(*value) for value in values)


def goaway(last_stream: int = 0x7FFFFFFF, code: int = 0) -> bytes:
    return head(8, GOAWAY, 0, 0) + _NUMBER.pack(last_stream) + _NUMBER.pack(code)
