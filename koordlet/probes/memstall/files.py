"""Memory stalls from PSI's files, for where no program can be loaded."""

from __future__ import annotations

from pathlib import Path

from koordlet.probes.loading.frame import FileSource, ProbeError
from koordlet.probes.memstall.snapshot import MemStallSnapshot, sums_only
from koordlet.system.cgroup import pressure, tree
from koordlet.system.errors import CgroupGone
from koordlet.system.host import Host


class PressureFiles(FileSource):
    """``memory.pressure`` of the default hierarchy, as totals of kind *other*: time in which at least one task of the
    cgroup was stalled. Keys are the ids of the directories of the same path in `named`, the tree that names
    containers."""

    source = "pressure"

    def __init__(self, unified: Path | None, named: Path) -> None:
        if unified is None:
            raise ProbeError("memory.pressure: no cgroup2 is mounted")
        if not pressure.any_pressure_file(unified, "memory"):
            raise ProbeError(f"{unified}: no memory.pressure in any cgroup (kernel without PSI, or psi=0)")
        self._unified = unified
        self._named = named

    @classmethod
    def of(cls, host: Host) -> PressureFiles:
        """Raises `ProbeError` where the machine has no such files."""
        mounts = host.facts.cgroup_mounts
        if mounts.naming is None:
            raise ProbeError("memory.pressure: no cgroup hierarchy is mounted")
        return cls(mounts.unified, mounts.naming)

    def read(self) -> MemStallSnapshot:
        """Read the file of every cgroup."""
        totals: dict[int, int] = {}
        for path in tree.walk(self._unified):
            stalled = pressure.stalled_ns(self._unified / path, "memory")
            if stalled is None:
                continue
            try:
                totals[tree.inode(self._named / path)] = stalled
            except CgroupGone:  # it was removed, or is not in the other hierarchy
                continue
        return sums_only(totals)
