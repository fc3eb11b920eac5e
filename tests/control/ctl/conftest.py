"""What the tests of koordctl share. It runs on asyncio's own event loop."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable

import pytest
from rich.console import Console

from control.ctl.progress import TerminalProgress


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loop of `asyncio.run`, not the components' (`tests/conftest.py`)."""
    return {"asyncio": asyncio.new_event_loop}


@pytest.fixture
def progress() -> TerminalProgress:
    return TerminalProgress(Console(file=io.StringIO(), width=200))
