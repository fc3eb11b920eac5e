"""Limits of an HTTP server's connections: their number, silent ones, slow requests, and the size of heads and bodies.

Pages are open to every process that can reach the node, so no number of clients may use up descriptors, memory or the
time of the event loop. Connections from this machine have places of their own: probes must succeed while others are
refused. When all places are taken, an idle connection of the address with the most connections makes room: no client,
also no process of this machine, keeps probes and scrapes out by holding connections.

    guard = ConnectionGuard(limits)
    web.Application(middlewares=[guard.middleware])
    loop.create_server(lambda: guard.protocol(runner.server()), ...)    # plain HTTP
    TlsListener(guard, listener, tls, runner.server).start()            # HTTPS

With TLS a connection is admitted and timed before its handshake, which a silent client would otherwise prolong
uncounted.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Final, cast

from aiohttp import web

from koordlet.app.logging import get_logger

log = get_logger(__name__)

ACCEPT_PAUSE_S: Final = 1.0
"""After a failure to accept a connection, as while there is no free descriptor."""
SHUTDOWN_S: Final = 2.0
"""For a client to confirm the end of a TLS connection."""
LOOPBACK: Final = "loopback"


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Beyond the first three limits an idle connection makes room; without one, the new one is closed at once."""

    connections: int = 256
    """From other machines."""
    per_address: int = 64
    loopback: int = 64
    """From this machine."""
    request_s: float = 10.0
    """Until the head of the first request is complete; a connection that sends nothing is closed then."""
    idle_s: float = 120.0
    """Between requests; Prometheus scrapes once a minute at most times."""
    handling_s: float = 60.0
    """For a request and its answer, which a client may read slowly."""
    head_bytes: int = 16 << 10
    """Of the request line, and of each header."""
    body_bytes: int = 64 << 10


class ConnectionGuard:
    """The connections of one server, within `limits`."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self._open: Counter[str] = Counter()
        self._guarded: dict[int, GuardedConnection] = {}
        """By identity, the one that is idle longest first."""
        self._by_transport: dict[int, GuardedConnection] = {}

    @property
    def settings(self) -> dict[str, float | int]:
        """Arguments of aiohttp's protocol."""
        size = self.limits.head_bytes
        return {"keepalive_timeout": self.limits.idle_s, "max_line_size": size, "max_field_size": size}

    def protocol(self, inner: asyncio.Protocol) -> GuardedConnection:
        """The protocol of a new connection, around that of the web server."""
        return GuardedConnection(self, inner)

    @web.middleware
    async def middleware(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Times the connection while it has no request, and the request otherwise."""
        connection = self._by_transport.get(id(request.transport))
        if connection is not None:
            connection.busy = True
            connection.expect(self.limits.handling_s)
        try:
            return await handler(request)
        finally:
            if connection is not None:
                connection.busy = False
                self._last_used(connection)
                connection.expect(self.limits.handling_s + self.limits.idle_s)

    def admit(self, connection: GuardedConnection, address: str) -> bool:
        """Count a connection, and close an idle one for it if all places are taken; False if that is impossible."""
        limits = self.limits
        if address == LOOPBACK:
            admitted = self._open[LOOPBACK] < limits.loopback or self._evict(LOOPBACK)
        elif self._open[address] >= limits.per_address:
            admitted = self._evict(address)
        else:
            by_address = {other: count for other, count in self._open.items() if other != LOOPBACK}
            largest = max(by_address, key=by_address.__getitem__, default=address)
            free = sum(by_address.values()) < limits.connections
            admitted = free or (by_address[largest] > self._open[address] + 1 and self._evict(largest))
        if not admitted:
            return False
        self._open[address] += 1
        self._guarded[id(connection)] = connection
        return True

    def begun(self, connection: GuardedConnection) -> None:
        """An admitted connection has its transport, which requests name."""
        self._by_transport[id(connection.transport)] = connection

    def release(self, connection: GuardedConnection, address: str) -> None:
        """A counted connection ended, or is closed for another one."""
        if self._guarded.pop(id(connection), None) is None:
            return
        self._by_transport.pop(id(connection.transport), None)
        self._open[address] -= 1
        if not self._open[address]:
            del self._open[address]

    def _last_used(self, connection: GuardedConnection) -> None:
        """Move it to the end of the connections, which are in the order of their last use."""
        if self._guarded.pop(id(connection), None) is not None:
            self._guarded[id(connection)] = connection

    def _evict(self, address: str) -> bool:
        """Close the connection of the address that is idle longest; False if all have a request in progress."""
        for connection in self._guarded.values():
            if connection.address == address and not connection.busy:
                self.release(connection, address)
                connection.close()
                return True
        return False

    def close(self) -> None:
        """Close all connections at once."""
        for connection in list(self._guarded.values()):
            connection.close()

    def __len__(self) -> int:
        return self._open.total()


class GuardedConnection(asyncio.Protocol):
    """Passes everything to the web server's protocol, and closes the connection when its time is up."""

    def __init__(self, guard: ConnectionGuard, inner: asyncio.Protocol) -> None:
        self._guard = guard
        self._inner = inner
        self.address = ""
        self.busy = False
        """Whether a request is in progress."""
        self._admitted = False
        self._begun = False
        """Whether the web server has the connection."""
        self._abort: Callable[[], object] = lambda: None
        self._timer: asyncio.TimerHandle | None = None
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        if not self._admitted and not self.accept(transport.get_extra_info("peername"), self.transport.abort):
            return
        self._abort = self.transport.abort
        self._begun = True
        self._guard.begun(self)
        self._inner.connection_made(transport)

    def accept(self, peer: object, abort: Callable[[], object]) -> bool:
        """Whether the connection is admitted; if not, it is closed by `abort`, and otherwise when its time is up."""
        self.address = client_address(peer)
        self._admitted = self._guard.admit(self, self.address)
        if self._admitted:
            self._abort = abort
            self.expect(self._guard.limits.request_s)
        else:
            abort()
        return self._admitted

    def expect(self, seconds: float) -> None:
        """Close the connection unless `expect` is called again within this time."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, self.close)

    def data_received(self, data: bytes) -> None:
        if self._begun:
            self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received() if self._begun else None

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._admitted:
            self._guard.release(self, self.address)
        if self._begun:
            self._inner.connection_lost(exc)

    def close(self) -> None:
        """Close the connection at once."""
        if self.transport is None or not self.transport.is_closing():
            self._abort()


class TlsListener:
    """Accepts connections, and admits each before its handshake."""

    def __init__(
        self,
        guard: ConnectionGuard,
        listener: socket.socket,
        tls: ssl.SSLContext,
        serve: Callable[[], asyncio.Protocol],
    ) -> None:
        """`listener`: does not block; `serve`: makes the web server's protocol of a connection."""
        self._guard = guard
        self._listener = listener
        self._tls = tls
        self._serve = serve
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        self._spawn(self._accept())

    def close(self) -> None:
        """Stop listening, and end connections whose handshake is in progress."""
        for task in self._tasks:
            task.cancel()
        self._listener.close()

    def _spawn(self, coroutine: Coroutine[object, object, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _accept(self) -> None:
        while True:
            try:
                accepted, peer = await asyncio.get_running_loop().sock_accept(self._listener)
            except OSError as error:
                log.once("accept", "Cannot accept a connection", err=error)
                await asyncio.sleep(ACCEPT_PAUSE_S)
                continue
            self._admit(accepted, peer)

    def _admit(self, accepted: socket.socket, peer: object) -> None:
        accepted.setblocking(False)
        connection = GuardedConnection(self._guard, self._serve())
        handshake = self._spawn(self._handshake(connection, accepted))

        def settled(_: asyncio.Task[None]) -> None:
            if connection.transport is None:
                connection.connection_lost(None)
                accepted.close()

        handshake.add_done_callback(settled)
        connection.accept(peer, handshake.cancel)

    async def _handshake(self, connection: GuardedConnection, accepted: socket.socket) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection,
                accepted,
                ssl=self._tls,
                ssl_handshake_timeout=self._guard.limits.request_s,
                ssl_shutdown_timeout=SHUTDOWN_S,
            )
        except OSError as error:  # includes SSLError
            log.debug("A TLS handshake failed", peer=connection.address, err=error)


def client_address(peer: object) -> str:
    """The peer's address, LOOPBACK for this machine. An IPv6 client counts by its network of 64 bits."""
    host = str(peer[0]) if isinstance(peer, tuple) and peer else ""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is None:
            network = ipaddress.ip_network((address, 64), strict=False)
            return LOOPBACK if address.is_loopback else str(network)
        address = address.ipv4_mapped
    return LOOPBACK if address.is_loopback else str(address)
