"""inotify(7) through ctypes: which entries appear in and vanish from directories, without a thread.

The descriptor does not block; an event loop can wait for it. Only creation and deletion are watched. cgroup file
systems report both for directories that user space creates and removes. A watch on a removed cgroup stays until it is
removed (other file systems end it with an `ignored` event).
"""

from __future__ import annotations

import ctypes
import os
import struct
from dataclasses import dataclass
from pathlib import Path

_CREATE = 0x100
_DELETE = 0x200
_UNMOUNT = 0x2000
_OVERFLOW = 0x4000
_IGNORED = 0x8000
_ISDIR = 0x40000000
_ONLYDIR = 0x01000000
_HEADER = struct.Struct("iIII")
_READ_BYTES = 64 << 10
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class DirEvent:
    """One event in the watched directory `watch`."""

    watch: int
    """The number that `add` returned; -1 for an overflow."""
    name: str = ""
    created: bool = False
    deleted: bool = False
    is_dir: bool = False
    overflow: bool = False
    """The kernel's queue was full: events are lost, directories must be read again."""
    ended: bool = False
    """The watch has ended."""


def parse(data: bytes) -> list[DirEvent]:
    """The events of one read. Raises ValueError when `data` is truncated."""
    events = []
    at = 0
    while at < len(data):
        try:
            watch, mask, _, length = _HEADER.unpack_from(data, at)
        except struct.error as error:
            raise ValueError(f"inotify: header truncated at byte {at} of {len(data)}") from error
        at += _HEADER.size
        if at + length > len(data):
            raise ValueError(f"inotify: name truncated at byte {at} of {len(data)}")
        name = os.fsdecode(data[at : at + length].split(b"\0", 1)[0])
        at += length
        events.append(
            DirEvent(
                watch,
                name,
                created=bool(mask & _CREATE),
                deleted=bool(mask & _DELETE),
                is_dir=bool(mask & _ISDIR),
                overflow=bool(mask & _OVERFLOW),
                ended=bool(mask & (_IGNORED | _UNMOUNT)),
            )
        )
    return events


class Inotify:
    """One inotify instance. The constructor raises OSError when there is none (EMFILE: too many per user)."""

    def __init__(self) -> None:
        self.fd: int = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self.fd < 0:
            raise _error("inotify_init1")

    def add(self, directory: Path | str) -> int:
        """Watch a directory. Raises OSError (ENOSPC: too many watches per user, ENOENT, ENOTDIR)."""
        watch: int = _libc.inotify_add_watch(self.fd, os.fsencode(directory), _CREATE | _DELETE | _ONLYDIR)
        if watch < 0:
            raise _error(str(directory))
        return watch

    def remove(self, watch: int) -> None:
        """End a watch. It is no error if the kernel has ended it already."""
        _libc.inotify_rm_watch(self.fd, watch)

    def read(self) -> list[DirEvent]:
        """The events since the last read; empty when there were none."""
        try:
            return parse(os.read(self.fd, _READ_BYTES))
        except BlockingIOError:
            return []

    def close(self) -> None:
        """End all watches."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def _error(what: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number), what)
