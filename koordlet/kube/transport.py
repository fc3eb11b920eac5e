"""HTTP to the API server: authentication, client-side rate limit, timeouts, retries, typed errors.

Requests use `Connections`; watches, logs and everything through a proxy use aiohttp's client.

Retried a few times with jittered back-off: a request that the server rejected unprocessed (429, or 5xx with
Retry-After), a connection that could not be opened, and for idempotent requests (GET, server-side apply, those marked
`repeatable`) also a 5xx without Retry-After and a lost connection. A 401 is retried once if the credentials can be
renewed. All other errors are raised.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from prometheus_client import CollectorRegistry
from yarl import URL

from koordlet.app.clock import SYSTEM_CLOCK, Clock
from koordlet.app.logging import describe
from koordlet.kube.config import ClientConfig
from koordlet.kube.connections import (
    CONNECT_TIMEOUT_S,
    MAX_BODY_BYTES,
    BodyTooLong,
    Connections,
    NotConnected,
    request_target,
    set_keepalive,
)
from koordlet.kube.errors import AnswerTooLong, ApiError, ConnectionFailed, Unauthorized, from_response
from koordlet.kube.metrics import ClientMetrics
from koordlet.kube.ratelimit import ExponentialBackoff, TokenBucket

_MAX_ATTEMPTS = 5
_MAX_RETRY_AFTER_S = 60.0
_RETRY_CODES = frozenset({429, 500, 502, 503, 504})
_MAX_CONCURRENT = 32
"""Requests at a time, without watches. Each has a connection of its own, and a TLS handshake costs both sides as much
as several requests: a burst of thousands waits for the connections that exist."""
_NOT_CONNECTED = (NotConnected, aiohttp.ClientConnectorError)
_ANY_CONNECTION_ERROR = (aiohttp.ClientError, TimeoutError, OSError)


def api_group(path: str) -> str:
    """`/api/v1` or `/apis/GROUP/VERSION`; "" for other paths."""
    parts = path.split("/", 4)
    if parts[1:2] == ["api"]:
        return "/".join(parts[:3])
    return "/".join(parts[:4]) if parts[1:2] == ["apis"] else ""


class Transport:
    """Owns the connections and the aiohttp session; both belong to the loop that runs at the first request."""

    def __init__(
        self,
        config: ClientConfig,
        *,
        clock: Clock = SYSTEM_CLOCK,
        registry: CollectorRegistry | None = None,
    ) -> None:
        self.config = config
        self._clock = clock
        self._buckets: dict[str, TokenBucket] = {}  # by API group and version, as in client-go
        self._metrics = ClientMetrics.of(registry)
        self._session: aiohttp.ClientSession | None = None
        self._connections: Connections | None = None
        self._slots = asyncio.Semaphore(_MAX_CONCURRENT)

    def _bucket(self, path: str) -> TokenBucket:
        """The rate limit of the API group that a path belongs to: a busy group doesn't slow the others down."""
        group = api_group(path)
        bucket = self._buckets.get(group)
        if bucket is None:
            bucket = self._buckets[group] = TokenBucket(self.config.qps, self.config.burst, clock=self._clock)
        return bucket

    async def _wait_for_token(self, path: str) -> None:
        waited = await self._bucket(path).acquire()
        if waited:
            self._metrics.throttled.inc(waited)

    async def close(self) -> None:
        connections, session = self._connections, self._session
        self._connections = self._session = None
        if connections is not None:
            connections.close()
        if session is not None:
            await session.close()

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = "application/json",
        accept: str = "application/json",
        repeatable: bool | None = None,
        seconds: float | None = None,
        retry_429: bool = True,
        max_bytes: int = MAX_BODY_BYTES,
    ) -> bytes:
        """The body of a successful answer.

        Raises ApiError (a subclass by status) or ConnectionFailed, AnswerTooLong for a body of more than `max_bytes`;
        such a request is not repeated. `repeatable`: the request is idempotent; default:
        true for GET. `seconds` limits one attempt. `retry_429=False` raises 429 at once: for evictions it means that
        a disruption budget does not allow them.
        """
        idempotent = method == "GET" if repeatable is None else repeatable
        backoff = ExponentialBackoff(0.2, 5.0)
        renewed = False
        for attempt in range(1, _MAX_ATTEMPTS + 1):
            try:
                await self._wait_for_token(path)  # without a slot: requests of other API groups may need the slots
                async with self._slots:
                    return await self._ask(method, path, params, body, content_type, accept, seconds, max_bytes)
            except BodyTooLong as error:
                text = f"{method} {self.config.server}{path}: the answer has more than {max_bytes >> 20} MiB"
                raise AnswerTooLong(text) from error
            except Unauthorized:
                if renewed or attempt == _MAX_ATTEMPTS or not self.config.credentials.invalidate():
                    raise
                renewed = True
                if self._connections is not None:
                    self._connections.close()  # a client certificate belongs to its connection
            except ApiError as error:
                unprocessed = error.retry_after is not None or error.status == 429
                retry = error.status in _RETRY_CODES and (unprocessed or idempotent)
                if not retry or attempt == _MAX_ATTEMPTS or (error.status == 429 and not retry_429):
                    raise
                await self._pause(method, error, backoff.next())
            except _NOT_CONNECTED as error:  # safe for any method
                if attempt == _MAX_ATTEMPTS:
                    raise self._failed(method, path, error) from error
                await self._pause(method, None, backoff.next())
            except _ANY_CONNECTION_ERROR as error:
                if not idempotent or attempt == _MAX_ATTEMPTS:
                    raise self._failed(method, path, error) from error
                await self._pause(method, None, backoff.next())
        raise AssertionError("unreachable: the last attempt returns or raises")

    @asynccontextmanager
    async def stream(self, path: str, params: Mapping[str, str]) -> AsyncIterator[aiohttp.StreamReader]:
        """The body of a long answer (watch, log), read incrementally; no retry, and no timeout once it has begun.

        Raises ApiError or ConnectionFailed at the start; reading may raise ConnectionFailed, too.
        """
        try:
            await self._wait_for_token(path)
            async with self._send("GET", path, params, None, "", "application/json", None, streaming=True) as response:
                yield response.content
        except Unauthorized:
            self.config.credentials.invalidate()
            raise
        except (BodyTooLong, *_ANY_CONNECTION_ERROR) as error:
            raise self._failed("WATCH", path, error) from error

    async def _ask(
        self,
        method: str,
        path: str,
        params: Mapping[str, str] | None,
        body: bytes | None,
        content_type: str,
        accept: str,
        seconds: float | None,
        max_bytes: int,
    ) -> bytes:
        """One attempt; the body of a successful answer."""
        if self.config.proxy:
            async with self._send(method, path, params, body, content_type, accept, seconds) as response:
                return await _read(response, max_bytes)
        if self._connections is None:
            self._connections = Connections(self.config.server, self.config.ssl, self.config.server_hostname)
        headers = await self._headers(accept, None if body is None else content_type)
        started_at = self._clock.monotonic()
        code = "error"
        try:
            async with asyncio.timeout(seconds or self.config.timeout):
                target = request_target(path, params)
                answer = await self._connections.request(method, target, headers, body, max_bytes=max_bytes)
            code = str(answer.status)
            if not 200 <= answer.status < 300:
                raise self._refused(f"{method} {path}", answer.status, answer.headers, answer.body)
            return answer.body
        finally:
            self._metrics.requests.labels(method, code).inc()
            self._metrics.duration.labels(method).observe(self._clock.monotonic() - started_at)

    async def _headers(self, accept: str, content_type: str | None) -> dict[str, str]:
        headers = {
            "Accept": accept,
            "User-Agent": self.config.user_agent,
            **await self.config.credentials.headers(),
        }
        if content_type is not None:
            headers["Content-Type"] = content_type
        return headers

    def _refused(self, request: str, status: int, headers: Mapping[str, str], body: bytes) -> ApiError:
        return from_response(status, headers, body, now=self._clock.now(), request=request)

    @asynccontextmanager
    async def _send(
        self,
        method: str,
        path: str,
        params: Mapping[str, str] | None,
        body: bytes | None,
        content_type: str,
        accept: str,
        seconds: float | None,
        *,
        streaming: bool = False,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """One attempt with aiohttp's client; yields a successful response."""
        headers = await self._headers(accept, None if body is None else content_type)
        total = None if streaming else (seconds or self.config.timeout)
        verb = "WATCH" if streaming else method
        started_at = self._clock.monotonic()
        code = "error"
        options: dict[str, Any] = {}
        if self.config.ssl is not None:
            options["ssl"] = self.config.ssl
        if self.config.server_hostname:
            options["server_hostname"] = self.config.server_hostname
        try:
            async with self._clock.timeout(self.config.timeout if streaming else None):
                # A server that accepts the connection and does not answer must not block a watch forever.
                answer = await self._open().request(
                    method,
                    URL(self.config.server + path),
                    params=params,
                    data=body,
                    headers=headers,
                    allow_redirects=False,
                    proxy=self.config.proxy,
                    timeout=aiohttp.ClientTimeout(total=total, sock_connect=CONNECT_TIMEOUT_S),
                    **options,
                )
                code = str(answer.status)
                if not 200 <= answer.status < 300:
                    raise self._refused(f"{method} {path}", answer.status, answer.headers, await _read(answer))
            async with answer as response:
                if streaming:
                    self._metrics.duration.labels(verb).observe(self._clock.monotonic() - started_at)
                yield response
        finally:
            self._metrics.requests.labels(verb, code).inc()
            if not streaming:
                self._metrics.duration.labels(verb).observe(self._clock.monotonic() - started_at)

    async def _pause(self, method: str, error: ApiError | None, delay: float) -> None:
        self._metrics.retries.labels(method).inc()
        if error is not None and error.retry_after is not None:
            # Slightly more than the server requires, so that clients with the same value do not retry at once.
            delay = min(error.retry_after, _MAX_RETRY_AFTER_S) + 0.1 * delay
        await self._clock.sleep(delay)

    def _failed(self, method: str, path: str, error: BaseException) -> ConnectionFailed:
        reason = "timed out" if isinstance(error, TimeoutError) else describe(error)
        return ConnectionFailed(f"{method} {self.config.server}{path}: {reason}")

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None or self._session.closed:
            # Each watch has its own connection, so the pool is unlimited; `_slots` limits the other requests.
            connector = aiohttp.TCPConnector(limit=0, ttl_dns_cache=30, socket_factory=_keepalive_socket)
            self._session = aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())
        return self._session


async def _read(answer: aiohttp.ClientResponse, max_bytes: int = MAX_BODY_BYTES) -> bytes:
    """The body. Raises BodyTooLong."""
    parts: list[bytes] = []
    async for part in answer.content.iter_any():
        max_bytes -= len(part)
        if max_bytes < 0:
            answer.close()
            raise BodyTooLong("the answer is too long")
        parts.append(part)
    return b"".join(parts)


def _keepalive_socket(address: Any) -> socket.socket:
    family, kind, protocol, _, _ = address
    connection = socket.socket(family, kind, protocol)
    connection.setblocking(False)
    set_keepalive(connection)
    return connection
