"""A decoder that remembers says what one that does not says, whatever the peer's table holds."""

from __future__ import annotations

from typing import Any

from hpack import Decoder, Encoder
from hypothesis import given
from hypothesis import strategies as st

from koordlet.app.http2.headers import MAX_CACHED_BLOCKS, HeaderDecoder

names = st.sampled_from([b":path", b":method", b"x-a", b"grpc-timeout"])
texts = st.sampled_from([b"/a", b"POST", b"", b"long" * 300, b"1"])
lists = st.lists(st.tuples(names, texts, st.booleans()), max_size=4)


@given(st.lists(st.tuples(lists, st.sampled_from([None, 0, 100, 4096])), max_size=12))
def test_cached_headers_equal_decoded_headers(fields: list[Any]) -> None:
    """Fields that the table keeps and that it must not keep, tables that grow and shrink, blocks that come again."""
    encoder, plain, remembering = Encoder(), Decoder(), HeaderDecoder(1 << 16)
    for headers, size in fields:
        if size is not None:
            encoder.header_table_size = size
        block = encoder.encode(headers)
        assert remembering.decode(block) == plain.decode(block, raw=True)


def test_what_an_empty_table_did_not_keep_a_larger_one_does() -> None:
    encoder, decoder = Encoder(), HeaderDecoder(1 << 16)
    kept = [(b"x-a", b"POST")]
    for size in (0, 100):
        encoder.header_table_size = size
        decoder.decode(encoder.encode([]))
        assert decoder.decode(encoder.encode(kept)) == kept
    assert decoder.decode(encoder.encode(kept)) == kept, "now it is one byte that names an entry of the table"


def test_a_block_that_needs_no_table_is_decoded_once() -> None:
    decoder = HeaderDecoder(1 << 16)
    block = Encoder().encode([(b"grpc-status", b"0", True)])
    assert decoder.decode(block) is decoder.decode(block)


def test_the_cache_is_bounded() -> None:
    decoder = HeaderDecoder(1 << 16)
    for number in range(3 * MAX_CACHED_BLOCKS):
        decoder.decode(Encoder().encode([(b"grpc-message", b"%d" % number, True)]))
    assert len(decoder._cache) <= MAX_CACHED_BLOCKS
