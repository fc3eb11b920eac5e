"""One process per state directory: a lock on a file in it, taken before anything is changed.

The kernel releases the lock when the process ends, however it ends. The file contains the holder's process id, for the
error message only, and stays.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path

LOCK_FILE = "lock"


class StateLockError(RuntimeError):
    """Another process uses the state directory; names the file and the process."""


class StateLockUnavailable(StateLockError):
    """The lock file cannot be created or locked; names the file and the cause."""


class StateLock:
    """`acquire` once; the lock is held until `release` or the end of the process."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / LOCK_FILE
        self._fd = -1

    def acquire(self) -> None:
        """Take the lock without waiting. Raises StateLockError."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise StateLockUnavailable(f"cannot open the lock file {self.path}: {error.strerror}") from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(fd, 32, 0).decode(errors="replace").strip()
            os.close(fd)
            of = f"process {holder}" if holder.isdecimal() else "another process"
            raise StateLockError(f"{self.path} is locked: {of} runs with this state directory") from error
        except OSError as error:
            os.close(fd)
            raise StateLockUnavailable(f"cannot lock {self.path}: {error.strerror}") from error
        self._fd = fd
        with suppress(OSError):  # a full disk: the lock holds without the number for the message
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Release the lock if it is held."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
