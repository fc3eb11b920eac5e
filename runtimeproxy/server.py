"""The process: its socket, the wait for the runtime, what is known of it, the end (spec 08 §7).

Starts in this order: a left-over socket goes, the runtime is asked for its version until it answers or the time for
that is over (then the process fails, for its supervisor to try again), the store is filled from the runtime's lists,
the socket is there, systemd is told. Details of what ran already and connections to hook servers come after that,
behind calls. Nothing is written to disk but the socket.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from prometheus_client import CollectorRegistry

from koordlet.app.logging import get_logger
from koordlet.app.runner import Runner
from runtimeproxy.cri.calls import Interceptor
from runtimeproxy.cri.mode import Backend, CriSide
from runtimeproxy.cri.recover import TIDY_SECONDS, BackendError, Recovery
from runtimeproxy.hooks.dispatch import Dispatcher
from runtimeproxy.hooks.pods import SkipRule
from runtimeproxy.hooks.registry import Registry
from runtimeproxy.metrics import ProxyMetrics
from runtimeproxy.options import DOCKER, Options
from runtimeproxy.page import Page
from runtimeproxy.store import Store

log = get_logger(__name__)

RETRY_SECONDS = 1.0
MODE = 0o660
"""Of the socket, as runtimes' own."""


class RuntimeAbsent(Exception):
    """The runtime did not answer in the time it had."""


class ProtocolSide(Protocol):
    """CRI or Docker."""

    async def open(self) -> None:
        """Learn what the runtime has, then listen. Raises BackendError when it does not answer, OSError."""
        ...

    async def settle(self) -> None:
        """What is done behind calls, for as long as it takes."""
        ...

    async def healthy(self) -> str | None:
        """None, or why calls can't be served."""
        ...

    async def close(self) -> None: ...


class CriMode:
    """Calls of CRI to containerd or another runtime that speaks it."""

    def __init__(self, options: Options, dispatcher: Dispatcher, skip: SkipRule, metrics: ProxyMetrics) -> None:
        self._options = options
        self._backend = Backend(options.backend_path)
        store = Store()
        self._recovery = Recovery(store, self._backend, metrics)
        interceptor = Interceptor(store, dispatcher, skip, self._recovery, metrics, limit=options.hook_timeout)
        self._side = CriSide(options.backend_path, interceptor, metrics)

    async def open(self) -> None:
        await self._backend.version()
        await self._recovery.lists()
        await self._side.start(self._options.endpoint_path)

    async def settle(self) -> None:
        await self._recovery.details()
        while True:
            await asyncio.sleep(TIDY_SECONDS)
            await self._recovery.forget_gone()

    async def healthy(self) -> str | None:
        try:
            await self._backend.version()
        except BackendError as error:
            return f"runtime: {error}"
        return None

    async def close(self) -> None:
        await self._side.stop(self._options.stop_timeout)


class Front:
    """The listening socket's life around a side's; a service for `Runner`."""

    name = "front"

    def __init__(self, options: Options, side: ProtocolSide, said: Callable[[str], None]) -> None:
        """`said`: tells the supervisor."""
        self._options, self._side, self._say = options, side, said
        self._path = options.endpoint_path
        self._ours: tuple[int, int] | None = None
        self._behind: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Raises OSError for the socket, RuntimeAbsent."""
        self._path.unlink(missing_ok=True)
        self._path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        await self._reach()
        self._path.chmod(MODE)
        status = self._path.stat()
        self._ours = status.st_dev, status.st_ino
        log.info("Serving", socket=str(self._path), runtime=str(self._options.backend_path), mode=self._options.mode)
        self._say("READY=1")
        self._behind = asyncio.create_task(self._settle())

    async def _reach(self) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + self._options.backend_timeout
        while True:
            try:
                await self._side.open()
                return
            except BackendError as error:
                if loop.time() + RETRY_SECONDS > end:
                    raise RuntimeAbsent(
                        f"no answer from {self._options.backend_path} for {self._options.backend_timeout:g} s: {error}"
                    ) from error
                log.warning("Waiting for the runtime", socket=str(self._options.backend_path), err=error)
            await asyncio.sleep(RETRY_SECONDS)

    async def _settle(self) -> None:
        try:
            await self._side.settle()
        except Exception as error:  # calls are served without it
            log.exception("Cannot complete what is known of the runtime", err=error)

    async def stop(self) -> None:
        self._say("STOPPING=1")
        if self._ours is not None:
            _unlink(self._path, self._ours)
        if self._behind is not None:
            self._behind.cancel()
            await asyncio.gather(self._behind, return_exceptions=True)
        await self._side.close()


def _unlink(path: Path, ours: tuple[int, int]) -> None:
    """Unless somebody else's socket is there by now."""
    try:
        status = path.stat()
        if (status.st_dev, status.st_ino) == ours:
            path.unlink()
    except OSError as error:
        log.warning("Socket is left over", socket=str(path), err=error)


def notify(text: str) -> None:
    """Tell systemd, where it waits to be told (sd_notify)."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
            channel.connect("\0" + address[1:] if address.startswith("@") else address)
            channel.send(text.encode())
    except OSError as error:
        log.warning("Cannot tell the supervisor", said=text, err=error)


def _side(options: Options, dispatcher: Dispatcher, metrics: ProxyMetrics) -> ProtocolSide:
    skip = SkipRule(options.skip_key, options.skip_value)
    if options.mode == DOCKER:
        from runtimeproxy.docker.mode import DockerMode

        return DockerMode(options, dispatcher, skip, metrics)
    return CriMode(options, dispatcher, skip, metrics)


async def serve(options: Options) -> int:
    """The process until it is told to stop; its exit status."""
    registry = CollectorRegistry()
    metrics = ProxyMetrics.of(registry)
    servers = Registry(Path(options.hook_servers))
    dispatcher = Dispatcher(servers, limit=options.hook_timeout, metrics=metrics)
    side = _side(options, dispatcher, metrics)
    runner = Runner(stop_seconds=options.stop_timeout + 2.0)
    if options.metrics_at is not None:
        runner.add(Page(*options.metrics_at, registry, side.healthy))
    runner.add_stop("dispatcher", dispatcher.close)
    runner.spawn("registrations", servers.watch, critical=False)
    runner.add(Front(options, side, notify))
    runner.spawn("hook clients", dispatcher.warm, critical=False)
    return await runner.run()
