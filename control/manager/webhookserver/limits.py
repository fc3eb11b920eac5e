"""Limits of the webhook server: API servers rarely authenticate to webhooks, so anyone on the network can call it.

`ConnectionLimit` bounds connections: the one that is idle longest is closed for a new one. `LargeReviews` bounds how
many large reviews are read and parsed at a time, so that normal reviews wait for at most that many parses.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

MAX_CONNECTIONS: Final = 512
FIRST_REQUEST_S: Final = 10.0
"""Time in which a new connection must send its first request."""
HANDSHAKE_S: Final = 10.0
LARGE_BODY_BYTES: Final = 128 * 1024
"""Reviews of common pods are below it: they hold a pod of at most some ten KiB once or twice."""
MAX_LARGE_REVIEWS: Final = 1
MAX_WAITING_LARGE_REVIEWS: Final = 32
MAX_REST_S: Final = 1.0


class ServerBusy(Exception):
    """Too many large reviews wait already."""


class LargeReviews:
    """At most MAX_LARGE_REVIEWS large bodies are read and handled at a time; small ones never wait.

    After a large review its slot rests as long as the review took: large reviews get half of the event loop's time.
    """

    def __init__(self) -> None:
        self._slots = asyncio.Semaphore(MAX_LARGE_REVIEWS)
        self.waiting = 0
        self.active = 0
        self.most_active = 0

    @asynccontextmanager
    async def admitted(self, content_length: int | None) -> AsyncIterator[None]:
        """Wait for a slot if the body may be large. Raises ServerBusy."""
        if content_length is not None and content_length <= LARGE_BODY_BYTES:
            yield
            return
        if self.waiting >= MAX_WAITING_LARGE_REVIEWS:
            raise ServerBusy(f"{self.waiting} large reviews are waiting")
        self.waiting += 1
        try:
            await self._slots.acquire()
        finally:
            self.waiting -= 1
        loop = asyncio.get_running_loop()
        started = loop.time()
        self.active += 1
        self.most_active = max(self.most_active, self.active)
        try:
            yield
        finally:
            self.active -= 1
            loop.call_later(min(loop.time() - started, MAX_REST_S), self._slots.release)


class _Refused(asyncio.Protocol):
    """Closes its connection."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.abort()


class ConnectionLimit:
    """Makes the protocols of a server's connections. `middleware` must be the application's outermost one."""

    def __init__(self, limit: int = MAX_CONNECTIONS, first_request_s: float = FIRST_REQUEST_S) -> None:
        self._limit = limit
        self._first_request_s = first_request_s
        self._idle: OrderedDict[RequestHandler, None] = OrderedDict()
        self._fresh: set[RequestHandler] = set()
        self._busy: dict[RequestHandler, int] = {}

    def factory(self, server: web.Server) -> Callable[[], asyncio.Protocol]:
        """For `loop.create_server`."""

        def connect() -> asyncio.Protocol:
            if len(server.connections) >= self._limit and not self._evict(server):
                return _Refused()
            if len(self._idle) > 2 * self._limit:  # closed connections stay until here
                self._idle = OrderedDict.fromkeys(each for each in server.connections if each in self._idle)
            handler = server()
            self._idle[handler] = None
            self._fresh.add(handler)
            asyncio.get_running_loop().call_later(self._first_request_s, self._expire, handler)
            return handler

        return connect

    @web.middleware
    async def middleware(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        protocol = request.protocol
        self._idle.pop(protocol, None)
        self._fresh.discard(protocol)
        self._busy[protocol] = self._busy.get(protocol, 0) + 1
        try:
            return await handler(request)
        finally:
            self._busy[protocol] -= 1
            if not self._busy[protocol]:
                del self._busy[protocol]
                if protocol.transport is not None:
                    self._idle[protocol] = None

    def _expire(self, handler: RequestHandler) -> None:
        """Close a connection that has sent no request."""
        if handler in self._fresh:
            self._fresh.remove(handler)
            self._idle.pop(handler, None)
            handler.force_close()

    def _evict(self, server: web.Server) -> bool:
        """Close the connection that is idle longest; False when all are busy."""
        open_connections = set(server.connections)
        while self._idle:
            handler, _ = self._idle.popitem(last=False)
            if handler in open_connections:
                handler.force_close()
                return True
        return False
