"""Frames are found wherever reads cut them, and what is none is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.app.http2 import frames as h2
from koordlet.app.http2.frames import Frame, FrameError, Splitter

KINDS = st.sampled_from([h2.DATA, h2.PRIORITY, h2.RST_STREAM, h2.SETTINGS, h2.PING, h2.GOAWAY, h2.WINDOW_UPDATE, 0xF7])


@st.composite
def units(draw: st.DrawFn) -> bytes:
    """One frame, or a header block in several."""
    stream = draw(st.integers(0, 0x7FFFFFFF))
    if draw(st.booleans()):
        body = draw(st.binary(max_size=60))
        return h2.head(len(body), draw(KINDS), draw(st.integers(0, 255)), stream) + body
    pieces = draw(st.lists(st.binary(max_size=20), min_size=1, max_size=4))
    flags = draw(st.sampled_from([0, h2.END_STREAM]))
    out = b""
    for index, piece in enumerate(pieces):
        last = h2.END_HEADERS if index == len(pieces) - 1 else 0
        kind, own = (h2.CONTINUATION, 0) if index else (draw(st.sampled_from([h2.HEADERS, h2.PUSH_PROMISE])), flags)
        out += h2.head(len(piece), kind, last | own, stream) + piece
    return out


@given(st.lists(units(), max_size=12), st.data())
def test_units_do_not_depend_on_the_pieces(encoded: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(encoded)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=20)))
    splitter, received = Splitter(), []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        buffer, frames = splitter.feed(stream[start:end])
        received += [buffer[frame.start : frame.end] for frame in frames]
    assert received == encoded


@given(st.lists(units(), min_size=1, max_size=5), st.integers(1, 30))
def test_incomplete_units_are_buffered(encoded: list[bytes], missing: int) -> None:
    stream = b"".join(encoded)
    kept = min(missing, len(encoded[-1]))
    splitter = Splitter()
    _, frames = splitter.feed(stream[: len(stream) - kept])
    assert len(frames) == len(encoded) - 1
    _, frames = splitter.feed(stream[len(stream) - kept :])
    assert len(frames) == 1


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(h2.head(16385, h2.DATA, 0, 1), id="longer-than-allowed"),
        pytest.param(h2.head(1, h2.CONTINUATION, 0, 1), id="continuation-of-nothing"),
        pytest.param(h2.head(0, h2.HEADERS, 0, 1) + h2.head(0, h2.DATA, 0, 1), id="block-interrupted"),
        pytest.param(h2.head(0, h2.HEADERS, 0, 1) + h2.head(0, h2.CONTINUATION, 4, 3), id="block-of-two-streams"),
        pytest.param(
            h2.head(0, h2.HEADERS, 0, 1) + (h2.head(16384, h2.CONTINUATION, 0, 1) + bytes(16384)) * 70,
            id="endless-block",
        ),
    ],
)
def test_invalid_frames(data: bytes) -> None:
    with pytest.raises(FrameError):
        Splitter().feed(data)


def test_longer_frames_once_their_reader_takes_them() -> None:
    splitter = Splitter()
    splitter.limit = 1 << 20
    body = bytes(1 << 20)
    for start in range(0, len(body), 100_000):
        _, frames = splitter.feed(
            (h2.head(len(body), h2.DATA, 0, 1) if not start else b"") + body[start : start + 100_000]
        )
        assert len(frames) == (start + 100_000 >= len(body))


def _one(data: bytes) -> Frame:
    (frame,) = Splitter().feed(data)[1]
    return frame


@pytest.mark.parametrize(
    ("flags", "body", "block"),
    [
        (h2.END_HEADERS, b"block", b"block"),
        (h2.END_HEADERS | h2.PADDED, b"\x03block\0\0\0", b"block"),
        (h2.END_HEADERS | h2.PRIORITISED, b"\0\0\0\0\x10block", b"block"),
        (h2.END_HEADERS | h2.PRIORITISED | h2.PADDED, b"\x01\0\0\0\0\x10block\0", b"block"),
        (h2.END_HEADERS, b"", b""),
    ],
)
def test_header_blocks(flags: int, body: bytes, block: bytes) -> None:
    data = h2.head(len(body), h2.HEADERS, flags, 1) + body
    assert h2.header_block(data, _one(data)) == block


def test_a_header_block_in_pieces() -> None:
    data = (
        h2.head(8, h2.HEADERS, h2.PADDED | h2.PRIORITISED, 1) + b"\x01\0\0\0\0\x10b\0"
        + h2.head(0, h2.CONTINUATION, 0, 1)
        + h2.head(4, h2.CONTINUATION, h2.END_HEADERS, 1) + b"lock"
    )  # fmt: skip
    assert h2.header_block(data, _one(data)) == b"block"


@pytest.mark.parametrize(
    ("kind", "flags", "body"),
    [
        (h2.DATA, h2.PADDED, b""),
        (h2.DATA, h2.PADDED, b"\x02\0"),
        (h2.HEADERS, h2.PADDED | h2.END_HEADERS, b"\x01"),
        (h2.HEADERS, h2.PRIORITISED | h2.END_HEADERS, b"\0\0"),
    ],
)
def test_fields_that_do_not_fit(kind: int, flags: int, body: bytes) -> None:
    data = h2.head(len(body), kind, flags, 1) + body
    with pytest.raises(FrameError):
        (h2.payload if kind == h2.DATA else h2.header_block)(data, _one(data))


@pytest.mark.parametrize(
    "data", [h2.head(3, h2.WINDOW_UPDATE, 0, 0) + bytes(3), h2.head(5, h2.RST_STREAM, 0, 1) + bytes(5)]
)
def test_numbers_have_four_bytes(data: bytes) -> None:
    with pytest.raises(FrameError):
        h2.number(data, _one(data))


def test_settings() -> None:
    data = h2.settings((h2.INITIAL_WINDOW_SIZE, 70_000), (0x99, 5))
    assert h2.settings_in(data, _one(data)) == [(h2.INITIAL_WINDOW_SIZE, 70_000), (0x99, 5)]
    for bad in (h2.head(5, h2.SETTINGS, 0, 0) + bytes(5), h2.head(6, h2.SETTINGS, 0, 1) + bytes(6)):
        with pytest.raises(FrameError):
            h2.settings_in(bad, _one(bad))


def test_empty_continuation_frames_are_bounded() -> None:
    """They are not scanned again with every read, and their number is limited."""
    splitter = Splitter()
    splitter.feed(h2.head(1, h2.HEADERS, 0, 1) + b"x")
    with pytest.raises(FrameError, match="a header block of more than 256 frames"):
        for _ in range(8000):
            splitter.feed(h2.head(0, h2.CONTINUATION, 0, 1))


def test_a_scanned_header_block_is_not_scanned_again() -> None:
    splitter = Splitter()
    splitter.feed(h2.head(1, h2.HEADERS, 0, 1) + b"x")
    for _ in range(200):
        splitter.feed(h2.head(0, h2.CONTINUATION, 0, 1))
    assert splitter._block == (10 + 200 * 9, 201)
    data, (frame,) = splitter.feed(h2.head(1, h2.CONTINUATION, h2.END_HEADERS, 1) + b"y")
    assert h2.header_block(data, frame) == b"xy"
    assert splitter._block == (0, 0)
