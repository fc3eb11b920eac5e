"""The frame codec: any split of the bytes gives the same frames, and no bytes make it keep more than its limit."""

from __future__ import annotations

import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control.standalone.streams import spdy
from control.standalone.streams.spdy import ControlFrame, DataPiece, FrameDecoder, SpdyError

STREAMS = st.integers(1, 2**31 - 1)
DATA = st.tuples(STREAMS, st.binary(max_size=300), st.booleans())
CONTROL = st.tuples(st.integers(1, 9), st.binary(min_size=4, max_size=40))


def joined(frames: list[DataPiece | ControlFrame]) -> list[object]:
    """Pieces of one data frame put together."""
    out: list[object] = []
    for frame in frames:
        if isinstance(frame, ControlFrame):
            out.append((frame.type, frame.payload))
        elif out and isinstance(out[-1], DataPiece) and out[-1].stream == frame.stream and not out[-1].fin:
            out[-1] = DataPiece(frame.stream, out[-1].data + frame.data, frame.fin)
        else:
            out.append(frame)
    return out


@given(frames=st.lists(st.one_of(DATA, CONTROL), max_size=8), cuts=st.lists(st.integers(1, 64), max_size=60))
def test_frames_do_not_depend_on_how_their_bytes_arrive(frames: list[tuple[object, ...]], cuts: list[int]) -> None:
    raw = b""
    for frame in frames:
        match frame:
            case (int(stream), bytes(data), bool(fin)):
                raw += spdy.data_frame(stream, data, fin=fin)
            case (int(kind), bytes(payload)):
                raw += spdy.control_frame(kind, payload)
    whole = FrameDecoder().feed(raw)
    decoder, pieces, rest = FrameDecoder(), [], raw
    for size in cuts:
        pieces += decoder.feed(rest[:size])
        rest = rest[size:]
    pieces += decoder.feed(rest)
    assert joined(pieces) == joined(whole)
    sent = b"".join(frame[1] for frame in frames if len(frame) == 3)  # type: ignore[misc]
    assert b"".join(piece.data for piece in whole if isinstance(piece, DataPiece)) == sent


@given(chunks=st.lists(st.binary(max_size=2000), max_size=30))
def test_any_bytes_are_frames_or_an_error_and_memory_is_bounded(chunks: list[bytes]) -> None:
    decoder = FrameDecoder()
    for chunk in chunks:
        try:
            decoder.feed(chunk)
        except SpdyError:
            return
        assert len(decoder._buffer) <= spdy.CONTROL_LIMIT_BYTES + 8


def test_a_data_frame_is_returned_in_the_pieces_in_which_it_arrives() -> None:
    decoder = FrameDecoder()
    assert decoder.feed(struct.pack(">II", 5, 1 << 24 | 6) + b"abc") == [DataPiece(5, b"abc")]
    assert decoder.feed(b"def") == [DataPiece(5, b"def", fin=True)]
    assert decoder.feed(spdy.data_frame(5, b"", fin=True)) == [DataPiece(5, b"", fin=True)]


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (struct.pack(">II", 0x8002_0006, 4), "SPDY version 2 is not 3"),
        (struct.pack(">II", 0x8003_0002, spdy.CONTROL_LIMIT_BYTES + 1), "a control frame of 65537 bytes"),
        (struct.pack(">II", 0x8003_0006, 0), "type 6 with 0 bytes"),
        (b"HTTP/1.1 400 Bad Request\r\n", None),
    ],
)
def test_malformed_frames(raw: bytes, message: str | None) -> None:
    """Text looks like a data frame of an unknown stream; nothing of it is kept."""
    if message is None:
        assert len(FrameDecoder().feed(raw)) == 1
    else:
        with pytest.raises(SpdyError, match=message):
            FrameDecoder().feed(raw)


def test_header_blocks_share_one_compressed_stream() -> None:
    encoder, reader = spdy.FrameEncoder(), zlib.decompressobj()
    for stream, kind in ((1, "error"), (3, "stdout")):
        (frame,) = FrameDecoder().feed(encoder.syn_stream(stream, {"streamtype": kind}))
        assert isinstance(frame, ControlFrame)
        assert (frame.type, frame.number) == (spdy.SYN_STREAM, stream)
        block = reader.decompress(frame.payload[10:])
        name, value = b"streamtype", kind.encode()
        assert block == struct.pack(">II", 1, len(name)) + name + struct.pack(">I", len(value)) + value
