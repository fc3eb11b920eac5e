"""The slower twins: waiting per cgroup from files, where no program can be loaded.

`SchedstatSource` adds up the run delay of ``/proc/<pid>/task/<tid>/schedstat`` over the threads of every cgroup: true
sums (throttling included), no histogram, no culprit, and what a thread waited between the last reading and its end is
lost. `PressureSource` reads the total of ``cpu.pressure`` (wall time in which at least one task waited) and needs
cgroup v2. Both put their one number into ``wakeup_sum_ns``; ``source`` in snapshot and status says which it is.

Cost: three system calls a thread, or one file a cgroup; meant for hosts where the probe can't be had.
Sources: sched-stats.rst, psi.rst of the kernel's documentation.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from koordlet.probes.schedlatency.layout import BUCKETS
from koordlet.probes.schedlatency.snapshot import Lost, SchedLatencySnapshot


class FilesUnavailable(Exception):
    """The kernel doesn't keep the file that the source reads; the message names it."""


def walk_cgroups(root: Path) -> Iterator[tuple[int, Path]]:
    """(cgroup id, directory) of *root* and all below; groups that vanish meanwhile are left out."""
    stack = [root]
    while stack:
        directory = stack.pop()
        try:
            yield directory.stat().st_ino, directory
            with os.scandir(directory) as entries:
                stack.extend(Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False))
        except FileNotFoundError:
            continue


class SchedstatSource:
    """Cumulative from the first reading on. ``cpu_root`` is the cpu hierarchy (v1) or the unified tree."""

    source = "schedstat"

    def __init__(self, cpu_root: Path, proc: Path) -> None:
        if not (proc / "self/schedstat").exists():
            raise FilesUnavailable(f"{proc}/self/schedstat: the kernel keeps no scheduling statistics of tasks")
        self._root = cpu_root
        self._proc = proc
        self._delay: dict[int, int] = {}
        self._total: dict[int, int] = {}

    def read(self, matrix: bool = True) -> SchedLatencySnapshot:
        seen: dict[int, int] = {}
        for cgroup, directory in walk_cgroups(self._root):
            waited = 0
            for tid in _threads(directory):
                delay = self._run_delay(tid)
                if delay is None:
                    continue
                # A thread seen for the first time brings no past: it may have lived in another group.
                waited += max(0, delay - self._delay.get(tid, delay))
                seen[tid] = delay
            self._total[cgroup] = self._total.get(cgroup, 0) + waited
        self._delay = seen
        return _sums_only(self.source, self._total)

    def _run_delay(self, tid: int) -> int | None:
        try:
            text = (self._proc / str(tid) / "schedstat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return None
        return int(text.split()[1])

    def reclaim(self, live: frozenset[int]) -> int:
        return _forget(self._total, live)

    def close(self, keep: bool) -> None:
        self._delay.clear()


class PressureSource:
    """``some total`` of cpu.pressure, in nanoseconds, since the cgroup was made."""

    source = "pressure"

    def __init__(self, unified: Path | None) -> None:
        if unified is None:
            raise FilesUnavailable("cpu.pressure: no cgroup2 is mounted")
        if next((d for _, d in walk_cgroups(unified) if (d / "cpu.pressure").exists()), None) is None:
            raise FilesUnavailable(f"{unified}: no cpu.pressure in any cgroup (kernel without PSI, or psi=0)")
        self._root = unified

    def read(self, matrix: bool = True) -> SchedLatencySnapshot:
        totals = {}
        for cgroup, directory in walk_cgroups(self._root):
            try:
                text = (directory / "cpu.pressure").read_text()
            except (FileNotFoundError, OSError):
                continue
            some = next((line for line in text.splitlines() if line.startswith("some ")), "")
            totals[cgroup] = int(some.rpartition("total=")[2] or 0) * 1000
        return _sums_only(self.source, totals)

    def reclaim(self, live: frozenset[int]) -> int:
        return 0

    def close(self, keep: bool) -> None:
        """Nothing is held."""


def _threads(directory: Path) -> list[int]:
    for name in ("tasks", "cgroup.threads"):
        try:
            return [int(tid) for tid in (directory / name).read_text().split()]
        except FileNotFoundError:
            continue
        except OSError:  # ENODEV: removed after opening; EOPNOTSUPP: a threaded group's domain lists them
            return []
    return []


def _forget(totals: dict[int, int], live: frozenset[int]) -> int:
    dead = totals.keys() - live
    for cgroup in dead:
        del totals[cgroup]
    return len(dead)


def _sums_only(source: str, totals: dict[int, int]) -> SchedLatencySnapshot:
    keys = np.array(sorted(totals), dtype=np.int64)
    n = len(keys)
    none, empty = np.zeros(n, dtype=np.int64), np.zeros(0, dtype=np.int64)
    hist = np.zeros((n, BUCKETS), dtype=np.int64)
    return SchedLatencySnapshot(
        source=source,
        time_ns=time.monotonic_ns(),
        keys=keys,
        wakeup_hist=hist,
        preempt_hist=hist,
        wakeup_sum_ns=np.array([totals[int(key)] for key in keys], dtype=np.int64),
        preempt_sum_ns=none,
        wakeup_max_ns=none,
        preempt_max_ns=none,
        throttled_ns=none,
        throttled_count=none,
        victim=empty,
        culprit=empty,
        wait_ns=empty,
        wait_count=empty,
        lost=Lost(),
    )
