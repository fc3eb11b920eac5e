"""The log on disk: `audit.log`, and rotated files `audit-<time>-<i>.log` (spec 02 §9.1).

Lines are buffered until `flush` (a periodic task, before a page is read, at stop) or until `MAX_PENDING_BYTES`, so a
kill loses seconds of events. A partial line of a killed process is terminated at the next start, and readers skip it.
Names of rotated files always ascend, also when the clock steps back. If the directory is missing, full or not writable,
lines stay buffered; when the buffer is full, new lines are dropped and counted. `problem` has the reason, and each
flush tries again.
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
"""Size at which a file is rotated."""
MAX_PENDING_BYTES = 1 << 20
"""Size of the buffer."""
FLUSH_PERIOD_S = 5.0
_ROTATED = re.compile(r"^audit-(\d{4}-\d\d-\d\d-\d\d-\d\d-\d\d)-([0-8])\.log$", re.ASCII)
_STAMP = "%Y-%m-%d-%H-%M-%S"
_LAST_INDEX = 8


def rotated_files(directory: Path) -> list[str]:
    """Names of the rotated files, newest first; empty if the directory cannot be read."""
    try:
        return sorted(filter(_ROTATED.match, os.listdir(directory)), reverse=True)  # noqa: PTH208 - names are needed
    except OSError:
        return []


def next_name(newest: str | None, now: datetime.datetime) -> str:
    """The name of a file rotated at `now` (local time), greater than `newest` even if the clock stepped back."""
    stamp = now.replace(microsecond=0, tzinfo=None)
    index = 0
    last = _stamp_of(newest)
    if last is not None and last[0] >= stamp:
        stamp = last[0]
        index = last[1] + 1
        if index > _LAST_INDEX:
            stamp += datetime.timedelta(seconds=1)
            index = 0
    return f"audit-{stamp.strftime(_STAMP)}-{index}.log"


def _stamp_of(name: str | None) -> tuple[datetime.datetime, int] | None:
    match = _ROTATED.match(name or "")
    try:
        return None if match is None else (datetime.datetime.strptime(match[1], _STAMP), int(match[2]))
    except ValueError:  # not a rotated file, although its name matches
        return None


class AuditLogFile:
    """Appends lines; keeps `megabytes` on disk, at least one file of two megabytes. Not thread-safe."""

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
        self._clock = clock
        self._write = write
        self._lines: list[bytes] = []
        self._pending = 0
        self._fd: int | None = None
        self._size = self._size_on_disk()
        self.written = 0
        """Events written to the file."""
        self.dropped = 0
        """Lost events."""
        self.bytes = 0
        """Bytes written to the file."""
        self.problem: str | None = None
        """Why nothing can be written; fits `HealthChecks.check`."""

    @property
    def current(self) -> Path:
        """The file that lines are appended to."""
        return self.directory / CURRENT

    def append(self, line: bytes) -> None:
        """Buffer one line, which has its newline. It is dropped and counted if the buffer is full and cannot be
        written."""
        if self._pending + len(line) > MAX_PENDING_BYTES:
            self.flush()
        if self._pending + len(line) > MAX_PENDING_BYTES:
            self.dropped += 1
            return
        self._lines.append(line)
        self._pending += len(line)
        if self._size + self._pending >= self._segment:
            self.flush()

    def flush(self) -> None:
        """Write the buffer to the file; never raises."""
        if not self._lines:
            return
        try:
            if self._fd is None or not self._is_current(self._fd):
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
                log.info("Audit log can be written again", directory=str(self.directory), dropped=self.dropped)
            self.problem = None

    def close(self) -> None:
        """Flush and close the file; lines that cannot be written are lost and counted."""
        self.flush()
        self.dropped += len(self._lines)
        self._lines = []
        self._pending = 0
        self._release()

    def _drain(self) -> None:
        """Write the buffer; if a write fails, the rest stays buffered."""
        assert self._fd is not None
        data = b"".join(self._lines)
        done = 0
        try:
            while done < len(data):
                count = self._write(self._fd, data[done:])
                done += count
                self._size += count
                self.bytes += count
        finally:
            rest = data[done:]
            self.written += len(self._lines) - rest.count(b"\n")
            self._lines = rest.splitlines(keepends=True)
            self._pending = len(rest)

    def _open(self) -> None:
        self._release()
        self.directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        fd = os.open(self.current, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            self._size = os.fstat(fd).st_size
            if self._size and os.pread(fd, 1, self._size - 1) != b"\n":
                self._size += self._write(fd, b"\n")  # terminate the partial line of a killed process
        except OSError:
            os.close(fd)
            raise
        self._fd = fd

    def _size_on_disk(self) -> int:
        try:
            return self.current.stat().st_size
        except OSError:
            return 0

    def _is_current(self, fd: int) -> bool:
        """Whether the open file is still the one at the path."""
        opened = os.fstat(fd)
        try:
            named = self.current.stat()
        except OSError:
            return False
        return (opened.st_dev, opened.st_ino) == (named.st_dev, named.st_ino)

    def _rotate(self) -> None:
        """Rename the file and delete the oldest rotated ones. The next write opens a new file."""
        rotated = rotated_files(self.directory)
        now = datetime.datetime.fromtimestamp(self._clock.now(), datetime.UTC).astimezone()
        name = next_name(rotated[0] if rotated else None, now)
        self.current.rename(self.directory / name)
        self._release()
        for old in [name, *rotated][self.max_files - 1 :]:
            (self.directory / old).unlink(missing_ok=True)

    def _release(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
            self._size = 0
