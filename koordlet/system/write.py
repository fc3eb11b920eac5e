"""The one primitive that changes a kernel file: a single ``write`` call, refusals as typed errors.

Only the resource executor may import this module (import-linter checks); what to write, in which order, and whether
it is needed at all is decided there. cgroup and sysctl files take a value per write call, so a short write is an error.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path


class WriteError(Exception):
    """The kernel refused *value* for *path*; ``errno`` keeps the code, the subclass says the kind."""

    def __init__(self, path: str, value: str, code: int, meaning: str) -> None:
        super().__init__(f"{path}: writing {value!r}: {os.strerror(code)} ({meaning})")
        self.path, self.value, self.errno = path, value, code


class TargetGone(WriteError):
    """ENOENT, ENODEV, ENOTDIR, ESRCH: cgroup, file or task does not exist (any more)."""


class Busy(WriteError):
    """EBUSY, EAGAIN: in use in a way the new value does not allow."""


class Refused(WriteError):
    """EINVAL, ERANGE, ENOSPC: not acceptable, also because a parent or child forbids it."""


class Denied(WriteError):
    """EACCES, EPERM, EROFS: no permission."""


class Unsupported(WriteError):
    """EOPNOTSUPP: the file is there, the kernel does not implement it."""


_KINDS: tuple[tuple[tuple[int, ...], type[WriteError], str], ...] = (
    ((errno.ENOENT, errno.ENODEV, errno.ENOTDIR, errno.ESRCH), TargetGone, "does not exist"),
    ((errno.EBUSY, errno.EAGAIN), Busy, "in use"),
    ((errno.EINVAL, errno.ERANGE, errno.ENOSPC), Refused, "value not acceptable here"),
    ((errno.EACCES, errno.EPERM, errno.EROFS), Denied, "not permitted"),
    ((errno.EOPNOTSUPP,), Unsupported, "not implemented by this kernel"),
)


def write_value(path: str | Path, value: str) -> None:
    """Write *value* in one call; never creates a file. Raises a :class:`WriteError`."""
    name = os.fspath(path)
    try:
        fd = os.open(name, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
        try:
            written = os.write(fd, value.encode())
        finally:
            os.close(fd)
    except OSError as error:
        raise write_error(name, value, error.errno or errno.EIO) from error
    if written != len(value.encode()):
        raise WriteError(name, value, errno.EIO, f"only {written} bytes were taken")


def write_error(path: str, value: str, code: int, said: str = "") -> WriteError:
    """The error for an errno; `said` is what the kernel adds to it in words."""
    for codes, kind, meaning in _KINDS:
        if code in codes:
            return kind(path, value, code, said or meaning)
    return WriteError(path, value, code, said or "unexpected")
