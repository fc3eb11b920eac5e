"""Decodes HPACK header blocks, with a cache for peers that do not use the dynamic table.

Calls of such a peer repeat the same blocks. A block's content depends only on its bytes as long as the connection's
dynamic table is empty before and after it. The peers in this project (the proxy's client, koordlet's server) write such
blocks. For other peers each block is decoded. At most `MAX_CACHED_BLOCKS` short blocks are cached.
"""

from __future__ import annotations

from typing import cast

from hpack import Decoder

Headers = list[tuple[bytes, bytes]]

MAX_CACHED_BLOCKS = 64
MAX_CACHED_BLOCK_BYTES = 1024


class HeaderDecoder:
    """Decoder of one direction of a connection. Callers must not modify the returned headers."""

    __slots__ = ("_cache", "_decoder")

    def __init__(self, limit: int) -> None:
        """`limit`: bytes of one list of headers."""
        self._decoder = Decoder(limit)
        self._cache: dict[bytes, Headers] = {}

    def allow(self, table_size: int) -> None:
        """Accept this table size, which was announced to the peer; larger earlier announcements stay valid."""
        self._decoder.max_allowed_table_size = max(self._decoder.max_allowed_table_size, table_size)

    def decode(self, block: bytes) -> Headers:
        """Raises HPACKError."""
        cache = self._cache
        if cache and (cached := cache.get(block)) is not None:
            return cached
        headers = cast(Headers, self._decoder.decode(block, raw=True))
        if self._decoder.header_table.dynamic_entries:
            self._cache = _DISABLED
        elif block and block[0] >> 5 == _SIZE_UPDATE:
            cache.clear()  # an entry that did not fit into a table of size zero may fit into a larger one
        elif cache is not _DISABLED and len(block) <= MAX_CACHED_BLOCK_BYTES and block:
            if len(cache) >= MAX_CACHED_BLOCKS:
                cache.clear()
            cache[block] = headers
        return headers


_DISABLED: dict[bytes, Headers] = {}
"""The cache of connections that have used the dynamic table once: never filled."""
_SIZE_UPDATE = 0b001
"""First bits of a block with a dynamic table size update, which must be decoded each time."""
