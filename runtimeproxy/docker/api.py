"""The proxy's own requests to dockerd: its cgroup driver, the list of containers, one container.

Each request has its own connection (`pooled` shares some between many requests). Paths have no API version, so that
every dockerd responds in its own (the oldest served version rises with Docker's releases). Used at start, for objects
that the store lacks or knows incompletely, and after a restart of dockerd.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec

from runtimeproxy.docker import http1

_T = TypeVar("_T")
TIMEOUT_S = 10.0
"""Timeout of one request. dockerd serves these from memory, but inspecting waits for the container's lock, which
dockerd holds while it starts the container."""


class DockerError(Exception):
    """dockerd cannot be reached or does not respond; the message has path and reason."""


class NoSuchContainer(DockerError):
    """404."""


class DockerInfo(msgspec.Struct, rename="pascal"):
    cgroup_driver: str = "cgroupfs"


class ListedContainer(msgspec.Struct, rename="pascal"):
    """One container of the list; names begin with a slash."""

    id: str
    names: list[str] | None = None
    labels: dict[str, str] | None = None


class InspectedConfig(msgspec.Struct, rename="pascal"):
    labels: dict[str, str] | None = None
    env: list[str] | None = None


class InspectedContainer(msgspec.Struct, rename="pascal"):
    id: str
    name: str
    config: InspectedConfig
    host_config: msgspec.Raw = msgspec.field(name="HostConfig", default=msgspec.Raw(b"{}"))


class _ConnectionPool:
    """Connections that stay open after their requests, for further requests or to detect that dockerd closes them."""

    def __init__(self) -> None:
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self._closed = False

    async def take(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        """A connection that dockerd has not closed."""
        while self._idle:
            reader, writer = self._idle.pop()
            if not _ended(reader):
                return reader, writer
            await _close(writer)
        return None

    def put(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Whether the connection is pool."""
        if not self._closed:
            self._idle.append((reader, writer))
        return not self._closed

    @property
    def live(self) -> bool:
        """Whether a connection is still open at dockerd's side."""
        return any(not _ended(reader) for reader, _ in self._idle)

    async def close(self) -> None:
        self._closed = True
        while self._idle:
            await _close(self._idle.pop()[1])


class DockerApi:
    """Requests over the socket `backend`; each raises DockerError."""

    def __init__(self, backend: Path, *, timeout: float = TIMEOUT_S) -> None:
        self._backend = backend
        self._timeout = timeout
        self._pool: _ConnectionPool | None = None
        self._witness = _ConnectionPool()
        """The connection on which `info` was answered."""

    @contextlib.asynccontextmanager
    async def pooled(self) -> AsyncIterator[None]:
        """Inside, requests reuse connections of finished requests."""
        pool = self._pool = _ConnectionPool()
        try:
            yield
        finally:
            self._pool = None
            await pool.close()

    async def info(self) -> DockerInfo:
        """Information that is valid while this dockerd runs: see `restarted`."""
        await self._witness.close()
        witness = _ConnectionPool()
        try:
            info = await self._get("/info", DockerInfo, witness)
        except BaseException:
            await witness.close()
            raise
        self._witness = witness
        return info

    @property
    def restarted(self) -> bool:
        """Whether dockerd may have been restarted since `info`: the connection of that request is closed. The socket
        file does not show it, as systemd may own it."""
        return not self._witness.live

    async def close(self) -> None:
        """Close the connection that `info` has left open."""
        await self._witness.close()

    async def containers(self) -> list[ListedContainer]:
        """All containers, stopped ones included."""
        return await self._get("/containers/json?all=1", list[ListedContainer])

    async def inspect(self, container_id: str) -> InspectedContainer:
        """Raises NoSuchContainer when dockerd does not know it."""
        return await self._get(f"/containers/{quote(container_id, safe='')}/json", InspectedContainer)

    async def ping(self) -> None:
        """Check that dockerd responds."""
        await self._request("/_ping")

    async def _get(self, path: str, kind: type[_T], pool: _ConnectionPool | None = None) -> _T:
        body = await self._request(path, pool)
        try:
            return msgspec.json.decode(body, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise DockerError(f"GET {path}: {error}") from error

    async def _request(self, path: str, pool: _ConnectionPool | None = None) -> bytes:
        try:
            async with asyncio.timeout(self._timeout):
                status, body = await self._exchange(path, pool or self._pool)
        except TimeoutError as error:
            raise DockerError(f"GET {path} on {self._backend}: no response in {self._timeout:g} s") from error
        except (OSError, EOFError, http1.NotHttp1) as error:
            raise DockerError(f"GET {path} on {self._backend}: {error or type(error).__name__}") from error
        if status != 200:
            kind = NoSuchContainer if status == 404 else DockerError
            raise kind(f"GET {path}: {status} {_message(body)}")
        return body

    async def _exchange(self, path: str, pool: _ConnectionPool | None) -> tuple[int, bytes]:
        connection = await pool.take() if pool is not None else None
        reader, writer = connection or await asyncio.open_unix_connection(str(self._backend))
        keep = False
        try:
            last = "Connection: close\r\n" if pool is None else ""
            writer.write(f"GET {path} HTTP/1.1\r\nHost: docker\r\n{last}\r\n".encode())
            data = bytearray()
            while not (end := http1.split_head(data)):
                data += await _some(reader)
            head = http1.parse_response(bytes(data[:end]))
            payload = bytearray()
            body = http1.response_body(head, b"GET", payload.extend)
            if body is None:
                return head.status, bytes(data[end:]) + await reader.read()
            body.take(bytes(data[end:]))
            while not body.done:
                body.take(await _some(reader))
            keep = b"close" not in head.tokens(b"connection")
            return head.status, bytes(payload)
        finally:
            if not (keep and pool is not None and pool.put(reader, writer)):
                await _close(writer)


def _ended(reader: asyncio.StreamReader) -> bool:
    """Closed by the other side."""
    return reader.at_eof() or reader.exception() is not None


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    try:
        await writer.wait_closed()
    except OSError:  # it was to be closed anyway
        writer.transport.abort()


async def _some(reader: asyncio.StreamReader) -> bytes:
    data = await reader.read(1 << 16)
    if not data:
        raise EOFError("the connection ended in the middle of a response")
    return data


def _message(body: bytes) -> str:
    try:
        document: Mapping[str, Any] = msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return body[:200].decode("latin-1")
    return str(document.get("message", document))
