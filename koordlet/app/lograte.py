"""A handler of log records that limits the lines per place in the code.

Fields may come from tenants, who can cause a message as often as they like. Each place that logs has a number of lines
per minute, whatever is in the fields; this includes libraries. What is omitted is counted, and the log states it. The
places are part of the code, so the memory for them is bounded.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final, TextIO

LINES_PER_MINUTE: Final = 300
"""Of one place. With fields of maximal length these are about a megabyte."""


class LimitedStreamHandler(logging.StreamHandler[TextIO]):
    """Writes to `stream`; debug records are not limited, because they are written on demand only."""

    def __init__(
        self, stream: TextIO, *, per_minute: int = LINES_PER_MINUTE, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(stream)
        self._per_minute = per_minute
        self._clock = clock
        self._places: dict[tuple[str, int], tuple[int, int]] = {}
        """(file, line) -> number of the minute, records in it."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno < logging.INFO:
            super().emit(record)
            return
        place, minute = (record.pathname, record.lineno), int(self._clock() // 60)
        last_minute, count = self._places.get(place, (minute, 0))
        if last_minute != minute:
            if count > self._per_minute:
                self._report(record, "Log messages were omitted", f"count={count - self._per_minute}")
            count = 0
        self._places[place] = minute, count + 1
        if count < self._per_minute:
            super().emit(record)
        elif count == self._per_minute:
            self._report(record, "Omitting log messages until the next minute", f"limit={self._per_minute}")

    def _report(self, record: logging.LogRecord, message: str, field: str) -> None:
        """A line about the place of `record`, in the handler's format."""
        text = f"{message} from {record.filename}:{record.lineno} {field}"
        report = logging.LogRecord(record.name, logging.WARNING, record.pathname, record.lineno, text, None, None)
        super().emit(report)
