"""Waiting for what another program, thread or task does: until a condition holds, however busy the machine is."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

PATIENCE_S = 120.0
PAUSE_S = 0.01


async def until(done: Callable[..., Any], seconds: float = PATIENCE_S) -> Any:
    """The first true result of `done`, a function or coroutine function. Raises TimeoutError after `seconds`."""
    async with asyncio.timeout(seconds):
        while True:
            result = done()
            if isinstance(result, Awaitable):
                result = await result
            if result:
                return result
            await asyncio.sleep(PAUSE_S)


def wait_until(done: Callable[[], Any], what: str = "", seconds: float = PATIENCE_S, pause: float = PAUSE_S) -> Any:
    """The same without an event loop; fails with the description of what did not come."""
    end = time.monotonic() + seconds
    while not (result := done()):
        assert time.monotonic() < end, f"not within {seconds:g} s: {what or done}"
        time.sleep(pause)
    return result
