"""Docker mode: a unix socket between kubelet's dockershim and dockerd (spec 08 §12). `serve_docker` is the entry."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

from koordlet.app.logging import get_logger
from runtimeproxy.cri.recover import TIDY_SECONDS
from runtimeproxy.docker.api import DockerApi, DockerError
from runtimeproxy.docker.calls import DockerCalls
from runtimeproxy.docker.context import Context
from runtimeproxy.docker.link import Link
from runtimeproxy.hooks.dispatch import LIMIT_SECONDS, Dispatcher
from runtimeproxy.hooks.pods import SkipRule
from runtimeproxy.http2.exchange import Holding
from runtimeproxy.metrics import ProxyMetrics
from runtimeproxy.store import Store

log = get_logger(__name__)

GRACE_SECONDS = 5.0
"""That a stop waits for answers under way (`logs -f` is one); raw streams and idle connections don't count."""
BACKLOG = 1024
_LOOK_SECONDS = 0.02


class DockerServer:
    """Listens, and has a Link for each client."""

    def __init__(self, backend: Path, context: Context) -> None:
        self._backend, self._context = backend, context
        self._calls = DockerCalls(context)
        self._holding = Holding()
        self.links: set[Link] = set()
        self._server: asyncio.AbstractServer | None = None

    async def start(self, listen: Path | socket.socket) -> None:
        """`listen`: a path that nothing is at, or a bound socket. Raises OSError."""
        loop = asyncio.get_running_loop()
        if isinstance(listen, socket.socket):
            self._server = await loop.create_unix_server(self._accept, sock=listen, backlog=BACKLOG)
        else:
            self._server = await loop.create_unix_server(self._accept, str(listen), backlog=BACKLOG)

    async def settle(self) -> None:
        """What is done behind calls: complete the store, then keep it tidy for as long as it takes."""
        await self._context.recovery.details()
        while True:
            await asyncio.sleep(TIDY_SECONDS)
            try:
                await self._context.recovery.forget_gone()
            except DockerError as error:
                log.warning("Can't see which containers are gone", err=error)

    def _accept(self) -> asyncio.Protocol:
        link = Link(self._connect, self._calls, self._closed, self._holding)
        self.links.add(link)
        self._context.metrics.connections.inc()
        return link.client

    async def _connect(self, side: asyncio.Protocol) -> None:
        await asyncio.get_running_loop().create_unix_connection(lambda: side, str(self._backend))

    def _closed(self, link: Link) -> None:
        self.links.discard(link)
        self._context.metrics.connections.dec()

    async def stop(self, grace: float = GRACE_SECONDS) -> None:
        """Accept no more, let calls under way be answered for at most `grace` seconds, then cut what is left."""
        if self._server is not None:
            self._server.close()
        loop = asyncio.get_running_loop()
        end = loop.time() + grace
        while True:
            for link in list(self.links):
                link.leave()
            if loop.time() >= end or not any(link.busy for link in self.links):
                break
            await asyncio.sleep(_LOOK_SECONDS)
        for link in list(self.links):
            link.close()
        try:
            async with asyncio.timeout_at(max(end, loop.time() + 0.1)):
                await self._context.finish()
        except TimeoutError:
            log.warning("Stopped before all hooks have ended")
        await self._context.close()


async def serve_docker(
    listen: Path | socket.socket,
    backend: Path,
    store: Store,
    dispatcher: Dispatcher,
    skip: SkipRule,
    metrics: ProxyMetrics | None = None,
    *,
    limit: float = LIMIT_SECONDS,
) -> DockerServer:
    """Learn from dockerd what there is, then listen; `settle` learns the rest. Raises DockerError when dockerd doesn't
    answer (the caller tries again), OSError when there is nothing to listen on. `limit`: see Context."""
    api = DockerApi(backend)
    context = Context(store, dispatcher, skip, api, metrics or ProxyMetrics.of(), limit=limit)
    server = DockerServer(backend, context)
    try:
        await context.recovery.ask_driver()
        await context.recovery.lists()
        await server.start(listen)
    except BaseException:
        await api.close()
        raise
    return server
