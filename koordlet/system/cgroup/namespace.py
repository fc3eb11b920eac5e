"""Paths of /proc/PID/cgroup that are relative to a cgroup namespace.

On cgroup v2 a container that is not privileged has a cgroup namespace of its own: the kernel shows it the groups of
other processes relative to its own group (`0::/../../pod1/main`). Its own group is found by the inode of its root,
because no file of the container names it.
"""

from __future__ import annotations

import os
import posixpath
from functools import lru_cache
from pathlib import Path

OWN_ROOT = Path("/sys/fs/cgroup")
"""Where a container's runtime mounts its own group."""


def absolute(directory: str, tree: Path, own_root: Path = OWN_ROOT) -> str | None:
    """The directory below `tree`, the host's mount of cgroup v2, without leading slash; None if the process's own group
    is not found."""
    if directory != ".." and not directory.startswith("../"):
        return directory
    own = _own_directory(tree, own_root)
    return None if own is None else posixpath.normpath(posixpath.join(own, directory))


@lru_cache(maxsize=4)
def _own_directory(tree: Path, own_root: Path) -> str | None:
    """Searched once: a process that has relative paths stays in its group."""
    try:
        own_inode = own_root.stat().st_ino
    except OSError:
        return None
    for directory, _, _ in os.walk(tree):
        try:
            if Path(directory).stat().st_ino == own_inode:
                return os.path.relpath(directory, tree)
        except FileNotFoundError:  # removed since it was listed
            continue
    return None
