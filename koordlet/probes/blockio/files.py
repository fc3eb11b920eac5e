"""Bytes and operations by cgroup and disk from the kernel's own files, for where no program can be loaded."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from koordlet.probes.blockio.snapshot import DISCARD, READ, WRITE, BlockIOSnapshot, IoLosses
from koordlet.probes.culprits.matrix import CulpritMatrix
from koordlet.probes.layouts import BUCKETS
from koordlet.probes.loading.frame import FileSource, ProbeError
from koordlet.system.cgroup import tree
from koordlet.system.cgroup.blockio import V1_BYTES, V2, DiskUse, any_disk_use_file, read_disk_use
from koordlet.system.errors import CgroupGone
from koordlet.system.host import Host

DIRECTIONS_OF_FILES = (READ, WRITE, DISCARD)
"""The directions of `DiskUse`, as columns of a snapshot."""


class BlockFiles(FileSource):
    """Keys are the ids of the directories of the same path in `named`, the tree that names containers."""

    source = "files"

    def __init__(self, root: Path, named: Path, *, unified: bool) -> None:
        self._root = root
        self._named = named
        self._unified = unified

    @classmethod
    def of(cls, host: Host) -> BlockFiles:
        """Raises `ProbeError` where the machine has no such files."""
        mounts = host.facts.cgroup_mounts
        named = mounts.naming
        root = mounts.unified if mounts.version == 2 else mounts.v1.get("blkio")
        if root is None or named is None:
            raise ProbeError("files: no blkio hierarchy and no unified tree is mounted")
        unified = mounts.version == 2
        if not any_disk_use_file(root, unified=unified):
            raise ProbeError(f"files: no {V2 if unified else V1_BYTES} in {root}")
        return cls(root, named, unified=unified)

    def read(self) -> BlockIOSnapshot:
        """Read the files of every cgroup."""
        use: dict[tuple[int, int], DiskUse] = {}
        for path in tree.walk(self._root):
            try:
                key = tree.inode(self._named / path)
                disks = read_disk_use(self._root, path, unified=self._unified)
            except (CgroupGone, OSError):  # removed, without the controller, or not in the other hierarchy
                continue
            use.update(((key, device), disk) for device, disk in disks.items() if disk.any)
        return counts_only(use)


def counts_only(use: Mapping[tuple[int, int], DiskUse]) -> BlockIOSnapshot:
    """(key, device) -> use, as a snapshot without times."""
    rows = sorted(use)
    n = len(rows)
    keys = np.array(rows, dtype=np.int64).reshape(n, 2)
    size, operations = (np.zeros((n, 4), dtype=np.int64) for _ in range(2))
    for index, row in enumerate(rows):
        size[index, DIRECTIONS_OF_FILES] = use[row].bytes
        operations[index, DIRECTIONS_OF_FILES] = use[row].operations
    hist = np.zeros((n, 2, BUCKETS), dtype=np.int64)
    times = np.zeros((n, 4), dtype=np.int64)
    zeros = np.zeros(n, dtype=np.int64)
    return BlockIOSnapshot(
        source=BlockFiles.source,
        time_ns=time.monotonic_ns(),
        keys=keys[:, 0],
        device=keys[:, 1],
        queue_hist=hist,
        device_hist=hist,
        ops=operations,
        bytes=size,
        queue_ns=times,
        device_ns=times,
        ahead_ns=zeros,
        throttled_ns=zeros,
        throttled_count=zeros,
        culprits=CulpritMatrix.empty(),
        lost=IoLosses(),
    )
