"""Processes and threads of one cgroup directory: ``cgroup.procs``, ``tasks``, ``cgroup.threads``.

A directory that vanishes, or a file that the kernel does not show for it, has no members.
"""

from __future__ import annotations

import os
from pathlib import Path

_MAX_PID_CHARS = 12
"""Of a process id, which is below 2^22, and its newline."""


def first_processes(directory: str, limit: int) -> list[int]:
    """Up to `limit` process ids of ``cgroup.procs``. Raw calls, because each search reads every cgroup."""
    try:
        fd = os.open(f"{directory}/cgroup.procs", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # the cgroup was removed
        return []
    try:
        lines = os.read(fd, limit * _MAX_PID_CHARS).split(b"\n", limit)
    except OSError:
        return []
    finally:
        os.close(fd)
    return [int(line) for line in lines[:limit] if line]


def threads(directory: Path | str) -> list[int]:
    """Thread ids: of ``tasks`` on cgroup v1, of ``cgroup.threads`` on v2."""
    for name in ("tasks", "cgroup.threads"):
        try:
            return [int(tid) for tid in Path(os.fspath(directory), name).read_text().split()]
        except FileNotFoundError:
            continue
        except OSError:  # ENODEV: removed after opening; EOPNOTSUPP: a threaded cgroup, whose domain lists its threads
            return []
    return []
