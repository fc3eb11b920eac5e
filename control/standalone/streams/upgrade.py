"""The client side of an HTTP/1.1 upgrade: a connection to the next server on which both sides then send raw bytes."""

from __future__ import annotations

import asyncio
import http.client
import io
import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from email.message import Message
from typing import Final

HEAD_LIMIT_BYTES: Final = 64 * 1024
"""Of a response's head, and of the body of a refusal."""
CONNECT_SECONDS: Final = 10.0
ANSWER_SECONDS: Final = 30.0
SPDY: Final = "SPDY/3.1"
PROTOCOL_VERSION: Final = "X-Stream-Protocol-Version"


class UpgradeRefused(Exception):
    """The server answered with another status than 101; `status` is at least 400, and `text` is its body."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where the next server listens. `tls` None: plain TCP."""

    host: str
    port: int
    tls: ssl.SSLContext | None = None
    server_name: str | None = None
    """The name for which the server's certificate must be valid."""

    @property
    def authority(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(slots=True)
class Upgraded:
    """A connection after the response 101, with that response's headers."""

    headers: Message
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def read(self) -> bytes:
        return await self.reader.read(HEAD_LIMIT_BYTES)

    async def write(self, data: bytes) -> None:
        """Waits while the other side reads more slowly."""
        self.writer.write(data)
        await self.writer.drain()

    def close(self) -> None:
        self.writer.transport.abort()


async def connect(endpoint: Endpoint, method: str, path: str, headers: Iterable[tuple[str, str]]) -> Upgraded:
    """Request an upgrade; `headers` name its protocol.

    Raises UpgradeRefused, or OSError (with TimeoutError and ssl.SSLError) if there is no valid response.
    """
    async with asyncio.timeout(CONNECT_SECONDS):
        reader, writer = await asyncio.open_connection(
            endpoint.host, endpoint.port, ssl=endpoint.tls, server_hostname=endpoint.server_name, limit=HEAD_LIMIT_BYTES
        )
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            writer.write(_head(endpoint, method, path, headers))
            await writer.drain()
            status, answer = await _response(reader)
            if status == 101:
                return Upgraded(answer, reader, writer)
            raise UpgradeRefused(status if status >= 400 else 502, await _body(reader, answer, status))
    except BaseException:
        writer.transport.abort()
        raise


def _head(endpoint: Endpoint, method: str, path: str, headers: Iterable[tuple[str, str]]) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", f"Host: {endpoint.authority}", "Connection: Upgrade"]
    lines += [f"{name}: {value}" for name, value in headers]
    if method == "POST":
        lines.append("Content-Length: 0")
    if any(character in line for line in lines for character in "\r\n\0"):
        raise ValueError("a line break in a request's path or headers")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


async def _response(reader: asyncio.StreamReader) -> tuple[int, Message]:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        first, _, rest = head.partition(b"\r\n")
        version, _, after = first.decode("latin-1").partition(" ")
        status = int(after.split(" ")[0])
        if not version.startswith("HTTP/1."):
            raise ValueError(version)
        return status, http.client.parse_headers(io.BytesIO(rest))
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError, http.client.HTTPException) as error:
        raise ConnectionError(f"no valid response to the upgrade: {error}") from error


async def _body(reader: asyncio.StreamReader, headers: Message, status: int) -> str:
    """The text of a refusal, cut at the limit."""
    if status < 400:
        return f"invalid upgrade response: status code {status}"
    length = str(headers.get("Content-Length", ""))
    size = min(int(length), HEAD_LIMIT_BYTES) if length.isdecimal() else HEAD_LIMIT_BYTES
    body = b""
    while len(body) < size and (data := await reader.read(size - len(body))):
        body += data
    return body.decode(errors="replace").strip()
