"""Serves /metrics and /healthz over HTTP/1 without aiohttp, which would double the proxy's memory and slow its start.

Supports GET of two pages, one response per connection. By default reachable from this host only (`--metrics-addr`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from koordlet.app.logging import get_logger

log = get_logger(__name__)

_MAX_HEAD_BYTES = 16384
_REQUEST_TIMEOUT_S = 10.0
_MAX_CONNECTIONS = 64
"""For one more, the oldest is closed: silent clients must not keep probes out, nor use up descriptors."""
_REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}


class MetricsPage:
    """A service for `Runner`. An unusable address is logged only, as the proxy's work does not depend on the page."""

    name = "page"

    def __init__(
        self, host: str | None, port: int, registry: CollectorRegistry, healthy: Callable[[], Awaitable[str | None]]
    ) -> None:
        """`healthy`: None, or the problem."""
        self._host = host
        self.port = port
        self._registry = registry
        self._healthy = healthy
        self._server: asyncio.AbstractServer | None = None
        self._open: dict[asyncio.StreamWriter, None] = {}
        """Connections, the oldest first."""

    async def start(self) -> None:
        try:
            self._server = await asyncio.start_server(self._serve, self._host, self.port, limit=_MAX_HEAD_BYTES)
        except OSError as error:
            log.warning("Cannot serve metrics", host=self._host, port=self.port, err=error)
            return
        self.port = self._server.sockets[0].getsockname()[1]
        log.info("Serving metrics", host=self._host, port=self.port)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._open) >= _MAX_CONNECTIONS:
            oldest = next(iter(self._open))
            del self._open[oldest]
            oldest.transport.abort()
        self._open[writer] = None
        try:
            async with asyncio.timeout(_REQUEST_TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
                status, kind, body = await self._respond(head)
                writer.write(
                    f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: {kind}\r\n"
                    f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode()
                    + body
                )
                await writer.drain()
        except (OSError, EOFError, asyncio.LimitOverrunError, TimeoutError) as error:
            log.debug("Client of the metrics page disconnected", err=error)
        finally:
            self._open.pop(writer, None)
            writer.close()

    async def _respond(self, head: bytes) -> tuple[int, str, bytes]:
        words = head.split(b"\r\n", 1)[0].split(b" ")
        plain = "text/plain; charset=utf-8"
        if len(words) != 3:
            return 400, plain, b"not a request\n"
        if words[0] != b"GET":
            return 405, plain, b"GET only\n"
        match words[1].split(b"?", 1)[0]:
            case b"/metrics":
                return 200, CONTENT_TYPE_PLAIN_0_0_4, generate_latest(self._registry)
            case b"/healthz" | b"/livez" | b"/readyz":
                problem = await self._healthy()
                return (200, plain, b"ok") if problem is None else (503, plain, f"{problem}\n".encode())
        return 404, plain, b"only /metrics and /healthz exist\n"
