"""What the tests of koordctl share."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from control.ctl.progress import TerminalProgress


@pytest.fixture
def progress() -> TerminalProgress:
    return TerminalProgress(Console(file=io.StringIO(), width=200))
