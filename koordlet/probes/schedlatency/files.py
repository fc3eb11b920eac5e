"""Waiting per cgroup from kernel files, where no program can be loaded.

`SchedstatSource` adds up the run delay of ``/proc/<tid>/schedstat`` over the threads of every cgroup: exact sums
(throttling included), no histogram, no culprit. What a thread waited between the last reading and its end is lost.
`PressureSource` reads the total of ``cpu.pressure`` (wall time in which at least one task waited) and needs cgroup v2.
Both put their one number into `wakeup_sum_ns`; `source` in snapshot and status names the source.

Cost: three system calls per thread, or one file per cgroup. Sources: sched-stats.rst, psi.rst of the kernel's
documentation.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from koordlet.probes.layouts import BUCKETS
from koordlet.probes.loading.frame import FileSource
from koordlet.probes.schedlatency.snapshot import SchedLatencyLosses, SchedLatencySnapshot
from koordlet.system.cgroup import members, pressure, tree
from koordlet.system.proc.procfs import has_schedstat, read_schedstat
from koordlet.system.roots import Roots


class FilesUnavailable(Exception):
    """The kernel does not keep the file that the source reads; the message names it."""


class SchedstatSource(FileSource):
    """Cumulative from the first reading on. `cpu_root` is the cpu hierarchy (v1) or the unified tree."""

    source = "schedstat"

    def __init__(self, cpu_root: Path, roots: Roots) -> None:
        if not has_schedstat(roots):
            raise FilesUnavailable(f"{roots.proc}/self/schedstat: the kernel keeps no scheduling statistics of tasks")
        self._root = cpu_root
        self._roots = roots
        self._delay_ns: dict[int, int] = {}
        """By thread, of the last reading."""
        self._total_ns: dict[int, int] = {}
        """By cgroup id."""

    def read(self) -> SchedLatencySnapshot:
        """Read all threads of all cgroups."""
        delays: dict[int, int] = {}
        for path, cgroup in tree.walk_ids(self._root):
            waited = 0
            for tid in members.threads(self._root / path):
                stat = read_schedstat(self._roots, tid)
                if stat is None:  # it ended
                    continue
                # The past of a thread seen for the first time does not count: it may have been in another cgroup.
                waited += max(0, stat.wait_ns - self._delay_ns.get(tid, stat.wait_ns))
                delays[tid] = stat.wait_ns
            self._total_ns[cgroup] = self._total_ns.get(cgroup, 0) + waited
        self._delay_ns = delays
        return sums_only(self.source, self._total_ns)

    def reclaim(self, live: frozenset[int]) -> int:
        """Forget the totals of cgroups that do not exist any more."""
        dead = self._total_ns.keys() - live
        for cgroup in dead:
            del self._total_ns[cgroup]
        return len(dead)


class PressureSource(FileSource):
    """``some total`` of cpu.pressure, in nanoseconds, since the cgroup was made."""

    source = "pressure"

    def __init__(self, unified: Path | None) -> None:
        if unified is None:
            raise FilesUnavailable("cpu.pressure: no cgroup2 is mounted")
        if not pressure.any_pressure_file(unified, "cpu"):
            raise FilesUnavailable(f"{unified}: no cpu.pressure in any cgroup (kernel without PSI, or psi=0)")
        self._root = unified

    def read(self) -> SchedLatencySnapshot:
        """Read the file of every cgroup."""
        totals = {}
        for path, cgroup in tree.walk_ids(self._root):
            stalled = pressure.stalled_ns(self._root / path, "cpu")
            if stalled is not None:
                totals[cgroup] = stalled
        return sums_only(self.source, totals)


def sums_only(source: str, totals_ns: Mapping[int, int]) -> SchedLatencySnapshot:
    """A snapshot of waiting by cgroup id without anything else."""
    keys = np.array(sorted(totals_ns), dtype=np.int64)
    zeros = np.zeros(len(keys), dtype=np.int64)
    hist = np.zeros((len(keys), BUCKETS), dtype=np.int64)
    return SchedLatencySnapshot(
        source=source,
        time_ns=time.monotonic_ns(),
        keys=keys,
        wakeup_hist=hist,
        preempt_hist=hist,
        wakeup_sum_ns=np.array([totals_ns[int(key)] for key in keys], dtype=np.int64),
        preempt_sum_ns=zeros,
        wakeup_max_ns=zeros,
        preempt_max_ns=zeros,
        throttled_ns=zeros,
        throttled_count=zeros,
        lost=SchedLatencyLosses(),
    )
