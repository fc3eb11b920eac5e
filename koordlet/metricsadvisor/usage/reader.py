"""All reading of a tick, in one pass. Kernel files are opened once and read with pread.

With `AllGroups` the cgroups' figures come from the kernel in one walk, compared with the files of one cgroup per tick;
without it, or when it fails, each cgroup's files are read. A file that cannot be read costs its own figures and is
reported in `errors`; the tick goes on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from koordlet.metricsadvisor.usage.allgroups import AllGroups, SpotCheck
from koordlet.metricsadvisor.usage.readings import BestEffortLimits, Readings
from koordlet.probes.loading.frame import ProbeError
from koordlet.statesinformer.pods.model import Subject, SubjectKind, Workloads
from koordlet.system.cgroup.batch import BatchReader, CgroupTable, Want
from koordlet.system.cgroup.readers import CgroupFS
from koordlet.system.cpu.cpuset import CPUSet
from koordlet.system.errors import CgroupGone, KernelFileError
from koordlet.system.host import Host
from koordlet.system.proc.nodefiles import NodeFiles
from koordlet.system.proc.procfs import CpuTicks, MemInfo, NumaMemInfo

USE = Want.CPU_USAGE | Want.CPU_STAT | Want.MEMORY_STAT
CPUSETS_INTERVAL_S = 10.0
"""Between two readings of the CPU sets of all BestEffort containers, while the set of their class is the same."""


class TickReader:
    """Reads one tick after another. `distrust` is called once, with the reason, when `groups` is not used any more."""

    def __init__(
        self,
        host: Host,
        fs: CgroupFS,
        groups: AllGroups | None = None,
        distrust: Callable[[str], object] = lambda cause: None,
    ) -> None:
        self._host = host
        self._fs = fs
        self._groups = groups
        self._batch = BatchReader(fs)
        self._pressure = BatchReader(fs)
        self._spot = SpotCheck()
        self._spot_files = BatchReader(fs)
        self._node = NodeFiles(host.roots, fs.cache)
        self._distrust = distrust
        self._subjects: tuple[Subject, ...] = ()
        self._smallest = _SmallestCpuset()
        self.errors: dict[str, str] = {}
        """Source -> why it gave nothing in the last tick."""

    def read(self, workloads: Workloads, at: float) -> Readings:
        """Everything except pressure."""
        self.errors = {}
        self._fs.cache.begin_tick()
        self._forget_removed(workloads.subjects)
        table = self._use([subject.cgroup_dir for subject in workloads.subjects])
        for error in table.errors:
            self.errors.setdefault("cgroup", str(error))
        numa = self._numa()
        readings = Readings(
            at=at,
            workloads=workloads,
            table=table,
            ticks=self._ticks(),
            jiffy_ns=self._host.facts.jiffy_ns,
            memory=self._memory(),
            numa=numa,
            pods_numa=self._pods_numa(workloads, table, numa),
            best_effort=self._best_effort(workloads, at),
        )
        self._fs.cache.end_tick()
        return readings

    def _forget_removed(self, subjects: tuple[Subject, ...]) -> None:
        """Close the descriptors of removed cgroups at once: they keep the cgroup's memory in the kernel."""
        if subjects is not self._subjects:
            removed = {s.cgroup_dir for s in self._subjects}.difference(s.cgroup_dir for s in subjects)
            if removed:
                self._fs.forget(removed)
            self._subjects = subjects

    def read_pressure(self, workloads: Workloads) -> CgroupTable:
        """Pressure of every subject."""
        return self._pressure.read([subject.cgroup_dir for subject in workloads.subjects], Want.PRESSURE)

    def _use(self, dirs: Sequence[str]) -> CgroupTable:
        if self._groups is None:
            return self._batch.read(dirs, USE)
        try:
            table = self._groups.read(dirs)
        except ProbeError as error:
            self.errors["cgroup_stats"] = str(error)
            return self._batch.read(dirs, USE)
        if self._spot.wrong(table):
            self.errors["cgroup_stats"] = cause = f"differs from the files: {self._spot.cause}"
            self._groups = None
            self._distrust(cause)
            return self._batch.read(dirs, USE)
        spot = self._spot.next_dir(table)
        if spot is not None:
            self._spot.note(table, self._spot_files.read([spot], USE))
        return table

    def _ticks(self) -> CpuTicks | None:
        try:
            return self._node.cpu_ticks()
        except KernelFileError as error:
            self.errors["stat"] = str(error)
            return None

    def _memory(self) -> MemInfo | None:
        try:
            return self._node.memory()
        except KernelFileError as error:
            self.errors["meminfo"] = str(error)
            return None

    def _numa(self) -> Mapping[int, NumaMemInfo]:
        try:
            return self._node.numa_memory()
        except KernelFileError as error:
            self.errors["numa"] = str(error)
            return {}

    def _pods_numa(
        self, workloads: Workloads, table: CgroupTable, numa: Mapping[int, NumaMemInfo]
    ) -> Mapping[int, float]:
        """Bytes of all pods by NUMA node. With one NUMA node, the common case, that is their sum and needs no file."""
        pods = workloads.row_arrays[SubjectKind.POD]
        pods = pods[~table.gone[pods]]
        sums = dict.fromkeys(numa, 0.0)
        if len(numa) == 1:
            columns = ("memory_inactive_anon", "memory_active_anon", "memory_unevictable")
            used = sum(table.columns[column][pods] for column in columns)
            return {node: float(np.nansum(used)) for node in numa}  # NaN: removed during the pass
        for row in pods.tolist():
            try:
                by_node = self._fs.memory_numa(workloads.subjects[row].cgroup_dir) or {}
            except CgroupGone:
                continue
            except KernelFileError as error:
                self.errors["numa_stat"] = str(error)
                return {}
            for node, amount in by_node.items():
                sums[node] = sums.get(node, 0.0) + amount.usage
        return sums

    def _best_effort(self, workloads: Workloads, at: float) -> BestEffortLimits | None:
        """None without a BestEffort directory, or where its files cannot be read."""
        subjects, rows = workloads.subjects, workloads.rows
        top = next((subjects[row] for row in rows[SubjectKind.QOS] if subjects[row].key == "BestEffort"), None)
        if top is None:
            return None
        try:
            own = self._fs.cpuset(top.cgroup_dir)
            quota, period = self._fs.cpu_quota(top.cgroup_dir), self._fs.cpu_period(top.cgroup_dir)
        except CgroupGone:
            return None
        except KernelFileError as error:
            self.errors["best_effort"] = str(error)
            return None
        if not own:
            return None
        if self._smallest.outdated(subjects, own, at):
            self._smallest = _SmallestCpuset(subjects, own, at, self._smallest_below(workloads, top.cgroup_dir, own))
        return BestEffortLimits(self._smallest.cpus, -1 if quota is None else quota, period or 0)

    def _smallest_below(self, workloads: Workloads, top: str, own: CPUSet) -> int:
        """CPUs in the smallest set of the class and its containers."""
        paths = (workloads.subjects[row].cgroup_dir for row in workloads.rows[SubjectKind.CONTAINER])
        sizes = (self._cpuset_size(path) for path in paths if path.startswith(f"{top}/"))
        return min([len(own), *filter(None, sizes)])

    def _cpuset_size(self, path: str) -> int:
        try:
            return len(self._fs.cpuset(path) or ())
        except KernelFileError:  # removed, or without a cpuset of its own: no limit
            return 0


@dataclass(frozen=True, slots=True)
class _SmallestCpuset:
    """The CPUs in the smallest set of BestEffort and its containers, as last read."""

    subjects: tuple[Subject, ...] = ()
    own: CPUSet | None = None
    at: float = -math.inf
    cpus: int = 0

    def outdated(self, subjects: tuple[Subject, ...], own: CPUSet, at: float) -> bool:
        """Whether containers came or went, the set of the class changed, or the reading is old."""
        return subjects is not self.subjects or own != self.own or at - self.at >= CPUSETS_INTERVAL_S
