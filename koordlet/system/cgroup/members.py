"""Processes and threads of one cgroup directory: ``cgroup.procs``, ``tasks``, ``cgroup.threads``.

A directory that vanishes, or a file that the kernel does not show for it, has no members.
"""

from __future__ import annotations

import os
from pathlib import Path


def first_processes(directory: Path | str, limit: int) -> list[int]:
    """Up to `limit` process ids of ``cgroup.procs``."""
    try:
        with Path(directory, "cgroup.procs").open(encoding="ascii") as file:
            lines = [file.readline() for _ in range(limit)]
    except OSError:  # the cgroup was removed
        return []
    return [int(line) for line in lines if line]


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
