"""A check that queries the API server when the process starts, and again until the answer is good."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod

from koordlet.app.tasks import end_tasks
from koordlet.kube.client import Client

PERIOD_S = 30.0


class StartCheck(ABC):
    """A service for `Runner`; `problem` fits `HealthChecks.check`."""

    def __init__(self, name: str, client: Client) -> None:
        self.name = name
        self.problem: str | None = None
        self._client = client
        self._task: asyncio.Task[None] | None = None

    @abstractmethod
    async def passed(self) -> bool:
        """Query once and update `problem`; True ends the queries."""

    async def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name=self.name)

    async def stop(self) -> None:
        await end_tasks(self._task)

    async def _run(self) -> None:
        while not await self.passed():
            await self._client.clock.sleep(PERIOD_S)
