"""Kernel files kept open between ticks and read with `pread`: the fast path of every collector.

Opening a file costs several times a read, so a descriptor stays open until its cgroup is gone. Reading the descriptor
of a removed cgroup fails with ENODEV (or ESTALE), even if another cgroup of the same name exists by then. The file is
then opened again. Files outside cgroupfs (tests) can still be read after removal, so with `verify` each read compares
the inode first.

Bounds: at most `max_fds` descriptors (RLIMIT_NOFILE is raised to its hard limit first, and a quarter of it is left to
the rest of the process). Beyond that, files are opened, read and closed each time. A descriptor that was not used for
`idle_ticks` ticks is closed. `os.pread` into new `bytes` was measured as fast as
`preadv` into a reusable buffer plus the slice that every parser needs, hence the simple call. Not thread-safe: one loop
owns it.
"""

from __future__ import annotations

import errno
import os
import resource

READ_SIZE = 8192
COMPLETE_BELOW_BYTES = 3072
"""A shorter read is complete: seq_file ends a read only at the end of a page, and no record here is 1 KiB long."""
DEFAULT_IDLE_TICKS = 60
MAX_DESCRIPTOR_LIMIT = 1 << 20
"""The limit to set where the hard limit is unlimited."""
_GONE = (errno.ENODEV, errno.ESTALE)
_ABSENT = (errno.ENOENT, errno.ENOTDIR)


class _Entry:
    __slots__ = ("fd", "identity", "used")

    def __init__(self, fd: int, used: int, identity: tuple[int, int] | None) -> None:
        self.fd = fd
        self.used = used
        self.identity = identity  # (device, inode), only with verify


class ReadCache:
    """`read(path)` returns the whole content, or None when the file does not exist (any longer)."""

    def __init__(
        self, max_fds: int | None = None, *, idle_ticks: int = DEFAULT_IDLE_TICKS, verify: bool = False
    ) -> None:
        self._max_fds = raise_fd_limit() if max_fds is None else max_fds
        self._idle_ticks = idle_ticks
        self._verify = verify
        self._entries: dict[str, _Entry] = {}
        self._tick = 0
        self.opens = 0
        """Number of files opened so far. A read that does not change it used an open descriptor, hence the same
        cgroup."""

    def begin_tick(self) -> None:
        self._tick += 1

    def end_tick(self) -> int:
        """Close the descriptors that were not used for `idle_ticks` ticks; returns their number. Looks at every
        eighth of that time, because a full node has a thousand."""
        if self._tick % max(self._idle_ticks // 8, 1):
            return 0
        oldest = self._tick - self._idle_ticks
        idle = [path for path, entry in self._entries.items() if entry.used < oldest]
        for path in idle:
            self._drop(path)
        return len(idle)

    def read(self, path: str) -> bytes | None:
        """Raises OSError for everything but absence (EACCES, EOPNOTSUPP of disabled PSI …)."""
        entry = self._entries.get(path)
        if entry is None:
            return self._first_read(path)
        entry.used = self._tick
        try:
            if self._verify and entry.identity != _identity(path):
                raise OSError(errno.ENODEV, "replaced", path)
            return _read_all(entry.fd)
        except OSError as error:
            if error.errno not in _GONE:
                raise
        self._drop(path)
        return self._first_read(path)

    def read_once(self, path: str) -> bytes | None:
        """Open, read and close: for `cgroup.procs` and `tasks`, because on v1 an open descriptor shows the ids of its
        first read until no process has read the list for a second."""
        return self._first_read(path, keep=False)

    def forget(self, *directories: str) -> None:
        """Close all files at or below these directories (no trailing slash), for example of containers that ended."""
        prefixes = tuple(f"{directory}/" for directory in directories)
        for path in [path for path in self._entries if path.startswith(prefixes)]:
            self._drop(path)

    def paths(self) -> list[str]:
        """The files that are open."""
        return list(self._entries)

    def close(self) -> None:
        for path in list(self._entries):
            self._drop(path)

    def __enter__(self) -> ReadCache:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _first_read(self, path: str, *, keep: bool = True) -> bytes | None:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            if error.errno in _ABSENT or error.errno in _GONE:
                return None
            raise
        self.opens += 1
        entry = _Entry(fd, self._tick, None)
        keep = keep and len(self._entries) < self._max_fds
        try:
            content = _read_all(entry.fd)
            if self._verify:
                status = os.fstat(fd)
                entry.identity = (status.st_dev, status.st_ino)
        except OSError as error:
            keep = False
            if error.errno in _GONE:
                return None
            raise
        finally:
            if not keep:
                os.close(fd)
        if keep:
            self._entries[path] = entry
        return content

    def _drop(self, path: str) -> None:
        os.close(self._entries.pop(path).fd)


def _read_all(fd: int) -> bytes:
    """Long lists of ids need several reads."""
    content = os.pread(fd, READ_SIZE, 0)
    if len(content) < COMPLETE_BELOW_BYTES:
        return content
    chunks = [content]
    offset = len(content)
    while chunk := os.pread(fd, READ_SIZE, offset):
        chunks.append(chunk)
        offset += len(chunk)
    return b"".join(chunks)


def _identity(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)  # noqa: PTH116 - strings on purpose, hot
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def raise_fd_limit() -> int:
    """Raise RLIMIT_NOFILE to its hard limit; returns the number of descriptors that a cache may hold."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = MAX_DESCRIPTOR_LIMIT if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    return limit - limit // 4
