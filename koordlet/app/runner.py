"""The lifecycle of a process: services started in order, signals, services stopped in reverse order.

    runner = Runner()
    runner.add(server); runner.add(informer); runner.add(Periodic(...)); runner.spawn("sync", sync)
    raise SystemExit(run(runner.run()))

A service is any object with `name`, `start()` and `stop()`. The first SIGINT or SIGTERM stops all services, the second
ends the process at once with status 1. If a service fails to start, or a critical background coroutine ends or raises,
the process stops too, with status 1 and the cause in the log. Each `stop()` has a time limit, so that a hanging service
does not prevent the others from cleaning up.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Coroutine
from typing import Protocol, TypeVar

from koordlet.app.clock import SYSTEM_CLOCK, Clock
from koordlet.app.logging import get_logger
from koordlet.app.tasks import end_tasks

log = get_logger(__name__)
_T = TypeVar("_T")

STOP_TIMEOUT_S = 10.0
"""For one service; the DaemonSet's grace period bounds the whole."""


class AppService(Protocol):
    """A part of the process that is started and stopped."""

    @property
    def name(self) -> str: ...
    async def start(self) -> None: ...
    async def stop(self) -> None: ...


class Background:
    """A coroutine as a service: a named task that runs from start to stop."""

    def __init__(self, name: str, fn: Callable[[], Coroutine[object, object, object]]) -> None:
        self.name = name
        self._fn = fn
        self.task: asyncio.Task[object] | None = None

    async def start(self) -> None:
        self.task = asyncio.create_task(self._fn(), name=self.name)

    async def stop(self) -> None:
        task = self.task
        self.task = None
        await end_tasks(task)


class Runner:
    """Owns the services of one process; see the module's docstring."""

    def __init__(self, *, clock: Clock = SYSTEM_CLOCK, stop_seconds: float = STOP_TIMEOUT_S) -> None:
        self._services: list[AppService] = []
        self._critical: list[Background] = []
        self._clock = clock
        self._stop_seconds = stop_seconds
        self._stopping = asyncio.Event()
        self._signals = 0
        self._status = 0

    def add(self, service: AppService) -> None:
        """Start this service after the services added before it, and stop it before them."""
        self._services.append(service)

    def add_stop(self, name: str, fn: Callable[[], Awaitable[object]]) -> None:
        """Call `fn` at this position of the stop order, for example to close a client or to restore settings."""
        self._services.append(_AtStop(name, fn))

    def spawn(self, name: str, fn: Callable[[], Coroutine[object, object, object]], *, critical: bool = True) -> None:
        """Run a coroutine from this position of the start order; the process stops if a critical one ends."""
        background = Background(name, fn)
        self.add(background)
        if critical:
            self._critical.append(background)

    def stop(self, status: int = 0) -> None:
        """Begin to stop the process; the first non-zero status becomes the exit status."""
        self._status = self._status or status
        self._stopping.set()

    async def run(self) -> int:
        """Start all services, wait for a signal or `stop`, stop all services. Returns the exit status."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal, number)
        started: list[AppService] = []
        try:
            for service in self._services:
                if self._stopping.is_set():
                    break
                if not await self._start(service, started):
                    break
            else:
                await self._stopping.wait()
        finally:
            self._stopping.set()  # also when this coroutine was cancelled
            await self._stop_all(started)
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)
        return self._status

    async def _start(self, service: AppService, started: list[AppService]) -> bool:
        """Start one service, unless a stop is requested first."""
        begin = asyncio.create_task(service.start(), name=f"start:{service.name}")
        wait = asyncio.create_task(self._stopping.wait(), name="start:stopping")
        started.append(service)  # a partly started service is stopped, too
        try:
            await asyncio.wait({begin, wait}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await end_tasks(wait, begin)
        if begin.cancelled() and self._stopping.is_set():
            return False
        error = asyncio.CancelledError() if begin.cancelled() else begin.exception()
        if error is not None:
            log.error("Cannot start", service=service.name, err=error)
            self.stop(1)
            return False
        if isinstance(service, Background) and service.task is not None:
            critical = service in self._critical
            service.task.add_done_callback(lambda task: self._ended(service.name, task, critical))
        return True

    def _ended(self, name: str, task: asyncio.Task[object], critical: bool) -> None:
        if task.cancelled() and self._stopping.is_set():
            return  # stopped regularly
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("Background task failed", task=name, err=error)
        elif critical and not self._stopping.is_set():
            log.error("Background task ended", task=name)
        if critical and not self._stopping.is_set():
            self.stop(1)

    async def _stop_all(self, started: list[AppService]) -> None:
        for service in reversed(started):
            try:
                async with self._clock.timeout(self._stop_seconds):
                    await service.stop()
            except TimeoutError:
                log.error("AppService did not stop in time", service=service.name, seconds=self._stop_seconds)
                self._status = self._status or 1
            except Exception as error:
                log.exception("AppService failed to stop", service=service.name, err=error)
                self._status = self._status or 1

    def _on_signal(self, number: signal.Signals) -> None:
        self._signals += 1
        if self._signals > 1:
            os._exit(1)  # the second signal: no clean-up, as documented
        log.info("Stopping", signal=number.name)
        self.stop()


class _AtStop:
    def __init__(self, name: str, fn: Callable[[], Awaitable[object]]) -> None:
        self.name = name
        self._fn = fn

    async def start(self) -> None:
        return None

    async def stop(self) -> None:
        await self._fn()


def run(main: Coroutine[object, object, _T]) -> _T:
    """Run the process's event loop, with uvloop if it is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as loop:
        return loop.run(main)
