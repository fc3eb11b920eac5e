"""Limits of the webhook server: API servers rarely authenticate to webhooks, so anyone on the network can call it.

`ConnectionLimit` bounds connections: the one that is idle longest is closed for a new one. `LargeReviews` bounds how
many large reviews are read and parsed at a time, in all and for each address, so that normal reviews wait for at most
one parse, and large ones of an API server not for a client that sends slowly.
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
MAX_PLACES: Final = 8
"""Large bodies in memory at a time, of at most 7 MiB each."""
MAX_PLACES_PER_ADDRESS: Final = 2
MAX_REQUESTS_PER_ADDRESS: Final = 16
MAX_WAITING_LARGE_REVIEWS: Final = 128
"""A waiting review costs a connection with an unread body."""
MAX_REST_S: Final = 1.0


class ServerBusy(Exception):
    """Too many large reviews wait already, of all clients or of this one."""


class LargeReviews:
    """Large bodies are read at MAX_PLACES places, few of them for one address, and handled one at a time. Small ones
    never wait. A client that sends slowly holds a place of its address and delays no other address.

    After a large review its slot rests as long as the review took: large reviews get half of the event loop's time.
    """

    def __init__(self) -> None:
        self._slots = asyncio.Semaphore(MAX_LARGE_REVIEWS)
        self._places = asyncio.Semaphore(MAX_PLACES)
        self._addresses: dict[str, AddressReviews] = {}
        self.active = 0
        self.most_active = 0

    @property
    def waiting(self) -> int:
        """Large reviews that are not handled yet."""
        return sum(address.requests for address in self._addresses.values()) - self.active

    @asynccontextmanager
    async def place(self, address: str, content_length: int | None) -> AsyncIterator[ReviewPlace]:
        """Wait for a place to read the body if it may be large. Raises ServerBusy."""
        if content_length is not None and content_length <= LARGE_BODY_BYTES:
            yield ReviewPlace(None)
            return
        mine = self._addresses.setdefault(address, AddressReviews())
        if mine.requests >= MAX_REQUESTS_PER_ADDRESS or self.waiting >= MAX_WAITING_LARGE_REVIEWS:
            if not mine.requests:
                del self._addresses[address]
            raise ServerBusy(f"{mine.requests} large reviews of this address and {self.waiting} of all are waiting")
        mine.requests += 1
        try:
            async with mine.places, self._places:
                yield ReviewPlace(self)
        finally:
            mine.requests -= 1
            if not mine.requests:
                del self._addresses[address]

    @asynccontextmanager
    async def handling(self) -> AsyncIterator[None]:
        """Wait for a slot to handle a large review that was read."""
        await self._slots.acquire()
        loop = asyncio.get_running_loop()
        started = loop.time()
        self.active += 1
        self.most_active = max(self.most_active, self.active)
        try:
            yield
        finally:
            self.active -= 1
            loop.call_later(min(loop.time() - started, MAX_REST_S), self._slots.release)


class AddressReviews:
    """The large reviews of one address."""

    def __init__(self) -> None:
        self.places = asyncio.Semaphore(MAX_PLACES_PER_ADDRESS)
        self.requests = 0


class ReviewPlace:
    """Where a body may be read; `reviews` is None for a small one."""

    def __init__(self, reviews: LargeReviews | None) -> None:
        self._reviews = reviews

    @asynccontextmanager
    async def handling(self) -> AsyncIterator[None]:
        """While the review is parsed and handled."""
        if self._reviews is None:
            yield
            return
        async with self._reviews.handling():
            yield


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
