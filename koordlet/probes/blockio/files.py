"""Bytes and operations by cgroup and disk from the kernel's own files, for where no program can be loaded.

v2: ``io.stat`` (Documentation/admin-guide/cgroup-v2.rst); v1: ``blkio.throttle.io_service_bytes`` and ``.io_serviced``.
They charge what the kernel charges: write-back on v1 is nobody's, and operations are bios, before they are merged.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from koordlet.probes.blockio.snapshot import DISCARD, READ, WRITE, BlockIOSnapshot, IoLost, device_number
from koordlet.probes.loading.frame import ProbeError
from koordlet.probes.schedlatency.layout import BUCKETS
from koordlet.probes.schedlatency.schedstat import walk_cgroups
from koordlet.system.host import Host

V1_BYTES, V1_OPS, V2 = "blkio.throttle.io_service_bytes", "blkio.throttle.io_serviced", "io.stat"
_V1 = {"Read": READ, "Write": WRITE, "Discard": DISCARD}
_V2 = {
    f"{letter}{unit}": (what, direction)
    for what, unit in enumerate(("bytes", "ios"))
    for letter, direction in (("r", READ), ("w", WRITE), ("d", DISCARD))
}
Counts = dict[int, list[list[int]]]
"""Device -> [bytes, operations] by direction."""


def _new() -> list[list[int]]:
    return [[0] * 4, [0] * 4]


def parse_io_stat(text: str) -> Counts:
    """``8:0 rbytes=1 wbytes=2 rios=3 …`` a line; keys that are not known are passed over."""
    found: Counts = {}
    for line in text.splitlines():
        name, *pairs = line.split()
        if ":" not in name:
            continue
        row = found.setdefault(device_number(name), _new())
        for pair in pairs:
            key, _, value = pair.partition("=")
            if key in _V2:
                what, direction = _V2[key]
                row[what][direction] = int(value)
    return found


def parse_blkio(size: str, served: str) -> Counts:
    """``8:0 Read 4096`` a line, and a ``Total`` at the end."""
    found: Counts = {}
    for what, text in enumerate((size, served)):
        for line in text.splitlines():
            cells = line.split()
            if len(cells) == 3 and cells[1] in _V1:
                found.setdefault(device_number(cells[0]), _new())[what][_V1[cells[1]]] = int(cells[2])
    return found


class BlockFiles:
    """Keys are the ids of the directories of the same path in *named*, which has the containers."""

    source = "files"

    def __init__(self, root: Path, named: Path, *, unified: bool) -> None:
        self._root, self._named, self._unified = root, named, unified

    @classmethod
    def of(cls, host: Host) -> BlockFiles:
        """Raises `ProbeError` where the machine has no such files."""
        mounts = host.facts.cgroup_mounts
        named = mounts.hierarchy("cpu") or mounts.unified
        root = mounts.unified if mounts.version == 2 else mounts.v1.get("blkio")
        if root is None or named is None:
            raise ProbeError("files: no blkio hierarchy and no unified tree is mounted")
        file = V2 if mounts.version == 2 else V1_BYTES
        if not any((directory / file).exists() for _, directory in walk_cgroups(root)):
            raise ProbeError(f"files: no {file} in {root}")
        return cls(root, named, unified=mounts.version == 2)

    def _counts(self, directory: Path) -> Counts:
        if self._unified:
            return parse_io_stat((directory / V2).read_text())
        return parse_blkio((directory / V1_BYTES).read_text(), (directory / V1_OPS).read_text())

    def read(self) -> BlockIOSnapshot:
        found: dict[tuple[int, int], list[list[int]]] = {}
        for _, directory in walk_cgroups(self._root):
            try:
                key = (self._named / directory.relative_to(self._root)).stat().st_ino
                counts = self._counts(directory)
            except OSError:  # gone, without the controller, or none of the other hierarchy's
                continue
            found.update(((key, device), row) for device, row in counts.items() if any(map(any, row)))
        return counts_only(found)

    def reclaim(self, live: frozenset[int]) -> int:
        return 0

    def close(self, keep: bool) -> None:
        """Nothing is held."""


def counts_only(found: Mapping[tuple[int, int], list[list[int]]]) -> BlockIOSnapshot:
    """(key, device) -> [bytes, operations] by direction, as a snapshot without times."""
    rows = sorted(found)
    n = len(rows)
    table = np.array([found[row] for row in rows], dtype=np.int64).reshape(n, 2, 4)
    keys = np.array(rows, dtype=np.int64).reshape(n, 2)
    hist, times = np.zeros((n, 2, BUCKETS), dtype=np.int64), np.zeros((n, 4), dtype=np.int64)
    none, empty = np.zeros(n, dtype=np.int64), np.zeros(0, dtype=np.int64)
    return BlockIOSnapshot(
        source=BlockFiles.source,
        time_ns=time.monotonic_ns(),
        keys=keys[:, 0],
        device=keys[:, 1],
        queue_hist=hist,
        device_hist=hist,
        ops=table[:, 1],
        bytes=table[:, 0],
        queue_ns=times,
        device_ns=times,
        ahead_ns=none,
        throttled_ns=none,
        throttled_count=none,
        victim=empty,
        culprit=empty,
        wait_ns=empty,
        wait_count=empty,
        lost=IoLost(),
    )
