"""Docker mode: a unix socket between dockershim and dockerd (spec 08 §12). `serve_docker` is the entry point."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

from koordlet.app.logging import get_logger
from runtimeproxy.cri.recover import TIDY_PERIOD_S
from runtimeproxy.docker.api import DockerApi, DockerError
from runtimeproxy.docker.context import DockerCallContext
from runtimeproxy.docker.link import DockerLink
from runtimeproxy.docker.selector import DockerHandlerSelector
from runtimeproxy.hooks.dispatch import HOOK_TIMEOUT_S, HookDispatcher
from runtimeproxy.hooks.pods import SkipRule
from runtimeproxy.http2.interception import HoldBudget
from runtimeproxy.metrics import ProxyMetrics
from runtimeproxy.store import ProxyStore

log = get_logger(__name__)

GRACE_S = 5.0
"""Longest wait of a stop for responses (`logs -f` is one); raw streams and idle connections do not count."""
BACKLOG = 1024
_POLL_S = 0.02


class DockerServer:
    """Listens, and owns a DockerLink per client."""

    def __init__(self, backend: Path, context: DockerCallContext) -> None:
        self._backend = backend
        self._context = context
        self._selector = DockerHandlerSelector(context)
        self._budget = HoldBudget()
        self.links: set[DockerLink] = set()
        self._server: asyncio.AbstractServer | None = None

    async def start(self, listen: Path | socket.socket) -> None:
        """`listen`: a path where no file exists, or a bound socket. Raises OSError."""
        loop = asyncio.get_running_loop()
        if isinstance(listen, socket.socket):
            self._server = await loop.create_unix_server(self._accept, sock=listen, backlog=BACKLOG)
        else:
            self._server = await loop.create_unix_server(self._accept, str(listen), backlog=BACKLOG)

    async def settle(self) -> None:
        """Background work: complete the store, then drop entries of removed containers periodically."""
        await self._context.recovery.details()
        while True:
            await asyncio.sleep(TIDY_PERIOD_S)
            try:
                await self._context.recovery.forget_gone()
            except DockerError as error:
                log.warning("Cannot list containers to find removed ones", err=error)

    def _accept(self) -> asyncio.Protocol:
        link = DockerLink(self._connect, self._selector, self._closed, self._budget)
        self.links.add(link)
        self._context.metrics.connections.inc()
        return link.client

    async def _connect(self, side: asyncio.Protocol) -> None:
        await asyncio.get_running_loop().create_unix_connection(lambda: side, str(self._backend))

    def _closed(self, link: DockerLink) -> None:
        self.links.discard(link)
        self._context.metrics.connections.dec()

    async def stop(self, grace: float = GRACE_S) -> None:
        """Stop accepting, wait for running calls at most `grace` seconds, then close what is left."""
        if self._server is not None:
            self._server.close()
        loop = asyncio.get_running_loop()
        end = loop.time() + grace
        while True:
            for link in list(self.links):
                link.leave()
            if loop.time() >= end or not any(link.busy for link in self.links):
                break
            await asyncio.sleep(_POLL_S)
        for link in list(self.links):
            link.close()
        try:
            async with asyncio.timeout_at(max(end, loop.time() + 0.1)):
                await self._context.finish()
        except TimeoutError:
            log.warning("Stopped before all post hooks have ended")
        await self._context.close()


async def serve_docker(
    listen: Path | socket.socket,
    backend: Path,
    store: ProxyStore,
    dispatcher: HookDispatcher,
    skip: SkipRule,
    metrics: ProxyMetrics,
    *,
    hook_timeout: float = HOOK_TIMEOUT_S,
) -> DockerServer:
    """Read dockerd's containers, then listen; `settle` completes them. Raises DockerError when dockerd does not respond
    (the caller retries), OSError when it cannot listen. `hook_timeout`: see DockerCallContext."""
    api = DockerApi(backend)
    context = DockerCallContext(store, dispatcher, skip, api, metrics, timeout=hook_timeout)
    server = DockerServer(backend, context)
    try:
        await context.recovery.refresh_driver()
        await context.recovery.lists()
        await server.start(listen)
    except BaseException:
        await api.close()
        raise
    return server
