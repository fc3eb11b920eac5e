"""Reads container logs: CRI lines from rotated files, with tail, since and follow."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

POLL_SECONDS = 0.2
CHUNK_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class LogQuery:
    tail: int | None = None
    since: float | None = None
    """Wall-clock time in seconds; older lines are left out."""
    timestamps: bool = False
    limit_bytes: int | None = None
    follow: bool = False


@dataclass(frozen=True, slots=True)
class LogLine:
    stamp: str
    text: bytes
    whole: bool


def parse_line(line: bytes) -> LogLine | None:
    """`<RFC 3339> <stream> F|P <text>`; None for any other line (one truncated by a crash)."""
    parts = line.split(b" ", 3)
    if len(parts) != 4 or parts[2] not in (b"F", b"P"):
        return None
    return LogLine(parts[0].decode(errors="replace"), parts[3], parts[2] == b"F")


def stamp_seconds(stamp: str) -> float | None:
    try:
        head, _, fraction = stamp.removesuffix("Z").partition(".")
        whole = datetime.fromisoformat(head + "+00:00").timestamp()
        return whole + (int(fraction) / 10 ** len(fraction) if fraction else 0.0)
    except ValueError:
        return None


def files(path: Path) -> list[Path]:
    """The current file and its rotated predecessors, oldest first."""
    old = [p for p in path.parent.glob(path.name + ".*") if p.suffix[1:].isdigit()]
    return [*sorted(old, key=lambda p: -int(p.suffix[1:])), *([path] if path.exists() else [])]


def render(line: LogLine, query: LogQuery) -> bytes:
    head = f"{line.stamp} ".encode() if query.timestamps else b""
    return head + line.text + (b"\n" if line.whole else b"")


def _recent_enough(line: LogLine, query: LogQuery) -> bool:
    if query.since is None:
        return True
    seconds = stamp_seconds(line.stamp)
    return seconds is not None and seconds >= query.since


def _lines(path: Path) -> Iterator[LogLine]:
    for file in files(path):
        try:
            with file.open("rb") as f:
                for raw in f:
                    line = parse_line(raw.rstrip(b"\n"))
                    if line is not None and raw.endswith(b"\n"):
                        yield line
        except FileNotFoundError:
            continue  # removed by a rotation between listing and opening


def read(path: Path, query: LogQuery) -> list[LogLine]:
    """The present lines, selected by `since` and `tail` (number of lines from the end)."""
    matching = (line for line in _lines(path) if _recent_enough(line, query))
    return list(matching if query.tail is None else deque(matching, maxlen=max(0, query.tail)))


class _Tailer:
    """Follows one path across rotations; `read_new` returns the complete new lines."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd: int | None = None
        self._rest = b""

    def open_at_end(self) -> None:
        if self._open():
            assert self._fd is not None
            os.lseek(self._fd, 0, os.SEEK_END)

    def _open(self) -> bool:
        try:
            self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        return True

    def read_new(self) -> list[LogLine]:
        out: list[LogLine] = []
        if self._fd is None and not self._open():
            return out
        while True:
            assert self._fd is not None
            while data := os.read(self._fd, CHUNK_BYTES):
                *lines, self._rest = (self._rest + data).split(b"\n")
                out.extend(line for raw in lines if (line := parse_line(raw)) is not None)
            if not self._rotated():
                return out
            os.close(self._fd)
            self._rest = b""
            if not self._open():
                self._fd = None
                return out

    def _rotated(self) -> bool:
        assert self._fd is not None
        try:
            return os.stat(self._path).st_ino != os.fstat(self._fd).st_ino  # noqa: PTH116
        except FileNotFoundError:
            return False

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)


async def stream(path: Path, query: LogQuery, running: Callable[[], bool]) -> AsyncIterator[bytes]:
    """The present lines, then (with `follow`) new ones until the container has ended; at most `limit_bytes`."""
    left = query.limit_bytes
    async for line in _records(path, query, running):
        data = render(line, query)
        if left is not None:
            data = data[:left]
            left -= len(data)
        if data:
            yield data
        if left == 0:
            return


async def _records(path: Path, query: LogQuery, running: Callable[[], bool]) -> AsyncIterator[LogLine]:
    tailer = _Tailer(path)
    try:
        if query.follow:
            tailer.open_at_end()
        last = ""
        # In a thread, because parsing tens of megabytes would block the event loop.
        for line in await asyncio.to_thread(read, path, query):
            last = line.stamp
            yield line
        while query.follow:
            alive = running()
            for line in tailer.read_new():
                if line.stamp > last:  # lines written between opening and reading have been returned already
                    yield line
            if not alive:
                return
            await asyncio.sleep(POLL_SECONDS)
    finally:
        tailer.close()
