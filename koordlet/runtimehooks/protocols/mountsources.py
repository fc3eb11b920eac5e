"""Creates the host directories that hooks mount into containers.

Containers write to these directories, so nothing in them is trusted: they are created and opened without following
symbolic links, and below a parent that belongs to root and that no other user can write.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterable
from pathlib import Path

from koordlet.runtimehooks.stages import ContainerMount, MountDirectory

PARENT_MODE = 0o711
"""Other users of the host do not list the directories of containers."""
WRITABLE_MODE = 0o1777
"""Processes of containers have any user id; the sticky bit keeps them from removing each other's files."""
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def prepare_sources(mounts: Iterable[ContainerMount]) -> None:
    """Create the directories that the mounts need. Raises OSError, also for a parent that others may write."""
    for mount in mounts:
        if mount.directory is not MountDirectory.EXISTS:
            _prepare(Path(mount.source), fresh=mount.directory is MountDirectory.FRESH)


def _prepare(path: Path, *, fresh: bool) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=PARENT_MODE)
    parent = os.open(path.parent, _DIRECTORY)
    try:
        _check_parent(path.parent, os.fstat(parent))
        if fresh:
            _remove(path.name, parent)
        try:
            os.mkdir(path.name, mode=0o700, dir_fd=parent)
        except FileExistsError:
            if fresh:
                raise
        directory = os.open(path.name, _DIRECTORY, dir_fd=parent)
        try:
            os.fchmod(directory, WRITABLE_MODE)
        finally:
            os.close(directory)
    finally:
        os.close(parent)


def _remove(name: str, parent: int) -> None:
    try:
        status = os.lstat(name, dir_fd=parent)
    except FileNotFoundError:
        return
    if stat.S_ISDIR(status.st_mode):
        shutil.rmtree(name, dir_fd=parent)
    else:
        os.unlink(name, dir_fd=parent)


def _check_parent(path: Path, status: os.stat_result) -> None:
    if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(f"{path} can be written by others; no directory for containers is created in it")
