"""The only function that changes a kernel file: a single `write` call; refusals are typed errors.

Only the resource executor may import this module (import-linter checks it); it decides what is written, in which order
and whether a write is needed. cgroup and sysctl files take one value per write call, so a short write is an error.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path


class WriteError(Exception):
    """The kernel refused `value` for `path`; `errno` is the code, the subclass its kind."""

    def __init__(self, path: str, value: str, code: int, meaning: str) -> None:
        super().__init__(f"{path}: writing {value!r}: {os.strerror(code)} ({meaning})")
        self.path = path
        self.value = value
        self.errno = code


class TargetGone(WriteError):
    """ENOENT, ENODEV, ENOTDIR, ESRCH: cgroup, file or task does not exist (any longer)."""


class TargetBusy(WriteError):
    """EBUSY, EAGAIN: in use in a way that the new value does not allow."""


class WriteRefused(WriteError):
    """EINVAL, ERANGE, ENOSPC: not acceptable, possibly because of a parent's or child's value."""


class WriteDenied(WriteError):
    """EACCES, EPERM, EROFS: no permission."""


class WriteUnsupported(WriteError):
    """EOPNOTSUPP: the file exists, the kernel does not implement it."""


_KINDS: tuple[tuple[tuple[int, ...], type[WriteError], str], ...] = (
    ((errno.ENOENT, errno.ENODEV, errno.ENOTDIR, errno.ESRCH), TargetGone, "does not exist"),
    ((errno.EBUSY, errno.EAGAIN), TargetBusy, "in use"),
    ((errno.EINVAL, errno.ERANGE, errno.ENOSPC), WriteRefused, "value not acceptable here"),
    ((errno.EACCES, errno.EPERM, errno.EROFS), WriteDenied, "not permitted"),
    ((errno.EOPNOTSUPP,), WriteUnsupported, "not implemented by this kernel"),
)


def write_value(path: str | Path, value: str) -> None:
    """Write `value` in one call; never creates a file. Raises a `WriteError`."""
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
        raise WriteError(name, value, errno.EIO, f"only {written} bytes were accepted")


def write_error(path: str, value: str, code: int, explanation: str = "") -> WriteError:
    """The error for an errno; `explanation` is the kernel's own text, where it gives one."""
    for codes, kind, meaning in _KINDS:
        if code in codes:
            return kind(path, value, code, explanation or meaning)
    return WriteError(path, value, code, explanation or "unexpected")
