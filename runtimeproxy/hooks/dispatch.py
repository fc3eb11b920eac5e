"""Calls hook servers and applies their failure policy (spec 08 §9).

Only the first registered server that has the hook is called, in the order of the registration files' names. A response
that cannot be parsed or is invalid (`validate`) is an error like any other; errors are handled by the server's failure
policy. Every hook ends within the hook timeout and within the caller's deadline.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from koordlet.app.logging import get_logger
from runtimeproxy.hooks.client import HookCallError, HookClient, HookEndpointError, HookServerUnreachable, connect
from runtimeproxy.hooks.registry import HookServerRegistry, RegisteredServer
from runtimeproxy.hooks.stages import Hook, HookFailurePolicy, HookRequest, HookResponse
from runtimeproxy.hooks.validate import InvalidHookResponse, check
from runtimeproxy.metrics import ProxyMetrics

log = get_logger(__name__)

HOOK_TIMEOUT_S = 2.0
"""A hook that takes longer has failed."""
MAX_CLIENTS = 10
"""Most open connections; the least recently used one is closed (spec 08 §9)."""


class HookRefused(Exception):
    """A pre hook failed and its server's policy is Fail: the call must fail with this text and must not reach the
    runtime. str() is `hook server err: <error>`."""

    def __init__(self, error: str) -> None:
        super().__init__(f"hook server err: {error}")


@dataclass(frozen=True, slots=True)
class HookOutcome:
    """Result of a hook: `response` when a server returned one, `error` when it failed, neither when no server is
    registered."""

    response: HookResponse | None = None
    policy: HookFailurePolicy = HookFailurePolicy.NONE
    error: str | None = None

    def accepted(self) -> HookResponse | None:
        """The response; None when the call continues unchanged. Raises HookRefused when it must not continue."""
        if self.error is not None and self.policy is HookFailurePolicy.FAIL:
            raise HookRefused(self.error)
        return self.response


NO_SERVER = HookOutcome()


@dataclass(frozen=True, slots=True)
class _CachedClient:
    """A client and the socket file (device, inode) it is connected to."""

    client: HookClient
    socket: tuple[int, int]


class HookDispatcher:
    """Calls hook servers; one per process."""

    def __init__(
        self,
        registry: HookServerRegistry,
        *,
        timeout: float,
        connect: Callable[[str], Awaitable[HookClient]] = connect,
        metrics: ProxyMetrics,
    ) -> None:
        self._registry = registry
        self._timeout = timeout
        self._connect = connect
        self._metrics = metrics
        self._clients: OrderedDict[str, _CachedClient] = OrderedDict()
        self._closing: set[asyncio.Task[None]] = set()

    def handles(self, hook: Hook) -> bool:
        """Whether a server is registered for the hook."""
        return any(hook in server.hooks for server in self._registry.servers())

    async def dispatch(self, hook: Hook, request: HookRequest, deadline: float | None = None) -> HookOutcome:
        """Call the server for `hook`. `deadline`: the caller's, in `time.monotonic()` seconds. Failures of a server
        become an outcome, not an exception; cancelling cancels the server's call."""
        outcome = NO_SERVER
        for server in self._registry.servers():
            if hook not in server.hooks:
                continue
            began = time.monotonic()
            end = began + self._timeout if deadline is None else min(began + self._timeout, deadline)
            try:
                return HookOutcome(await self._call(server.endpoint, hook, request, end), server.policy)
            except HookEndpointError as error:
                outcome = self._failed(hook, server, str(error))  # returned if no other server can be called
            except (HookCallError, DecodeError, InvalidHookResponse) as error:
                return self._failed(hook, server, f"{server.endpoint}: {error}")
            finally:
                self._metrics.hook_seconds.labels(hook.value).observe(time.monotonic() - began)
        return outcome

    async def warm(self) -> None:
        """Connect to all registered servers, so that a missing one is logged before the first pod needs it."""
        for server in self._registry.servers():
            try:
                await self._client(server.endpoint)
            except (HookEndpointError, HookCallError) as error:
                log.warning("Hook server is not reachable", server=server.name, error=f"{server.endpoint}: {error}")

    async def close(self) -> None:
        """Close all connections."""
        for endpoint, cached in list(self._clients.items()):
            self._drop(endpoint, cached)
        await asyncio.gather(*self._closing, return_exceptions=True)

    async def _call(self, endpoint: str, hook: Hook, request: HookRequest, end: float) -> HookResponse:
        """The validated response by the time `end`. A connection from an earlier call may be broken: then the call is
        retried once on a new one. Raises HookEndpointError, HookCallError, DecodeError, InvalidHookResponse."""
        body = request.SerializeToString()
        for last_attempt in (False, True):
            cached, is_new = await self._client(endpoint)
            seconds_left = end - time.monotonic()
            if seconds_left <= 0:
                raise HookCallError("DEADLINE_EXCEEDED: no time left for the call")
            try:
                payload = await cached.client.call(hook.rpc, body, seconds_left)
            except HookServerUnreachable:
                self._drop(endpoint, cached)
                if last_attempt or is_new or end - time.monotonic() <= 0:
                    raise
            else:
                response = hook.response.FromString(payload)
                check(request, response)
                return response
        raise AssertionError("the last attempt returns or raises")

    async def _client(self, endpoint: str) -> tuple[_CachedClient, bool]:
        """The client of the present socket file, and whether it is new. Raises HookServerUnreachable when there is no
        socket, HookEndpointError."""
        socket = _identity(endpoint)
        cached = self._cached(endpoint, socket)
        if cached is not None:
            return cached, False
        created = _CachedClient(await self._connect(endpoint), socket)
        cached = self._cached(endpoint, socket)
        if cached is not None:  # another call has connected meanwhile
            self._close(created)
            return cached, False
        self._clients[endpoint] = created
        while len(self._clients) > MAX_CLIENTS:
            self._close(self._clients.popitem(last=False)[1])
        return created, True

    def _cached(self, endpoint: str, socket: tuple[int, int]) -> _CachedClient | None:
        """The cached client if it is connected to this socket file, marked as most recently used."""
        cached = self._clients.get(endpoint)
        if cached is None:
            return None
        if cached.socket != socket:
            self._drop(endpoint, cached)
            return None
        self._clients.move_to_end(endpoint)
        return cached

    def _drop(self, endpoint: str, cached: _CachedClient) -> None:
        if self._clients.get(endpoint) is cached:
            del self._clients[endpoint]
            self._close(cached)

    def _close(self, cached: _CachedClient) -> None:
        """Close in the background; running calls may end."""
        task = asyncio.create_task(cached.client.close(self._timeout), name="hook client closing")
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _failed(self, hook: Hook, server: RegisteredServer, error: str) -> HookOutcome:
        self._metrics.hook_failures.labels(hook.value, server.policy.value).inc()
        log.warning("Hook failed", hook=hook.value, server=server.name, policy=server.policy.value, error=error)
        return HookOutcome(None, server.policy, error)


def _identity(endpoint: str) -> tuple[int, int]:
    """Device and inode of the socket file, which identify the server. Raises HookServerUnreachable when there is
    none."""
    try:
        status = os.stat(endpoint)  # noqa: PTH116 - runs at every hook
    except OSError as error:
        raise HookServerUnreachable(f"no socket: {error.strerror}") from error
    return status.st_dev, status.st_ino
