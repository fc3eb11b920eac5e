"""Copies bytes between two connections in both directions until one of them ends."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, Protocol

from koordlet.app.tasks import end_tasks

IDLE_SECONDS: Final = 4 * 3600.0
"""Kubelet's streamingConnectionIdleTimeout."""


class ByteStream(Protocol):
    """A connection. `read` returns b"" at its end; `write` waits while the other side reads more slowly."""

    async def read(self) -> bytes: ...
    async def write(self, data: bytes) -> None: ...


class IdleLimit:
    """Ends a block after `seconds` without a call of `moved`. `async with` raises TimeoutError then."""

    def __init__(self, seconds: float = IDLE_SECONDS) -> None:
        self._seconds = seconds
        self._timeout = asyncio.timeout(seconds)

    async def __aenter__(self) -> IdleLimit:
        await self._timeout.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._timeout.__aexit__(*error)

    def moved(self) -> None:
        """Bytes were read or written."""
        self._timeout.reschedule(asyncio.get_running_loop().time() + self._seconds)


async def relay(client: ByteStream, server: ByteStream, idle_seconds: float = IDLE_SECONDS) -> None:
    """Copy until one side ends, or nothing moves for `idle_seconds`. A connection that breaks ends it like one that
    closes: no client is connected that could receive an error."""
    try:
        async with IdleLimit(idle_seconds) as idle:
            await until_one_ends(_copy(client, server, idle), _copy(server, client, idle))
    except (OSError, TimeoutError):
        return


async def _copy(source: ByteStream, sink: ByteStream, idle: IdleLimit) -> None:
    while data := await source.read():
        idle.moved()
        await sink.write(data)
        idle.moved()


async def until_one_ends(first: Coroutine[Any, Any, None], second: Coroutine[Any, Any, None]) -> None:
    """Run both until one ends; the other is cancelled. Raises the error of the one that ended."""
    tasks = [asyncio.ensure_future(first), asyncio.ensure_future(second)]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        await end_tasks(*tasks)
