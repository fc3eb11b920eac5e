"""The only function that changes a kernel file: a single `write` call; refusals are typed errors.

Only the resource executor may import this module (import-linter checks it); it decides what is written, in which order
and whether a write is needed. cgroup and sysctl files take one value per write call, so a short write is an error.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from koordlet.system.beneath import open_beneath


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
    """EACCES, EPERM, EROFS: no permission. ELOOP, EXDEV: the path has a symbolic link, or leaves the root."""


class WriteUnsupported(WriteError):
    """EOPNOTSUPP: the file exists, the kernel does not implement it."""


_KINDS: tuple[tuple[tuple[int, ...], type[WriteError], str], ...] = (
    ((errno.ENOENT, errno.ENODEV, errno.ENOTDIR, errno.ESRCH), TargetGone, "does not exist"),
    ((errno.EBUSY, errno.EAGAIN), TargetBusy, "in use"),
    ((errno.EINVAL, errno.ERANGE, errno.ENOSPC), WriteRefused, "value not acceptable here"),
    ((errno.EACCES, errno.EPERM, errno.EROFS), WriteDenied, "not permitted"),
    ((errno.ELOOP, errno.EXDEV), WriteDenied, "the path leaves the root, or has a symbolic link"),
    ((errno.EOPNOTSUPP,), WriteUnsupported, "not implemented by this kernel"),
)


_FLAGS = os.O_WRONLY | os.O_TRUNC


def write_value(path: str | Path, value: str, *, below: str | None = None) -> None:
    """Write `value` in one call; never creates a file. `below`: the root that the path must not leave, by `..` or by a
    symbolic link. Raises a `WriteError`."""
    name = os.fspath(path)
    try:
        if below is None:
            fd = os.open(name, _FLAGS | os.O_CLOEXEC)
        else:
            fd = open_beneath(below, _relative(name, below), _FLAGS)
        try:
            written = os.write(fd, value.encode())
        finally:
            os.close(fd)
    except OSError as error:
        raise write_error(name, value, error.errno or errno.EIO) from error
    if written != len(value.encode()):
        raise WriteError(name, value, errno.EIO, f"only {written} bytes were accepted")


def _relative(name: str, below: str) -> str:
    """Raises OSError (EXDEV) for a path that is not below the root."""
    relative = name.removeprefix(f"{below.rstrip('/')}/")
    if relative == name:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), name)
    return relative


def write_error(path: str, value: str, code: int, explanation: str = "") -> WriteError:
    """The error for an errno; `explanation` is the kernel's own text, where it gives one."""
    for codes, kind, meaning in _KINDS:
        if code in codes:
            return kind(path, value, code, explanation or meaning)
    return WriteError(path, value, code, explanation or "unexpected")
