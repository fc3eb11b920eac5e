"""The log on disk: `audit.log`, and what it was before under `audit-<time>-<i>.log` (spec 02 §9.1).

Lines wait in memory until `flush` (a periodic task, before a page is read, at stop) or until MAX_PENDING bytes wait, so
a kill costs seconds of events; a line torn by one is closed at the next start and readers pass over it. Names of
rotated files only ever ascend, also when the clock runs back. The directory may vanish, fill up or refuse: lines then
wait, and once too many wait new ones are dropped and counted, `problem` says why, and every flush tries anew.
"""

from __future__ import annotations

import datetime
import os
import re
from collections.abc import Callable
from pathlib import Path

from koordlet.app.clock import SYSTEM_CLOCK, Clock
from koordlet.app.logging import get_logger

log = get_logger(__name__)

CURRENT = "audit.log"
SEGMENT_BYTES = 2 << 20
"""Size at which a file is put aside."""
MAX_PENDING = 1 << 20
"""Bytes that wait in memory at most."""
FLUSH_SECONDS = 5.0
_ROTATED = re.compile(r"^audit-(\d{4}-\d\d-\d\d-\d\d-\d\d-\d\d)-([0-8])\.log$", re.ASCII)
_STAMP = "%Y-%m-%d-%H-%M-%S"
_LAST_INDEX = 8


def rotated_files(directory: Path) -> list[str]:
    """Names of the files put aside, newest first; empty when the directory cannot be read."""
    try:
        return sorted(filter(_ROTATED.match, os.listdir(directory)), reverse=True)  # noqa: PTH208 - names are wanted
    except OSError:
        return []


def next_name(newest: str | None, now: datetime.datetime) -> str:
    """The name for a file put aside at `now` (local time): later than `newest` whatever the clock says."""
    stamp, index = now.replace(microsecond=0, tzinfo=None), 0
    last = _stamp_of(newest)
    if last is not None and last[0] >= stamp:
        stamp, index = last[0], last[1] + 1
        if index > _LAST_INDEX:
            stamp, index = stamp + datetime.timedelta(seconds=1), 0
    return f"audit-{stamp.strftime(_STAMP)}-{index}.log"


def _stamp_of(name: str | None) -> tuple[datetime.datetime, int] | None:
    found = _ROTATED.match(name or "")
    try:
        return None if found is None else (datetime.datetime.strptime(found[1], _STAMP), int(found[2]))
    except ValueError:  # a foreign file that only looks like ours
        return None


class AuditLog:
    """Appends lines; keeps `megabytes` of them on disk, one file of two megabytes at least. Not thread-safe."""

    def __init__(
        self,
        directory: Path,
        megabytes: int,
        *,
        clock: Clock = SYSTEM_CLOCK,
        write: Callable[[int, bytes], int] = os.write,
    ) -> None:
        if megabytes <= 0:
            raise ValueError(f"size of the audit log must be positive, got {megabytes} MB")
        self.directory = directory
        self.max_files = max(1, (megabytes << 20) // SEGMENT_BYTES)
        self._segment = min(SEGMENT_BYTES, megabytes << 20)
        self._clock, self._write = clock, write
        self._lines: list[bytes] = []
        self._pending = 0
        self._fd: int | None = None
        self._size = self._size_on_disk()
        self.written, self.dropped, self.bytes = 0, 0, 0
        """Events that reached the file, events lost, and bytes written since the start."""
        self.problem: str | None = None
        """Why nothing can be written just now; fits `Health.check`."""

    @property
    def current(self) -> Path:
        """The file that is written."""
        return self.directory / CURRENT

    def append(self, line: bytes) -> None:
        """Take one line with its newline; it is dropped and counted when nothing can be written for too long."""
        if self._pending + len(line) > MAX_PENDING:
            self.flush()
        if self._pending + len(line) > MAX_PENDING:
            self.dropped += 1
            return
        self._lines.append(line)
        self._pending += len(line)
        if self._size + self._pending >= self._segment:
            self.flush()

    def flush(self) -> None:
        """Bring everything that waits to the file; never raises."""
        if not self._lines:
            return
        try:
            if self._fd is None or not self._still_there(self._fd):
                self._open()
            self._drain()
            if self._size >= self._segment:
                self._rotate()
        except OSError as error:
            reason = f"{self.directory}: {error.strerror or error}"
            if self.problem != reason:
                log.warning("Audit log cannot be written", directory=str(self.directory), error=str(error))
            self.problem = reason
        else:
            if self.problem is not None:
                log.info("Audit log is written again", directory=str(self.directory), dropped=self.dropped)
            self.problem = None

    def close(self) -> None:
        """Flush and let go; what cannot be written now is lost and counted."""
        self.flush()
        self.dropped += len(self._lines)
        self._lines, self._pending = [], 0
        self._release()

    def _drain(self) -> None:
        """Write what waits; after a short write the rest goes on waiting."""
        assert self._fd is not None
        data = b"".join(self._lines)
        done = 0
        try:
            while done < len(data):
                wrote = self._write(self._fd, data[done:])
                done += wrote
                self._size += wrote
                self.bytes += wrote
        finally:
            rest = data[done:]
            left = rest.count(b"\n")
            self.written += len(self._lines) - left
            self._lines, self._pending = rest.splitlines(keepends=True), len(rest)

    def _open(self) -> None:
        self._release()
        self.directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        fd = os.open(self.current, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            self._size = os.fstat(fd).st_size
            if self._size and os.pread(fd, 1, self._size - 1) != b"\n":
                self._size += self._write(fd, b"\n")  # close the line that a kill tore
        except OSError:
            os.close(fd)
            raise
        self._fd = fd

    def _size_on_disk(self) -> int:
        try:
            return self.current.stat().st_size
        except OSError:
            return 0

    def _still_there(self, fd: int) -> bool:
        mine = os.fstat(fd)
        try:
            named = self.current.stat()
        except OSError:
            return False
        return (mine.st_dev, mine.st_ino) == (named.st_dev, named.st_ino)

    def _rotate(self) -> None:
        """Put the file aside and delete the oldest ones. The next write opens a new one."""
        known = rotated_files(self.directory)
        now = datetime.datetime.fromtimestamp(self._clock.now(), datetime.UTC).astimezone()
        name = next_name(known[0] if known else None, now)
        self.current.rename(self.directory / name)
        self._release()
        for old in [name, *known][self.max_files - 1 :]:
            (self.directory / old).unlink(missing_ok=True)

    def _release(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd, self._size = None, 0
