"""How many lines one place in the code may log per minute, whatever is in the fields."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator

import pytest

from koordlet.app.logging import get_logger, setup
from koordlet.app.lograte import LINES_PER_MINUTE, LimitedStreamHandler


@pytest.fixture
def root_logger() -> Iterator[logging.Logger]:
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    yield root
    root.handlers[:] = before
    root.setLevel(level)


def lines(stream: io.StringIO, text: str) -> int:
    return sum(text in line for line in stream.getvalue().splitlines())


def test_a_tenant_cannot_fill_the_log_with_ever_new_fields(root_logger: logging.Logger) -> None:
    stream = io.StringIO()
    setup(stream=stream)
    log = get_logger("test.lograte")
    for number in range(3 * LINES_PER_MINUTE):
        log.warning("Pod left out", pod=f"tenant/{number}", error="x" * 5000)
    log.warning("Another message")
    assert LINES_PER_MINUTE <= lines(stream, "Pod left out") <= 2 * LINES_PER_MINUTE  # the clock may reach a minute
    assert lines(stream, "Omitting log messages until the next minute from test_log_rate.py") >= 1
    assert lines(stream, "Another message") == 1


class Minutes:
    """A clock in minutes."""

    minute = 5.0

    def __call__(self) -> float:
        return 60 * self.minute


def test_omitted_lines_are_counted() -> None:
    stream, clock = io.StringIO(), Minutes()
    handler = LimitedStreamHandler(stream, per_minute=2, clock=clock)

    def emit(message: str, line: int = 1, level: int = logging.WARNING) -> None:
        handler.emit(logging.LogRecord("n", level, "/a/file.py", line, message, None, None))

    for number in range(5):
        emit(f"a{number}")
    emit("b", line=2)
    for _ in range(4):
        emit("debug", level=logging.DEBUG)
    clock.minute = 6
    emit("a5")
    clock.minute = 8
    emit("a6")
    assert stream.getvalue().splitlines() == [
        "a0",
        "a1",
        "Omitting log messages until the next minute from file.py:1 limit=2",
        "b",
        *["debug"] * 4,
        "Log messages were omitted from file.py:1 count=3",
        "a5",
        "a6",
    ]
