"""Walking cgroup directories, and their ids.

Directories are named relative to a hierarchy's root; `""` is the root itself. A directory that vanishes during a walk
is left out: containers end all the time. Nothing here creates or removes a cgroup.
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
_LINKS_OF_LEAF = 2
"""Link count of a directory without child directories; each child directory adds one."""
_HEADER = struct.Struct("=Ii")
_libc = ctypes.CDLL(None, use_errno=True)


def children(root: Path | str, cgroup_dir: str) -> list[str]:
    """Names of the direct child cgroups in lexical order; empty when the directory does not exist."""
    try:
        with os.scandir(_join(root, cgroup_dir)) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except (FileNotFoundError, NotADirectoryError):
        return []


def walk(root: Path | str, cgroup_dir: str = "") -> Iterator[str]:
    """`cgroup_dir` and everything below it, parents before children, in lexical order."""
    return (path for path, _ in _walk(root, cgroup_dir))


def walk_ids(root: Path | str) -> Iterator[tuple[str, int]]:
    """(directory, id) of the whole tree, in the order of `walk`. Ids are those of `cgroup_id`, which is called only on
    kernels where they are not the inode numbers."""
    try:
        inodes = ids_are_inodes(root)
    except CgroupGone:
        return
    for path, status in _walk(root):
        try:
            yield path, status.st_ino if inodes else cgroup_id(_join(root, path))
        except CgroupGone:
            continue


class RepeatedWalk:
    """`walk_ids` of one tree that is walked again and again.

    Listing a directory takes longer than asking for the status of its children, because every cgroup has dozens of
    files. So the names of the last walk are kept: while all of them exist and the directory's link count is theirs,
    there are no others. Bounded by the cgroups of the last walk."""

    def __init__(self, root: Path | str) -> None:
        self._root = os.fspath(root)
        self._names: dict[str, list[str]] = {}
        """Directory -> names of its child directories."""

    def walk_ids(self) -> Iterator[tuple[str, int]]:
        """As the function of this name."""
        try:
            inodes = ids_are_inodes(self._root)
            pending = [("", os.stat(self._root))]  # noqa: PTH116 - strings, because this is hot
        except (CgroupGone, FileNotFoundError):
            return
        names: dict[str, list[str]] = {}
        while pending:
            path, status = pending.pop()
            try:
                yield path, status.st_ino if inodes else cgroup_id(_join(self._root, path))
            except CgroupGone:
                continue
            if status.st_nlink != _LINKS_OF_LEAF:
                names[path], below = self._children(path, status.st_nlink - _LINKS_OF_LEAF)
                pending += reversed(below)
        self._names = names

    def _children(self, path: str, count: int) -> tuple[list[str], list[tuple[str, os.stat_result]]]:
        names = self._names.get(path)
        if names is not None and len(names) == count:
            below = self._existing(path, names)
            if len(below) == count:
                return names, below
        names = children(self._root, path)
        return names, self._existing(path, names)

    def _existing(self, path: str, names: list[str]) -> list[tuple[str, os.stat_result]]:
        prefix = f"{path}/" if path else ""
        statuses = []
        for name in names:
            child = prefix + name
            try:
                statuses.append((child, os.stat(f"{self._root}/{child}")))  # noqa: PTH116 - strings, as above
            except (FileNotFoundError, NotADirectoryError):
                continue
        return statuses


def ids_are_inodes(root: Path | str) -> bool:
    """Whether the cgroup ids of a tree are its inode numbers, as on 64-bit kernels since 5.5; raises CgroupGone."""
    return cgroup_id(root) == inode(root)


def inode(directory: Path | str) -> int:
    """Raises CgroupGone."""
    try:
        return os.stat(directory).st_ino  # noqa: PTH116 - strings, because this is hot
    except FileNotFoundError as error:
        raise CgroupGone(os.fspath(directory)) from error


def open_directory(directory: Path | str) -> int:
    """A descriptor of the directory, which the caller closes. Raises OSError."""
    return os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def _walk(root: Path | str, cgroup_dir: str = "") -> Iterator[tuple[str, os.stat_result]]:
    base = os.fspath(root)
    pending = [cgroup_dir]
    while pending:
        path = pending.pop()
        try:
            status = os.stat(_join(base, path))  # noqa: PTH116 - strings, because this is hot
        except (FileNotFoundError, NotADirectoryError):
            continue
        if not stat.S_ISDIR(status.st_mode):
            continue
        yield path, status
        # Listing the files of a leaf takes as long as ten of these calls.
        if status.st_nlink != _LINKS_OF_LEAF:
            prefix = f"{path}/" if path else ""
            pending += [prefix + name for name in reversed(children(base, path))]


def cgroup_id(directory: Path | str) -> int:
    """The kernel's 64-bit id, as `bpf_get_current_cgroup_id` returns it; raises CgroupGone.

    It is the file handle. Where the file system has none, it is the inode number, which is the same on 64-bit kernels
    since 5.5.
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
