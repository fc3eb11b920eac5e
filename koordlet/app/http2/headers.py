"""Header blocks to headers, those of peers that keep no table remembered: a call of such a peer is like the last one.

What a block says follows from itself alone as long as the connection's table is empty before and after it. Peers here
(the proxy's client, koordlet's server) write blocks like that; of any other one each block is decoded. At most KEPT
blocks are kept, short ones.
"""

from __future__ import annotations

from typing import cast

from hpack import Decoder

Headers = list[tuple[bytes, bytes]]

KEPT, LONGEST = 64, 1024


class HeaderDecoder:
    """One direction of a connection; what it returns is not to be changed."""

    __slots__ = ("_decoder", "_known")

    def __init__(self, limit: int) -> None:
        """`limit`: bytes of one list of headers."""
        self._decoder = Decoder(limit)
        self._known: dict[bytes, Headers] = {}

    def allow(self, table_size: int) -> None:
        """The peer was told that its table may be this large; what it was told before counts as well."""
        self._decoder.max_allowed_table_size = max(self._decoder.max_allowed_table_size, table_size)

    def decode(self, block: bytes) -> Headers:
        """Raises HPACKError."""
        known = self._known
        if known and (found := known.get(block)) is not None:
            return found
        headers = cast(Headers, self._decoder.decode(block, raw=True))
        if self._decoder.header_table.dynamic_entries:
            self._known = _NOTHING
        elif block and block[0] >> 5 == _RESIZE:
            known.clear()  # what a table of no bytes did not keep, a larger one may
        elif known is not _NOTHING and len(block) <= LONGEST and block:
            if len(known) >= KEPT:
                known.clear()
            known[block] = headers
        return headers


_NOTHING: dict[bytes, Headers] = {}
"""Of a connection that has used its table once: never filled."""
_RESIZE = 0b001
"""How a block begins that changes the table's size: it has to be heard each time."""
