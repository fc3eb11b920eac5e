"""The server side of an HTTP upgrade on aiohttp: the handler takes the client's connection and gets its raw bytes.

aiohttp has this for its own WebSockets only. Here the transport gets another protocol, which fills a `StreamReader`
(reading stops while its buffer is full). It passes the end of the connection on to aiohttp's protocol, which counts
connections and cancels the handler, and the pauses of writing, for which `StreamResponse.write` waits.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable
from typing import Final

from aiohttp import web

BUFFER_BYTES: Final = 64 * 1024
"""Reading stops at twice as many unread bytes."""
UPGRADED: Final = web.RequestKey("upgraded", bool)
"""Set in a request whose client got the response 101."""
_PROBE = ((socket.TCP_KEEPIDLE, 60), (socket.TCP_KEEPINTVL, 15), (socket.TCP_KEEPCNT, 4))
"""A peer that vanished without a word is noticed after two minutes."""


class _RawProtocol(asyncio.Protocol):
    """The protocol of a taken connection; `http` is the one before it."""

    def __init__(self, http: asyncio.Protocol, reader: asyncio.StreamReader) -> None:
        self._http = http
        self._reader = reader

    def data_received(self, data: bytes) -> None:
        self._reader.feed_data(data)

    def eof_received(self) -> None:
        self._reader.feed_eof()

    def connection_lost(self, error: Exception | None) -> None:
        self._reader.feed_eof()
        self._http.connection_lost(error)

    def pause_writing(self) -> None:
        self._http.pause_writing()

    def resume_writing(self) -> None:
        self._http.resume_writing()


class TakenConnection:
    """The client's connection, after `prepare`. `response` is what the handler must return."""

    def __init__(self, request: web.BaseRequest, headers: Iterable[tuple[str, str]]) -> None:
        self._request = request
        self.response = web.StreamResponse(status=101)
        self.response.force_close()
        for name, value in headers:
            self.response.headers.add(name, value)
        self.response.headers["Connection"] = "Upgrade"
        self._reader = asyncio.StreamReader(BUFFER_BYTES)

    async def prepare(self) -> None:
        """Send the response 101. Bytes that the client sent before it are not forwarded."""
        transport = self._request.transport
        if transport is None:
            raise ConnectionResetError("the client has gone")
        begin_stream(self._request)
        self._reader.set_transport(transport)
        transport.set_protocol(_RawProtocol(self._request.protocol, self._reader))
        transport.resume_reading()
        await self.response.prepare(self._request)

    async def read(self) -> bytes:
        return await self._reader.read(2 * BUFFER_BYTES)

    async def write(self, data: bytes) -> None:
        """Waits while the client reads more slowly."""
        await self.response.write(data)


def is_upgrade(request: web.BaseRequest) -> bool:
    """Whether the client requests an upgrade of the connection, and sends no body."""
    tokens = request.headers.get("Connection", "").lower().replace(",", " ").split()
    return "upgrade" in tokens and "Upgrade" in request.headers and not request.can_read_body


def begin_stream(request: web.BaseRequest) -> None:
    """Count the request as upgraded, however its connection ends, and let the kernel probe an idle connection."""
    request[UPGRADED] = True
    peer = request.transport.get_extra_info("socket") if request.transport is not None else None
    if peer is not None:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _PROBE:
            peer.setsockopt(socket.IPPROTO_TCP, option, value)
