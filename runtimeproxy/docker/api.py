"""The few questions that the proxy asks dockerd itself: its cgroup driver, its containers, one container.

One connection a question (many questions at once share some: `kept`), without an API version in the path, so that every
dockerd answers in its own (the oldest served version rises with Docker's releases). Called at start, for what the store
doesn't know or not all of, and of a dockerd that was started again.
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
SECONDS = 10.0
"""For one question, of which each is answered from dockerd's memory. But a description waits for the container's lock,
which dockerd holds as long as it is starting the container."""


class DockerError(Exception):
    """dockerd can't be reached or doesn't answer the question; the message has path and reason."""


class NoSuchContainer(DockerError):
    """404."""


class Info(msgspec.Struct, rename="pascal"):
    cgroup_driver: str = "cgroupfs"


class Listed(msgspec.Struct, rename="pascal"):
    """One container of the list; names begin with a slash."""

    id: str
    names: list[str] | None = None
    labels: dict[str, str] | None = None


class Config(msgspec.Struct, rename="pascal"):
    labels: dict[str, str] | None = None
    env: list[str] | None = None


class Inspected(msgspec.Struct, rename="pascal"):
    id: str
    name: str
    config: Config
    host_config: msgspec.Raw = msgspec.field(name="HostConfig", default=msgspec.Raw(b"{}"))


class _Kept:
    """Connections that stay open behind their questions, for the next ones or to see them end."""

    def __init__(self) -> None:
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self._closed = False

    async def take(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        """One that dockerd hasn't ended."""
        while self._idle:
            reader, writer = self._idle.pop()
            if not _ended(reader):
                return reader, writer
            await _close(writer)
        return None

    def put(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Whether it is kept."""
        if not self._closed:
            self._idle.append((reader, writer))
        return not self._closed

    @property
    def live(self) -> bool:
        """Whether dockerd has left one open."""
        return any(not _ended(reader) for reader, _ in self._idle)

    async def close(self) -> None:
        self._closed = True
        while self._idle:
            await _close(self._idle.pop()[1])


class DockerApi:
    """Questions over the socket `backend`; each raises DockerError."""

    def __init__(self, backend: Path, *, seconds: float = SECONDS) -> None:
        self._backend = backend
        self._seconds = seconds
        self._kept: _Kept | None = None
        self._witness = _Kept()
        """The connection on which `info` was answered."""

    @contextlib.asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        """Inside, a question takes a connection that an earlier one is done with."""
        kept = self._kept = _Kept()
        try:
            yield
        finally:
            self._kept = None
            await kept.close()

    async def info(self) -> Info:
        """What holds as long as this dockerd runs: see `restarted`."""
        await self._witness.close()
        witness = _Kept()
        try:
            found = await self._get("/info", Info, witness)
        except BaseException:
            await witness.close()
            raise
        self._witness = witness
        return found

    @property
    def restarted(self) -> bool:
        """Whether there may be another dockerd than the one that `info` asked: that connection has ended. The socket's
        file does not tell, systemd may have made it."""
        return not self._witness.live

    async def close(self) -> None:
        """Let go of what `info` has left open."""
        await self._witness.close()

    async def containers(self) -> list[Listed]:
        """All of them, stopped ones too."""
        return await self._get("/containers/json?all=1", list[Listed])

    async def inspect(self, container_id: str) -> Inspected:
        """Raises NoSuchContainer when dockerd doesn't know it."""
        return await self._get(f"/containers/{quote(container_id, safe='')}/json", Inspected)

    async def ping(self) -> None:
        """Whether dockerd answers at all."""
        await self._ask("/_ping")

    async def _get(self, path: str, kind: type[_T], kept: _Kept | None = None) -> _T:
        body = await self._ask(path, kept)
        try:
            return msgspec.json.decode(body, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise DockerError(f"GET {path}: {error}") from error

    async def _ask(self, path: str, kept: _Kept | None = None) -> bytes:
        try:
            async with asyncio.timeout(self._seconds):
                status, body = await self._exchange(path, kept or self._kept)
        except TimeoutError as error:
            raise DockerError(f"GET {path} on {self._backend}: no answer in {self._seconds:g} s") from error
        except (OSError, EOFError, http1.NotHttp) as error:
            raise DockerError(f"GET {path} on {self._backend}: {error or type(error).__name__}") from error
        if status != 200:
            kind = NoSuchContainer if status == 404 else DockerError
            raise kind(f"GET {path}: {status} {_message(body)}")
        return body

    async def _exchange(self, path: str, kept: _Kept | None) -> tuple[int, bytes]:
        found = await kept.take() if kept is not None else None
        reader, writer = found or await asyncio.open_unix_connection(str(self._backend))
        keep = False
        try:
            last = "Connection: close\r\n" if kept is None else ""
            writer.write(f"GET {path} HTTP/1.1\r\nHost: docker\r\n{last}\r\n".encode())
            data = bytearray()
            while not (end := http1.split_head(data)):
                data += await _some(reader)
            head = http1.parse_response(bytes(data[:end]))
            said = bytearray()
            body = http1.response_body(head, b"GET", said.extend)
            if body is None:
                return head.status, bytes(data[end:]) + await reader.read()
            body.take(bytes(data[end:]))
            while not body.done:
                body.take(await _some(reader))
            keep = b"close" not in head.tokens(b"connection")
            return head.status, bytes(said)
        finally:
            if not (keep and kept is not None and kept.put(reader, writer)):
                await _close(writer)


def _ended(reader: asyncio.StreamReader) -> bool:
    """By the other side."""
    return reader.at_eof() or reader.exception() is not None


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    try:
        await writer.wait_closed()
    except OSError:  # its end was asked for
        writer.transport.abort()


async def _some(reader: asyncio.StreamReader) -> bytes:
    data = await reader.read(1 << 16)
    if not data:
        raise EOFError("the connection ended in the middle of an answer")
    return data


def _message(body: bytes) -> str:
    try:
        answer: Mapping[str, Any] = msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return body[:200].decode("latin-1")
    return str(answer.get("message", answer))
