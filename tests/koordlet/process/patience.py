"""Waiting for what a koordlet does, as long as an emulated guest needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.waiting import wait_until

PATIENCE_S = 240.0
"""Seconds to wait for what will come; an emulated guest needs most of it."""
POLL_S = 0.1
"""Between looks: many of them have koordlet render a page."""


def until(done: Callable[[], Any], what: str, seconds: float = PATIENCE_S) -> Any:
    """The first true result of `done`; fails after `seconds`."""
    return wait_until(done, what, seconds, POLL_S)
