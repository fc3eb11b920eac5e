"""Writing requests over HTTP/1.1 connections that stay open: one request, one complete answer, nothing else.

A scheduler sends two writing requests per pod (Binding, Event). aiohttp's general client takes three times the CPU time
of this one for them. Reads and watches, which need compression, streaming or a proxy, stay with aiohttp
(`koordlet.kube.transport`). An answer is bounded in size and checked: what is not HTTP/1.x ends the connection with
MalformedAnswer. Nothing is sent again here.
"""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from email.parser import BytesHeaderParser
from typing import Any, Final, cast
from urllib.parse import quote, urlencode, urlsplit

MAX_HEAD_BYTES: Final = 64 << 10
MAX_BODY_BYTES: Final = 64 << 20
"""Forty times the size limit of an object in etcd."""
KEEP_IDLE_S: Final = 15.0
"""An idle connection is closed after this time: before a server or a load balancer closes it unnoticed."""

_STATUS = re.compile(rb"HTTP/1\.([01]) ([1-5]\d\d)(?: [^\r\n]*)?\r\n")
_LENGTH = re.compile(rb"\r\ncontent-length:([^\r\n]*)", re.IGNORECASE)
_ENCODING = re.compile(rb"\r\ntransfer-encoding:([^\r\n]*)", re.IGNORECASE)
_CLOSE = re.compile(rb"\r\nconnection:[^\r\n]*\bclose\b", re.IGNORECASE)
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,8})[ \t]*(?:;[^\r\n]*)?\r\n")
_MAX_CHUNK_HEAD = 256
_SAFE_IN_PATH = "/:@!$&'()*+,;=~%"


class NotConnected(OSError):
    """No connection was opened, so the request did not reach the server."""


class MalformedAnswer(OSError):
    """The server's answer is not HTTP/1.x, or too large."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A complete answer. `head` ends with an empty line."""

    status: int
    head: bytes
    body: bytes

    def headers(self) -> Mapping[str, str]:
        """The headers; names are found in any case."""
        fields = self.head[self.head.index(b"\r\n") + 2 :]
        return cast(Mapping[str, str], BytesHeaderParser().parsebytes(fields))


class AnswerReader:
    """Reads one answer from pieces of the stream."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._head = b""
        self._status = 0
        self._length: int | None = None
        """Of the body; None: chunked or until the connection's end."""
        self._chunked = False
        self._body = bytearray()
        self._chunk_left = 0
        self.keeps = True
        """Whether the connection can be used again."""

    def feed(self, data: bytes) -> Answer | None:
        """The answer, once it is complete. Raises MalformedAnswer."""
        self._data += data
        while not self._head:
            if not self._read_head():
                return None
        if self._length is not None:
            if len(self._data) < self._length:
                return None
            if len(self._data) > self._length:
                raise MalformedAnswer("data after the answer")
            return Answer(self._status, self._head, bytes(self._data))
        if self._chunked:
            return self._read_chunks()
        if len(self._data) > MAX_BODY_BYTES:
            raise MalformedAnswer(f"a body of more than {MAX_BODY_BYTES} bytes")
        return None

    def end(self) -> Answer | None:
        """The answer, if the end of the connection completes it."""
        if not self._head or self._length is not None or self._chunked:
            return None
        return Answer(self._status, self._head, bytes(self._data))

    def _read_head(self) -> bool:
        """Whether a head was read; an interim answer (1xx) is read, too, and then dropped."""
        at = self._data.find(b"\r\n\r\n", 0, MAX_HEAD_BYTES)
        if at < 0:
            if len(self._data) >= MAX_HEAD_BYTES:
                raise MalformedAnswer(f"no end of the headers within {MAX_HEAD_BYTES} bytes")
            return False
        head = bytes(self._data[: at + 4])
        del self._data[: at + 4]
        status = _STATUS.match(head)
        if status is None:
            raise MalformedAnswer("the answer does not begin with an HTTP/1.x status line")
        self._status = int(status[2])
        if self._status < 200:
            if self._status == 101:
                raise MalformedAnswer("the server changes the protocol")
            return True
        self._head = head
        lengths, encodings = ([each.strip() for each in pattern.findall(head)] for pattern in (_LENGTH, _ENCODING))
        self.keeps = status[1] == b"1" and _CLOSE.search(head) is None
        if encodings:
            if [each.lower() for each in encodings] != [b"chunked"] or lengths:
                raise MalformedAnswer("a transfer encoding other than chunked, or one beside a length")
            self._chunked = True
        elif self._status in (204, 304):
            self._length = 0
        elif lengths:
            if len(set(lengths)) > 1 or not lengths[0].isdigit() or len(lengths[0]) > 10:
                raise MalformedAnswer("Content-Length is not one number")
            self._length = int(lengths[0])
            if self._length > MAX_BODY_BYTES:
                raise MalformedAnswer(f"a body of more than {MAX_BODY_BYTES} bytes")
        else:
            self.keeps = False
        return True

    def _read_chunks(self) -> Answer | None:
        data, at = self._data, 0
        while True:
            if self._chunk_left:
                taken = min(self._chunk_left - 2, len(data) - at)
                if taken > 0:
                    self._body += data[at : at + taken]
                    at += taken
                    self._chunk_left -= taken
                if self._chunk_left > 2 or len(data) - at < 2:
                    break
                if data[at : at + 2] != b"\r\n":
                    raise MalformedAnswer("a chunk does not end where its size says")
                at += 2
                self._chunk_left = 0
            head = _CHUNK.match(data, at)
            if head is None:
                if len(data) - at > _MAX_CHUNK_HEAD or data.find(b"\n", at) >= 0:
                    raise MalformedAnswer("a chunk without a size")
                break
            size = int(head[1], 16)
            if not size:
                return self._read_trailer(head.start())
            if len(self._body) + size > MAX_BODY_BYTES:
                raise MalformedAnswer(f"a body of more than {MAX_BODY_BYTES} bytes")
            at = head.end()
            self._chunk_left = size + 2
        del data[:at]
        return None

    def _read_trailer(self, at: int) -> Answer | None:
        """What follows the last chunk, which begins at `at`: usually nothing."""
        data = self._data
        del data[:at]
        end = data.find(b"\r\n\r\n")
        if end < 0:
            if len(data) > MAX_HEAD_BYTES:
                raise MalformedAnswer("no end of the trailer")
            return None
        if len(data) > end + 4:
            raise MalformedAnswer("data after the answer")
        return Answer(self._status, self._head, bytes(self._body))


class _Connection(asyncio.Protocol):
    """One connection: at most one request at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._reader: AnswerReader | None = None
        self._answer: asyncio.Future[Answer] | None = None
        self.open = False
        self.idle_since = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.open = True

    def data_received(self, data: bytes) -> None:
        if self._reader is None or self._answer is None:
            self.abort()  # nothing was requested
            return
        try:
            answer = self._reader.feed(data)
        except MalformedAnswer as error:
            self._fail(error)
            self.abort()
            return
        if answer is not None:
            self._complete(answer, self._reader.keeps)

    def connection_lost(self, exc: Exception | None) -> None:
        self.open = False
        answer = self._reader.end() if self._reader is not None and exc is None else None
        if answer is not None:
            self._complete(answer, False)
        else:
            self._fail(exc or ConnectionResetError("the server closed the connection"))

    async def send(self, request: bytes, seconds: float) -> Answer:
        """Raises OSError; TimeoutError after `seconds`. The connection is closed then, as after a cancellation."""
        assert self._transport is not None
        loop = asyncio.get_running_loop()
        self._reader, self._answer = AnswerReader(), loop.create_future()
        timer = loop.call_later(seconds, self._fail, TimeoutError())
        self._transport.write(request)
        try:
            return await self._answer
        except BaseException:
            self.abort()
            raise
        finally:
            timer.cancel()
            self._reader = self._answer = None

    def abort(self) -> None:
        self.open = False
        if self._transport is not None:
            self._transport.abort()

    def _complete(self, answer: Answer, keeps: bool) -> None:
        if not keeps:
            self.abort()
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(answer)

    def _fail(self, error: Exception) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)


class Exchange:
    """The connections to one server. The caller bounds the number of requests at a time."""

    def __init__(
        self,
        server: str,
        *,
        context: ssl.SSLContext | None,
        server_hostname: str | None,
        user_agent: str,
        configure: Callable[[Any], object],
    ) -> None:
        """`configure` sets the options of a new socket."""
        parts = urlsplit(server)
        self._host = parts.hostname or ""
        secure = parts.scheme == "https"
        self._port = parts.port or (443 if secure else 80)
        self._tls: ssl.SSLContext | bool | None = (context or True) if secure else None
        self._server_hostname = (server_hostname or self._host) if secure else None
        self._base = parts.path.rstrip("/")
        self._common = f"Host: {parts.netloc.rpartition('@')[2]}\r\nUser-Agent: {user_agent}\r\n"
        self._configure = configure
        self._idle: list[_Connection] = []
        self._sweep: asyncio.TimerHandle | None = None

    async def request(
        self,
        method: str,
        path: str,
        params: Mapping[str, str] | None,
        headers: Mapping[str, str],
        body: bytes | None,
        *,
        seconds: float,
        connect_seconds: float,
    ) -> Answer:
        """Raises NotConnected if no connection can be opened, other OSErrors once the request may have been sent."""
        data = self._written(method, path, params, headers, body)
        connection = self._take() or await self._connect(min(seconds, connect_seconds))
        answer = await connection.send(data, seconds)
        if connection.open:
            self._keep(connection)
        return answer

    def close(self) -> None:
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.abort()

    def _written(
        self,
        method: str,
        path: str,
        params: Mapping[str, str] | None,
        headers: Mapping[str, str],
        body: bytes | None,
    ) -> bytes:
        """The request as bytes. Raises ValueError if a header contains a line end."""
        target = self._base + quote(path, safe=_SAFE_IN_PATH)
        if params:
            target += "?" + urlencode(params)
        fields = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
        if fields.count("\n") + fields.count("\r") != 2 * len(headers):
            raise ValueError("a header of a request contains a line end")
        length = 0 if body is None else len(body)
        head = f"{method} {target} HTTP/1.1\r\n{self._common}{fields}Content-Length: {length}\r\n\r\n"
        return head.encode() + (body or b"")

    def _take(self) -> _Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.open:
                return connection
        return None

    def _keep(self, connection: _Connection) -> None:
        loop = asyncio.get_running_loop()
        connection.idle_since = loop.time()
        self._idle.append(connection)
        if self._sweep is None:
            self._sweep = loop.call_later(KEEP_IDLE_S, self._close_old)

    def _close_old(self) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() - KEEP_IDLE_S
        for connection in self._idle:
            if connection.idle_since <= until:
                connection.abort()
        self._idle = [connection for connection in self._idle if connection.open]
        self._sweep = loop.call_later(KEEP_IDLE_S, self._close_old) if self._idle else None

    async def _connect(self, seconds: float) -> _Connection:
        loop = asyncio.get_running_loop()
        opening: Awaitable[tuple[Any, _Connection]] = loop.create_connection(
            _Connection,
            self._host,
            self._port,
            ssl=self._tls,
            server_hostname=self._server_hostname,
            happy_eyeballs_delay=0.25,
        )
        try:
            async with asyncio.timeout(seconds):
                transport, connection = await opening
        except (OSError, TimeoutError) as error:
            raise NotConnected(f"cannot connect to {self._host}:{self._port}") from error
        self._configure(cast(socket.socket, transport.get_extra_info("socket")))
        return connection
