"""Steps at the start of a process: waiting for complete caches."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from prometheus_client import CollectorRegistry

from control.component.informers import InformerSet
from koordlet.app.clock import Clock
from koordlet.app.heap import freeze_heap
from koordlet.app.logging import get_logger
from koordlet.app.periodic import Periodic

log = get_logger(__name__)

INCOMPLETE_LOG_PERIOD_S: Final = 10.0
"""How often incomplete stores are logged."""


class StartupStep:
    """A service that only runs a step at the start."""

    def __init__(self, name: str, step: Callable[[], Awaitable[None]]) -> None:
        self.name = name
        self._step = step

    async def start(self) -> None:
        await self._step()

    async def stop(self) -> None:
        return None


async def caches_synced(objects: InformerSet, clock: Clock, registry: CollectorRegistry) -> None:
    """Wait until every store is complete; log incomplete stores periodically."""
    late = Periodic(
        "caches-late",
        INCOMPLETE_LOG_PERIOD_S,
        lambda: log.warning("Waiting for caches", incomplete="; ".join(objects.late())),
        immediate=False,
        clock=clock,
        registry=registry,
    )
    await late.start()
    try:
        await objects.synced()
    finally:
        await late.stop()
    freeze_heap()
