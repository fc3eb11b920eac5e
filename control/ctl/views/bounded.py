"""Reads a response of a server that may be hostile: any process of a node may answer in place of its koordlet."""

from __future__ import annotations

from typing import Final

import aiohttp

MAX_BODY_BYTES: Final = 32 << 20
"""`/top` of a node with 110 pods has 0.3 MB."""


async def read_bounded(response: aiohttp.ClientResponse) -> bytes:
    """The body, after decompression. Raises ClientPayloadError if it is longer."""
    body = bytearray()
    async for piece in response.content.iter_any():
        body += piece
        if len(body) > MAX_BODY_BYTES:
            raise aiohttp.ClientPayloadError(f"the response has more than {MAX_BODY_BYTES >> 20} MiB")
    return bytes(body)
