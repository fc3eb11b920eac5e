"""Requests to one server over kept-alive HTTP/1.1 connections, parsed by httptools. A long answer need not be held.

Cheaper than aiohttp's client (docs/decisions.md). Nothing is compressed, and redirects are not followed.
"""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
import threading
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import Final, NamedTuple, cast
from urllib.parse import quote, urlencode, urlsplit

import httptools

CONNECT_TIMEOUT_S: Final = 10.0
IDLE_S: Final = 15.0
"""A connection that was idle for longer is closed: the server may close it just when a request is sent."""
MAX_BODY_BYTES: Final = 32 << 20
"""An object has 1.5 MiB in etcd, up to 9 MiB as JSON, which escapes `<`. 500 ordinary pods have 5 MiB."""
MAX_HEAD_BYTES: Final = 256 << 10
"""Received without a byte of a body: the heads of an answer and of those that precede it, or its trailers."""
RECEIVED_BYTES: Final = 64 << 10
"""Received at a time. Each longer copy would be a new mapping (`koordlet.app.heap`), whose page faults take four times
the time of TLS."""
_UNSAFE: Final = re.compile(r"[^\w/?%:@!$&'()*+,;=.~-]", re.ASCII)
_LINE_BREAK: Final = re.compile(r"[\r\n\0]")


class NotConnected(ConnectionError):
    """There is no connection: the server has not seen the request."""


class BodyTooLong(Exception):
    """The answer has a longer body than the caller takes."""


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes


class _Received(threading.local):
    """What an event loop has just received: its connections take turns."""

    def __init__(self) -> None:
        self.buffer: Final = memoryview(bytearray(RECEIVED_BYTES))


_RECEIVED: Final = _Received()


def _whole(part: bytes) -> bytes:
    return part


class _Connection(asyncio.BufferedProtocol):
    """One request at a time."""

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._answer: asyncio.Future[Answer] | None = None
        self._headers: dict[str, str] = {}
        self._parts: list[bytes] = []
        self._take: Callable[[bytes], bytes | None] = _whole
        self._arrived = asyncio.Event()
        """Set when there are parts or the answer has ended."""
        self._head_bytes = 0
        self._room = 0
        """Bytes of the body that may still arrive."""
        self.is_reusable = False
        self.idle_since = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is not a subclass
        set_keepalive(transport.get_extra_info("socket"))

    def get_buffer(self, sizehint: int) -> memoryview:
        return _RECEIVED.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._head_bytes += nbytes
        try:
            self._parser.feed_data(_RECEIVED.buffer[:nbytes])
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(ConnectionError(f"the answer is not HTTP: {error}"))
        if self._head_bytes > MAX_HEAD_BYTES:
            self._fail(ConnectionError(f"the head of the answer has more than {MAX_HEAD_BYTES} bytes"))

    def connection_lost(self, error: Exception | None) -> None:
        self._fail(error or ConnectionResetError("the server closed the connection"))

    def on_message_begin(self) -> None:
        if self._answer is None or self._answer.done():  # the parser raises HttpParserError and ends
            raise ConnectionError("not the answer to a request")
        self._headers, self._parts = {}, []

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        self._head_bytes = 0
        self._room -= len(body)
        if self._room < 0:
            self._parts = []
            self._fail(BodyTooLong("the answer is too long"))
            return
        try:
            part = self._take(body)
        except ValueError as error:
            self._fail(error)
            return
        if part is not None:
            self._parts.append(part)
            self._arrived.set()

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200 or self._answer is None or self._answer.done():  # below 200 the answer follows
            return
        self.is_reusable = self._parser.should_keep_alive()
        self._answer.set_result(Answer(status, self._headers, b""))

    async def exchange(self, request: bytes, max_bytes: int) -> Answer:
        """The answer. The connection is closed unless it `is_reusable` afterwards."""
        answer = self._send(request, max_bytes, _whole)
        try:
            return (await answer)._replace(body=b"".join(self._parts))
        finally:
            self._end()

    async def stream(
        self, request: bytes, max_bytes: int, take: Callable[[bytes], bytes | None]
    ) -> AsyncGenerator[Answer, None]:
        """As `Connections.stream`. The connection is closed unless it `is_reusable` afterwards."""
        answer = self._send(request, max_bytes, take)
        answer.add_done_callback(self._ended)
        try:
            while not answer.done() or self._parts:
                await self._arrived.wait()
                self._arrived.clear()
                parts, self._parts = self._parts, []
                for part in parts:
                    yield Answer(self._parser.get_status_code(), self._headers, part)
            yield answer.result()
        finally:
            self._end()

    def _ended(self, answer: asyncio.Future[Answer]) -> None:
        answer.exception()  # asyncio logs an error that nobody retrieves, as when the reader has left
        self._arrived.set()

    def _send(self, request: bytes, max_bytes: int, take: Callable[[bytes], bytes | None]) -> asyncio.Future[Answer]:
        self.is_reusable = False
        self._head_bytes, self._room, self._take = 0, max_bytes, take
        self._arrived.clear()
        self._answer = answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return answer

    def _end(self) -> None:
        self._answer, self._parts, self._take = None, [], _whole
        if not self.is_reusable:
            self.close()

    def close(self) -> None:
        self.is_reusable = False
        self._transport.abort()

    def _fail(self, error: Exception) -> None:
        self.close()
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)


class Connections:
    """`server`: scheme, host, port and prefix of paths. `context`: of TLS; None: the system's CAs."""

    def __init__(self, server: str, context: ssl.SSLContext | None, server_hostname: str | None = None) -> None:
        url = urlsplit(server)
        is_secure = url.scheme == "https"
        self._host = url.hostname or ""
        self._port = url.port or (443 if is_secure else 80)
        self._prefix = url.path.rstrip("/")
        self._host_header = url.netloc.rpartition("@")[2]
        self._context = (context or ssl.create_default_context()) if is_secure else None
        self._server_hostname = (server_hostname or self._host) if is_secure else None
        self._idle: list[_Connection] = []
        self._sweep_timer: asyncio.TimerHandle | None = None

    async def request(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes | None,
        *,
        max_bytes: int = MAX_BODY_BYTES,
    ) -> Answer:
        """One attempt. Raises NotConnected, another OSError if the connection is lost, BodyTooLong, and ValueError for
        a header with a line break."""
        head = self._head(method, target, headers, body)
        connection = self._take_idle() or await self._connect()
        answer = await connection.exchange(head + body if body else head, max_bytes)
        if connection.is_reusable:
            self._put_idle(connection)
        return answer

    async def stream(
        self, target: str, headers: Mapping[str, str], take: Callable[[bytes], bytes | None], *, max_bytes: int
    ) -> AsyncGenerator[Answer, None]:
        """The answer to a GET while it arrives: `take` gets each part of the body, and each answer has what it returned
        for one of them, the last answer nothing. Raises what `request` raises, and ValueErrors of `take`."""
        head = self._head("GET", target, headers, None)
        connection = self._take_idle() or await self._connect()
        async with aclosing(connection.stream(head, max_bytes, take)) as answers:
            async for answer in answers:
                yield answer
        if connection.is_reusable:
            self._put_idle(connection)

    def _head(self, method: str, target: str, headers: Mapping[str, str], body: bytes | None) -> bytes:
        """Raises ValueError."""
        lines = [f"{method} {self._prefix}{target} HTTP/1.1", f"Host: {self._host_header}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if body is not None or method not in ("GET", "HEAD"):
            lines.append(f"Content-Length: {len(body or b'')}")
        for line in lines:
            if _LINE_BREAK.search(line):
                raise ValueError(f"{line.partition(':')[0]!r}: a line break in the request's head")
        return "\r\n".join([*lines, "\r\n"]).encode("utf-8")

    def close(self) -> None:
        """Close the idle connections."""
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
            self._sweep_timer = None
        for connection in self._idle:
            connection.close()
        self._idle.clear()

    def _take_idle(self) -> _Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_reusable:
                return connection
        return None

    def _put_idle(self, connection: _Connection) -> None:
        loop = asyncio.get_running_loop()
        connection.idle_since = loop.time()
        self._idle.append(connection)
        if self._sweep_timer is None:
            self._sweep_timer = loop.call_later(IDLE_S, self._sweep)

    def _sweep(self) -> None:
        """Close the connections that were idle for too long; the last ones used are at the end."""
        loop = asyncio.get_running_loop()
        while self._idle and (not self._idle[0].is_reusable or loop.time() - self._idle[0].idle_since >= IDLE_S):
            self._idle.pop(0).close()
        self._sweep_timer = loop.call_at(self._idle[0].idle_since + IDLE_S, self._sweep) if self._idle else None

    async def _connect(self) -> _Connection:
        where = f"cannot connect to {self._host}:{self._port}"
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                _, connection = await loop.create_connection(
                    _Connection, self._host, self._port, ssl=self._context, server_hostname=self._server_hostname
                )
        except TimeoutError as error:
            raise NotConnected(f"{where} for {CONNECT_TIMEOUT_S:.0f} s") from error
        except OSError as error:
            raise NotConnected(where) from error
        return connection


def request_target(path: str, params: Mapping[str, str] | None = None) -> str:
    """The path with its query, as it is sent."""
    target = quote(path, safe="/?%:@!$&'()*+,;=~") if _UNSAFE.search(path) else path
    if not params:
        return target
    return f"{target}{'&' if '?' in target else '?'}{urlencode(params)}"


def set_keepalive(connection: socket.socket) -> None:
    """Detect a dead peer within about a minute, also while nothing is sent."""
    for option, value in (
        (socket.TCP_KEEPIDLE, 20),
        (socket.TCP_KEEPINTVL, 10),
        (socket.TCP_KEEPCNT, 3),
        (socket.TCP_USER_TIMEOUT, 50_000),  # ms; limits unacknowledged writes, as keep-alive limits idle connections
    ):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
