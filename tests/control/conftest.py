"""What all tests of the control plane share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from control.component import startup
from control.manager import process


@pytest.fixture(scope="session", autouse=True)
def no_frozen_heap() -> Iterator[None]:
    """Components started in this process do not collect and freeze the objects of all tests: that takes seconds each,
    in which their event loop stands still.
    """
    with pytest.MonkeyPatch.context() as patch:
        for module in (startup, process):
            patch.setattr(module, "freeze_heap", lambda: None)
        yield
