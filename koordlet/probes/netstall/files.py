"""Retransmits by network namespace from ``/proc/<pid>/net/snmp``, for where no program can be loaded.

A namespace is attributed to the closest directory that holds all cgroups with a process in it (`culprits.owners`): a
pod, or the root for the host's. Reads two files per cgroup, so it is read at long intervals.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from koordlet.probes.culprits.matrix import CulpritMatrix
from koordlet.probes.layouts import BUCKETS
from koordlet.probes.loading.frame import FileSource, ProbeError
from koordlet.probes.netstall.snapshot import NetLosses, NetStallSnapshot
from koordlet.system.cgroup import members, tree
from koordlet.system.errors import CgroupGone
from koordlet.system.host import Host
from koordlet.system.proc import netns


class NetFiles(FileSource):
    """`named` is the tree that names containers."""

    source = "files"

    def __init__(self, named: Path, proc: Path) -> None:
        self._named = named
        self._proc = proc

    @classmethod
    def of(cls, host: Host) -> NetFiles:
        """Raises `ProbeError` where the machine has no such files."""
        mounts = host.facts.cgroup_mounts
        named = mounts.naming
        if named is None:
            raise ProbeError("files: no cgroup hierarchy is mounted")
        if not netns.has_tcp_counters(host.roots.proc):
            raise ProbeError(f"files: no {host.roots.proc}/self/net/snmp")
        return cls(named, host.roots.proc)

    def read(self) -> NetStallSnapshot:
        """Read the counters of every namespace."""
        holders: dict[int, tuple[Path, int]] = {}
        """Namespace -> (common directory of its cgroups, one of its processes)."""
        for path in tree.walk(self._named):
            directory = self._named / path
            pid = next(iter(members.first_processes(str(directory), 1)), 0)
            namespace = netns.network_namespace(self._proc, pid) if pid else 0
            if namespace:
                before = holders.get(namespace)
                common = directory if before is None else Path(os.path.commonpath([before[0], directory]))
                holders[namespace] = (common, pid)
        counts: dict[int, int] = {}
        for directory, pid in holders.values():
            segments = netns.retransmits(self._proc, pid)
            try:
                key = tree.inode(directory)
            except CgroupGone:
                continue
            counts[key] = counts.get(key, 0) + (segments or 0)
        return retransmits_only(counts)


def retransmits_only(counts: Mapping[int, int]) -> NetStallSnapshot:
    """Key -> segments sent again, as a snapshot without anything else."""
    keys = np.array(sorted(counts), dtype=np.int64)
    zeros = np.zeros(len(keys), dtype=np.int64)
    return NetStallSnapshot(
        source=NetFiles.source,
        time_ns=time.monotonic_ns(),
        keys=keys,
        softirq_hist=np.zeros((len(keys), BUCKETS), dtype=np.int64),
        softirq_ns=zeros,
        softirq_count=zeros,
        caused_ns=zeros,
        retransmits=np.array([counts[int(key)] for key in keys], dtype=np.int64),
        full=zeros,
        backlog_sum=zeros,
        backlog_count=zeros,
        backlog_max=zeros,
        culprits=CulpritMatrix.empty(),
        lost=NetLosses(),
    )
