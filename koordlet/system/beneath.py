"""Opens files below a root without leaving it: no `..` above the root, no symbolic link anywhere in the path.

Directories come from NodeSLO and from runtimes, and cgroup trees may be delegated to tenants. `openat2` (Linux 5.6)
checks every step in the kernel. Where the kernel lacks it, or a seccomp profile refuses it, every directory of the path
is opened by itself without following links, which is as strict and needs a call per step.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
from typing import Final

SYS_OPENAT2: Final = {"x86_64": 437, "aarch64": 437, "riscv64": 437, "ppc64le": 437, "s390x": 437, "loongarch64": 437}
"""Number of the system call by machine; the same on all that were added since Linux 5.1."""
RESOLVE_NO_MAGICLINKS: Final = 0x02
RESOLVE_NO_SYMLINKS: Final = 0x04
RESOLVE_BENEATH: Final = 0x08
_MISSING = (errno.ENOSYS, errno.EPERM)
"""EPERM: an older seccomp profile. The walk reports a real EPERM again."""
_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

_libc = ctypes.CDLL(None, use_errno=True)
_number = SYS_OPENAT2.get(platform.machine())


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


_RESOLVE = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS


def open_beneath(root: str, path: str, flags: int) -> int:
    """A descriptor of `path`, relative to `root`. `root` itself may be reached through links. Raises OSError: ELOOP for
    a link, EXDEV for a path that leads upwards, EINVAL for a path that is empty or has a NUL."""
    relative = path.lstrip("/")
    if not relative or "\0" in relative:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
    if ".." in relative.split("/"):  # RESOLVE_BENEATH allows it within the root, where other pods' directories are
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), path)
    directory = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if _number is not None:
            try:
                return _openat2(_number, directory, relative, flags)
            except OSError as error:
                if error.errno not in _MISSING:
                    raise
        return walk_beneath(directory, relative, flags)
    finally:
        os.close(directory)


def read_text_beneath(root: str, path: str) -> str:
    """The text of a kernel file. Raises OSError as `open_beneath`."""
    with open(open_beneath(root, path, os.O_RDONLY), encoding="ascii") as file:
        return file.read()


def _openat2(number: int, directory: int, path: str, flags: int) -> int:
    how = _OpenHow(flags | os.O_CLOEXEC, 0, _RESOLVE)
    size = ctypes.c_size_t(ctypes.sizeof(how))
    fd: int = _libc.syscall(ctypes.c_long(number), ctypes.c_int(directory), os.fsencode(path), ctypes.byref(how), size)
    if fd < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), path)
    return fd


def walk_beneath(directory: int, path: str, flags: int) -> int:
    """As `open_beneath`, with a call per step; refuses every `..`. The caller closes `directory`."""
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if not parts:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
    *above, name = parts
    if ".." in parts:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), path)
    current = os.dup(directory)
    try:
        for part in above:
            below = os.open(part, _DIRECTORY, dir_fd=current)
            os.close(current)
            current = below
        return os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=current)
    finally:
        os.close(current)
