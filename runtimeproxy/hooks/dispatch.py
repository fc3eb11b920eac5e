"""Which hook server is asked, and what its silence means (spec 08 §9).

The first registered server, in the order of the files' names, that has the hook is asked, no other. An answer that
cannot be parsed or that may not be used (`answers`) is an error like any other, and errors go by the server's policy.
Every hook is over within a limit and within what its caller has left.
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
from runtimeproxy.hooks.answers import BadAnswer, check
from runtimeproxy.hooks.client import ClientError, HookCallError, HookClient, Lost, connect
from runtimeproxy.hooks.registry import HookServer, Registry
from runtimeproxy.hooks.stages import Hook, HookRequest, HookResponse
from runtimeproxy.hooks.stages import Policy as Policy
from runtimeproxy.metrics import ProxyMetrics

log = get_logger(__name__)

LIMIT_SECONDS = 2.0
"""A hook that takes longer has failed."""
MAX_CLIENTS = 10
"""The least recently used connection goes (spec 08 §9)."""


class HookRefused(Exception):
    """A before-stage hook failed and its server's policy is Fail: the call must fail with this text, and the runtime
    must not hear of it. str() is `hook server err: <error>`."""

    def __init__(self, error: str) -> None:
        super().__init__(f"hook server err: {error}")


@dataclass(frozen=True, slots=True)
class Outcome:
    """`response` when a server answered, `error` when it failed, neither when none is registered for the hook."""

    response: HookResponse | None = None
    policy: Policy = Policy.NONE
    error: str | None = None

    def accepted(self) -> HookResponse | None:
        """The response; None when the call is to go on unchanged. Raises HookRefused when it must not go on."""
        if self.error is not None and self.policy is Policy.FAIL:
            raise HookRefused(self.error)
        return self.response


NOBODY = Outcome()


@dataclass(frozen=True, slots=True)
class _Held:
    """A client and the socket file (device, inode) that it was made for."""

    client: HookClient
    socket: tuple[int, int]


class Dispatcher:
    """Asks hook servers; one a process."""

    def __init__(
        self,
        registry: Registry,
        *,
        limit: float = LIMIT_SECONDS,
        connect: Callable[[str], Awaitable[HookClient]] = connect,
        metrics: ProxyMetrics | None = None,
    ) -> None:
        self._registry, self._limit, self._connect = registry, limit, connect
        self._metrics = metrics or ProxyMetrics.of()
        self._clients: OrderedDict[str, _Held] = OrderedDict()
        self._closing: set[asyncio.Task[None]] = set()

    def handles(self, hook: Hook) -> bool:
        """Whether a server is registered for the hook."""
        return any(hook in server.hooks for server in self._registry.servers())

    async def dispatch(self, hook: Hook, request: HookRequest, deadline: float | None = None) -> Outcome:
        """Ask for `hook`. `deadline`: the caller's, in `time.monotonic()` seconds. Never raises for what a server
        does; cancelling it cancels the server's call."""
        outcome = NOBODY
        for server in self._registry.servers():
            if hook not in server.hooks:
                continue
            began = time.monotonic()
            end = began + self._limit if deadline is None else min(began + self._limit, deadline)
            try:
                return Outcome(await self._ask(server.endpoint, hook, request, end), server.policy)
            except ClientError as error:
                outcome = self._failed(hook, server, str(error))  # stands if no other server can be asked
            except (HookCallError, DecodeError, BadAnswer) as error:
                return self._failed(hook, server, f"{server.endpoint}: {error}")
            finally:
                self._metrics.hook_seconds.labels(hook.value).observe(time.monotonic() - began)
        return outcome

    async def warm(self) -> None:
        """Connect to the servers that calls will need; one that is not there is in the log before a pod meets it."""
        for server in self._registry.servers():
            try:
                await self._client(server.endpoint)
            except (ClientError, HookCallError) as error:
                log.warning("Hook server is not there", server=server.name, error=f"{server.endpoint}: {error}")

    async def close(self) -> None:
        """Let go of all servers."""
        for endpoint, held in list(self._clients.items()):
            self._drop(endpoint, held)
        await asyncio.gather(*self._closing, return_exceptions=True)

    async def _ask(self, endpoint: str, hook: Hook, request: HookRequest, end: float) -> HookResponse:
        """The checked answer by `end`. A connection that was made for an earlier call may be a dead one: then once
        more on a new one. Raises ClientError, HookCallError, DecodeError, BadAnswer."""
        body = request.SerializeToString()
        for last in (False, True):
            held, fresh = await self._client(endpoint)
            left = end - time.monotonic()
            if left <= 0:
                raise HookCallError("DEADLINE_EXCEEDED: no time left to ask")
            try:
                answer = await held.client.call(hook.rpc, body, left)
            except Lost:
                self._drop(endpoint, held)
                if last or fresh or end - time.monotonic() <= 0:
                    raise
            else:
                response = hook.response.FromString(answer)
                check(request, response)
                return response
        raise AssertionError("the last attempt returns or raises")

    async def _client(self, endpoint: str) -> tuple[_Held, bool]:
        """The client of the socket that is there now, and whether it is new. Raises Lost when there is no socket,
        ClientError."""
        socket = _identity(endpoint)
        held = self._held(endpoint, socket)
        if held is not None:
            return held, False
        made = _Held(await self._connect(endpoint), socket)
        held = self._held(endpoint, socket)
        if held is not None:  # another call was quicker
            self._close(made)
            return held, False
        self._clients[endpoint] = made
        while len(self._clients) > MAX_CLIENTS:
            self._close(self._clients.popitem(last=False)[1])
        return made, True

    def _held(self, endpoint: str, socket: tuple[int, int]) -> _Held | None:
        """The cached client if it is for this very socket, as the most recently used one."""
        held = self._clients.get(endpoint)
        if held is None:
            return None
        if held.socket != socket:
            self._drop(endpoint, held)
            return None
        self._clients.move_to_end(endpoint)
        return held

    def _drop(self, endpoint: str, held: _Held) -> None:
        if self._clients.get(endpoint) is held:
            del self._clients[endpoint]
            self._close(held)

    def _close(self, held: _Held) -> None:
        """Calls under way on it may end."""
        task = asyncio.create_task(held.client.close(self._limit), name="hook client closing")
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _failed(self, hook: Hook, server: HookServer, error: str) -> Outcome:
        self._metrics.hook_failures.labels(hook.value, server.policy.value).inc()
        log.warning("Hook failed", hook=hook.value, server=server.name, policy=server.policy.value, error=error)
        return Outcome(None, server.policy, error)


def _identity(endpoint: str) -> tuple[int, int]:
    """Device and inode of the socket file; another one is another server. Raises Lost when there is none."""
    try:
        status = os.stat(endpoint)  # noqa: PTH116 - at every hook
    except OSError as error:
        raise Lost(f"no socket: {error.strerror}") from error
    return status.st_dev, status.st_ino
