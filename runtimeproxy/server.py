"""The proxy process: start, wait for the runtime, stop (spec 08 §7).

Start order: remove a left-over socket, call the runtime's Version until it responds or the backend timeout ends (then
the process fails and its supervisor restarts it), fill the store from the runtime's lists, listen on the socket, notify
systemd. Details of existing objects and connections to hook servers follow in the background. The socket is the only
file that is written.
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
from koordlet.app.tasks import end_tasks
from runtimeproxy.cri.calls import CriInterceptor
from runtimeproxy.cri.mode import CriServer, RuntimeClient
from runtimeproxy.cri.recover import TIDY_PERIOD_S, CriRecovery, RuntimeCallError
from runtimeproxy.hooks.dispatch import HookDispatcher
from runtimeproxy.hooks.pods import SkipRule
from runtimeproxy.hooks.registry import HookServerRegistry
from runtimeproxy.metrics import ProxyMetrics
from runtimeproxy.options import DOCKER, ProxyOptions
from runtimeproxy.page import MetricsPage
from runtimeproxy.store import ProxyStore

log = get_logger(__name__)

RETRY_PERIOD_S = 1.0
SOCKET_MODE = 0o660
"""Mode of the socket, as that of a runtime's socket."""


class RuntimeAbsent(Exception):
    """The runtime did not respond within the backend timeout."""


class ProxyMode(Protocol):
    """CRI or Docker."""

    async def open(self) -> None:
        """Read the runtime's objects, then listen. Raises RuntimeCallError when it does not respond, OSError."""
        ...

    async def settle(self) -> None:
        """Background work, for as long as the proxy runs."""
        ...

    async def healthy(self) -> str | None:
        """None, or the reason why calls cannot be served."""
        ...

    async def close(self) -> None: ...


class CriMode:
    """CRI calls to containerd or another CRI runtime."""

    def __init__(
        self, options: ProxyOptions, dispatcher: HookDispatcher, skip: SkipRule, metrics: ProxyMetrics
    ) -> None:
        self._options = options
        self._backend = RuntimeClient(options.backend_path)
        store = ProxyStore()
        self._recovery = CriRecovery(store, self._backend, metrics)
        interceptor = CriInterceptor(store, dispatcher, skip, self._recovery, metrics, timeout=options.hook_timeout)
        self._mode = CriServer(options.backend_path, interceptor, metrics)

    async def open(self) -> None:
        await self._backend.version()
        await self._recovery.lists()
        await self._mode.start(self._options.endpoint_path)

    async def settle(self) -> None:
        await self._recovery.details()
        while True:
            await asyncio.sleep(TIDY_PERIOD_S)
            await self._recovery.forget_gone()

    async def healthy(self) -> str | None:
        try:
            await self._backend.version()
        except RuntimeCallError as error:
            return f"runtime: {error}"
        return None

    async def close(self) -> None:
        await self._mode.stop(self._options.stop_timeout)


class ProxyService:
    """Creates and removes the listening socket around a mode; a service for `Runner`."""

    name = "front"

    def __init__(self, options: ProxyOptions, mode: ProxyMode, notify: Callable[[str], None]) -> None:
        """`notify`: sends a message to systemd."""
        self._options = options
        self._mode = mode
        self._notify = notify
        self._path = options.endpoint_path
        self._own_socket: tuple[int, int] | None = None
        self._background: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Raises OSError for the socket, RuntimeAbsent."""
        self._path.unlink(missing_ok=True)
        self._path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        await self._open_mode()
        self._path.chmod(SOCKET_MODE)
        status = self._path.stat()
        self._own_socket = status.st_dev, status.st_ino
        log.info("Serving", socket=str(self._path), runtime=str(self._options.backend_path), mode=self._options.mode)
        self._notify("READY=1")
        self._background = asyncio.create_task(self._settle())

    async def _open_mode(self) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + self._options.backend_timeout
        while True:
            try:
                await self._mode.open()
                return
            except RuntimeCallError as error:
                socket_path = self._options.backend_path
                if loop.time() + RETRY_PERIOD_S > end:
                    waited = f"{self._options.backend_timeout:g} s"
                    raise RuntimeAbsent(f"no response from {socket_path} for {waited}: {error}") from error
                log.warning("Waiting for the runtime", socket=str(socket_path), err=error)
            await asyncio.sleep(RETRY_PERIOD_S)

    async def _settle(self) -> None:
        try:
            await self._mode.settle()
        except Exception as error:  # calls are served without it
            log.exception("Cannot complete the store", err=error)

    async def stop(self) -> None:
        self._notify("STOPPING=1")
        if self._own_socket is not None:
            _unlink(self._path, self._own_socket)
        await end_tasks(self._background)
        await self._mode.close()


def _unlink(path: Path, own_socket: tuple[int, int]) -> None:
    """Unless another process's socket is there now."""
    try:
        status = path.stat()
        if (status.st_dev, status.st_ino) == own_socket:
            path.unlink()
    except OSError as error:
        log.warning("Cannot remove the socket", socket=str(path), err=error)


def notify(text: str) -> None:
    """Send sd_notify's `text` to systemd, if it expects notifications."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
            channel.connect("\0" + address[1:] if address.startswith("@") else address)
            channel.send(text.encode())
    except OSError as error:
        log.warning("Cannot notify systemd", text=text, err=error)


def _build_mode(options: ProxyOptions, dispatcher: HookDispatcher, metrics: ProxyMetrics) -> ProxyMode:
    skip = SkipRule(options.skip_key, options.skip_value)
    if options.mode == DOCKER:
        from runtimeproxy.docker.mode import DockerMode

        return DockerMode(options, dispatcher, skip, metrics)
    return CriMode(options, dispatcher, skip, metrics)


async def serve(options: ProxyOptions) -> int:
    """Run the process until it is stopped; returns its exit status."""
    registry = CollectorRegistry()
    metrics = ProxyMetrics.of(registry)
    servers = HookServerRegistry(Path(options.hook_servers))
    dispatcher = HookDispatcher(servers, timeout=options.hook_timeout, metrics=metrics)
    mode = _build_mode(options, dispatcher, metrics)
    runner = Runner(stop_seconds=options.stop_timeout + 2.0)
    if options.metrics_at is not None:
        runner.add(MetricsPage(*options.metrics_at, registry, mode.healthy))
    runner.add_stop("dispatcher", dispatcher.close)
    runner.spawn("registrations", servers.watch, critical=False)
    runner.add(ProxyService(options, mode, notify))
    runner.spawn("hook clients", dispatcher.warm, critical=False)
    return await runner.run()
