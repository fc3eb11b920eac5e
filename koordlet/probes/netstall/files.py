"""Retransmits by network namespace from ``/proc/<pid>/net/snmp`` (proc(5)), for where no program can be loaded.

A namespace is charged to the closest directory that holds all cgroups with a process in it (`owners`): a pod, or the
root for the host's. Reads two files a cgroup, so its readers come by slowly.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from koordlet.probes.loading.frame import ProbeError
from koordlet.probes.netstall.snapshot import NetLost, NetStallSnapshot
from koordlet.probes.schedlatency.layout import BUCKETS
from koordlet.probes.schedlatency.schedstat import walk_cgroups
from koordlet.system.host import Host


def retrans_segs(text: str) -> int | None:
    """``RetransSegs`` of the table ``Tcp``; None when there is none."""
    lines = [line.split() for line in text.splitlines() if line.startswith("Tcp:")]
    if len(lines) != 2 or "RetransSegs" not in lines[0] or len(lines[0]) != len(lines[1]):
        return None
    return int(lines[1][lines[0].index("RetransSegs")])


class NetFiles:
    """*named* is the tree that names containers."""

    source = "files"

    def __init__(self, named: Path, proc: Path) -> None:
        self._named, self._proc = named, proc

    @classmethod
    def of(cls, host: Host) -> NetFiles:
        """Raises `ProbeError` where the machine has no such files."""
        mounts = host.facts.cgroup_mounts
        named = mounts.hierarchy("cpu") or mounts.unified
        if named is None:
            raise ProbeError("files: no cgroup hierarchy is mounted")
        if not (host.roots.proc / "self/net/snmp").exists():
            raise ProbeError(f"files: no {host.roots.proc}/self/net/snmp")
        return cls(named, host.roots.proc)

    def read(self) -> NetStallSnapshot:
        holders: dict[int, tuple[Path, str]] = {}
        for _, directory in walk_cgroups(self._named):
            try:
                pid = (directory / "cgroup.procs").read_text().partition("\n")[0]
                namespace = (self._proc / pid / "ns/net").stat().st_ino if pid else 0
            except OSError:  # the cgroup or the process left
                continue
            if namespace:
                before = holders.get(namespace)
                common = directory if before is None else Path(os.path.commonpath([before[0], directory]))
                holders[namespace] = (common, pid)
        counts: dict[int, int] = {}
        for directory, pid in holders.values():
            try:
                found = retrans_segs((self._proc / pid / "net/snmp").read_text())
                key = directory.stat().st_ino
            except OSError:
                continue
            counts[key] = counts.get(key, 0) + (found or 0)
        return retransmits_only(counts)

    def reclaim(self, live: frozenset[int]) -> int:
        return 0

    def close(self, keep: bool) -> None:
        """Nothing is held."""


def retransmits_only(counts: Mapping[int, int]) -> NetStallSnapshot:
    """Key -> segments sent again, as a snapshot without anything else."""
    keys = np.array(sorted(counts), dtype=np.int64)
    none, empty = np.zeros(len(keys), dtype=np.int64), np.zeros(0, dtype=np.int64)
    return NetStallSnapshot(
        source=NetFiles.source,
        time_ns=time.monotonic_ns(),
        keys=keys,
        softirq_hist=np.zeros((len(keys), BUCKETS), dtype=np.int64),
        softirq_ns=none,
        softirq_count=none,
        caused_ns=none,
        retransmits=np.array([counts[int(key)] for key in keys], dtype=np.int64),
        full=none,
        backlog_sum=none,
        backlog_count=none,
        backlog_max=none,
        victim=empty,
        culprit=empty,
        wait_ns=empty,
        wait_count=empty,
        lost=NetLost(),
    )
