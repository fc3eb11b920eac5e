"""Limits the streams that are open at the same time, in total and per user."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

MAX_STREAMS: Final = 256
"""A stream holds at most 0.5 MiB of unsent bytes here, so that all of them hold 128 MiB."""
MAX_STREAMS_PER_USER: Final = 64


class TooManyStreams(Exception):
    """The message names the limit that is reached."""


class StreamSlots:
    """Counts open streams."""

    def __init__(self, total: int = MAX_STREAMS, per_user: int = MAX_STREAMS_PER_USER) -> None:
        self._total = total
        self._per_user = per_user
        self._open: Counter[str] = Counter()

    @property
    def open(self) -> int:
        """Streams that are open now."""
        return self._open.total()

    @contextmanager
    def taken(self, user: str) -> Iterator[None]:
        """Hold one slot. Raises TooManyStreams."""
        if self._open[user] >= self._per_user:
            raise TooManyStreams(f"user {user!r} has {self._per_user} open streams, which is the limit")
        if self.open >= self._total:
            raise TooManyStreams(f"{self._total} streams are open, which is the limit of this server")
        self._open[user] += 1
        try:
            yield
        finally:
            self._open[user] -= 1
            if not self._open[user]:
                del self._open[user]
