"""Walking cgroup directories and their identity.

Directories are named relative to a hierarchy's root, ``""`` being the root itself. A directory that vanishes during a
walk is left out: containers end all the time. Nothing here creates or removes a cgroup.
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

from koordlet.system.errors import CgroupGone

_AT_FDCWD = -100
_FILEID_KERNFS = 0xFE
_HANDLE_BYTES = 8
_HEADER = struct.Struct("=Ii")
_libc = ctypes.CDLL(None, use_errno=True)


def children(root: Path | str, cgroup_dir: str = "") -> list[str]:
    """Names of the direct child cgroups in lexical order; empty when the directory does not exist."""
    try:
        with os.scandir(_join(root, cgroup_dir)) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except (FileNotFoundError, NotADirectoryError):
        return []


def walk(root: Path | str, cgroup_dir: str = "", depth: int | None = None) -> Iterator[str]:
    """*cgroup_dir* and everything below it, parents before children in lexical order, down to *depth* levels."""
    return (path for path, _ in _walk(root, cgroup_dir, depth))


def walk_ids(root: Path | str) -> Iterator[tuple[str, int]]:
    """(directory, id) of the whole tree, in `walk`'s order. Ids are as `cgroup_id` gives them, which is asked only on
    kernels where they are not the inodes' numbers."""
    try:
        inodes = ids_are_inodes(root)
    except CgroupGone:
        return
    for path, found in _walk(root):
        try:
            yield path, found.st_ino if inodes else cgroup_id(_join(root, path))
        except CgroupGone:
            continue


def ids_are_inodes(root: Path | str) -> bool:
    """Whether a tree's cgroup ids are its inodes' numbers, as on 64-bit kernels since 5.5; raises CgroupGone."""
    return cgroup_id(root) == inode(root)


def inode(directory: Path | str) -> int:
    """Raises CgroupGone."""
    try:
        return os.stat(directory).st_ino  # noqa: PTH116 - strings on purpose, hot
    except FileNotFoundError as error:
        raise CgroupGone(os.fspath(directory)) from error


def _walk(root: Path | str, cgroup_dir: str = "", depth: int | None = None) -> Iterator[tuple[str, os.stat_result]]:
    base = os.fspath(root)
    pending = [(cgroup_dir, 0)]
    while pending:
        path, level = pending.pop()
        try:
            found = os.stat(_join(base, path))  # noqa: PTH116 - strings on purpose, hot
        except (FileNotFoundError, NotADirectoryError):
            continue
        if not stat.S_ISDIR(found.st_mode):
            continue
        yield path, found
        # Two links are the directory's own: no child. Listing a leaf's files takes as long as ten of these calls.
        if level != depth and found.st_nlink != 2:
            prefix = f"{path}/" if path else ""
            pending += [(prefix + name, level + 1) for name in reversed(children(base, path))]


def at_depth(root: Path | str, cgroup_dir: str, depth: int) -> list[str]:
    """Directories exactly *depth* levels below: 1 below a QoS directory are pods, 2 containers (spec 03 §1.2)."""
    level = cgroup_dir.count("/") + depth if cgroup_dir else depth - 1
    return [path for path in walk(root, cgroup_dir, depth) if path and path.count("/") == level]


def cgroup_id(directory: Path | str) -> int:
    """The kernel's 64-bit id, as ``bpf_get_current_cgroup_id`` reports it; raises CgroupGone.

    The file handle carries it whole; where the file system gives none it is the inode number, the same thing on
    64-bit kernels since 5.5.
    """
    path = os.fspath(directory)
    buffer = ctypes.create_string_buffer(_HEADER.size + _HANDLE_BYTES)
    _HEADER.pack_into(buffer, 0, _HANDLE_BYTES, 0)
    mount_id = ctypes.c_int()
    arguments = (ctypes.c_int(_AT_FDCWD), os.fsencode(path), buffer, ctypes.byref(mount_id), ctypes.c_int(0))
    if _libc.name_to_handle_at(*arguments) == 0:
        size, kind = _HEADER.unpack_from(buffer)
        if kind == _FILEID_KERNFS and size == _HANDLE_BYTES:
            return int.from_bytes(buffer.raw[_HEADER.size :], sys.byteorder)
    return inode(path)


def _join(root: Path | str, cgroup_dir: str) -> str:
    return f"{os.fspath(root)}/{cgroup_dir}" if cgroup_dir else os.fspath(root)
