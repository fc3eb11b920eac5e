"""The node of a pod in its status while PreBind takes time (Kubernetes' NominatedNodeNameForExpectation).

PreBind may wait for a provisioner of volumes. A cluster autoscaler then reads the node in `status.nominatedNodeName`,
and the next scheduler after a crash tries this node first. A binding that completes at once writes nothing. A wait at
Permit writes nothing either: the nominations of an incomplete gang would keep its nodes from other pods after a crash.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Final

PATIENCE_S: Final = 1.0
"""PreBind may take this time without a nomination."""


class ExpectedNode:
    """`async with ExpectedNode(write): …` calls `write` if the block takes longer than `after` seconds.

    It ends when that call has returned: the nomination never arrives after the binding."""

    def __init__(self, write: Callable[[], Awaitable[None]], after: float = PATIENCE_S) -> None:
        self._write = write
        self._after = after
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Future[None] | None = None

    async def __aenter__(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._after, self._begin)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        task = self._task
        if task is None:
            return
        if kind is not None and issubclass(kind, asyncio.CancelledError):
            task.cancel()
        await asyncio.wait([task])

    def _begin(self) -> None:
        self._task = asyncio.ensure_future(self._write())
