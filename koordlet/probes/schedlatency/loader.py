"""Loads sched_latency: which of its programs this kernel needs, and its tables."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from koordlet.probes.culprits.matrix import C, Naming, SubjectTable
from koordlet.probes.culprits.reader import MatrixReading
from koordlet.probes.layouts import SCHED_LATENCY_VERSION
from koordlet.probes.loading import libbpf
from koordlet.probes.loading.frame import OBJECTS, Attached, Build, ProbeError, as_probe_error
from koordlet.probes.loading.frame import load as load_build
from koordlet.probes.loading.libbpf import ProgramStats
from koordlet.probes.schedlatency.sizes import Sizes
from koordlet.probes.schedlatency.snapshot import SchedLatencySnapshot, WaitTotals
from koordlet.probes.schedlatency.tables import Tables

PROBE = "sched_latency"
OBJECT = OBJECTS / f"{PROBE}.bpf.o"
SWITCHES = ("sched_switch", "sched_migrate_task")
WAKEUPS = ("sched_wakeup", "sched_wakeup_new")
TASK_THROTTLE = "throttle_cfs_rq_work"
"""Kernels with this function throttle tasks one by one (v6.18); the others need the wakeup programs."""


class LoadedProbe:
    """The loaded programs and their tables. Close it; ``keep=True`` leaves pinned programs counting."""

    def __init__(self, attached: Attached, sizes: Sizes, source: str) -> None:
        try:
            self._tables: Tables | None = Tables(attached.maps, sizes, source)
        except BaseException:
            attached.close(keep=True)
            raise
        attached.release_maps()
        self._attached = attached
        self.reused = attached.reused

    @property
    def tables(self) -> Tables:
        """Raises `ProbeError` once closed."""
        if self._tables is None:
            raise ProbeError(f"{PROBE}: closed")
        return self._tables

    @property
    def source(self) -> str:
        """``bpf`` or ``bcc``"""
        return self.tables.source

    def read(self) -> SchedLatencySnapshot:
        """See `Tables.read`."""
        return self.tables.read()

    def waits(self) -> WaitTotals:
        """See `Tables.waits`."""
        return self.tables.waits()

    def read_matrix(self) -> MatrixReading:
        """See `Tables.read_matrix`."""
        return self.tables.read_matrix()

    def matrix_by_subject(self, naming: Naming[C]) -> SubjectTable[C]:
        """See `Tables.matrix_by_subject`."""
        return self.tables.matrix_by_subject(naming)

    def reclaim(self, live: frozenset[int]) -> int:
        """See `Tables.reclaim`."""
        return self.tables.reclaim(live)

    def programs(self) -> list[ProgramStats]:
        """Run counts and times of the attached programs (zero unless kernel.bpf_stats_enabled)."""
        return self._attached.programs()

    def close(self, keep: bool) -> None:
        """`keep`: leave pinned programs counting."""
        self._tables = None
        self._attached.close(keep)


def load_core(sizes: Sizes, cgroup_v2: bool, pin_dir: Path | None, path: Path = OBJECT) -> LoadedProbe:
    """The probe from its CO-RE object; pinned below `pin_dir`, not pinned when that is None. Raises `ProbeError`."""

    def forget_runners(maps: Mapping[str, int]) -> None:
        Tables(maps, sizes, "bpf").forget_runners()

    with as_probe_error():
        return LoadedProbe(load_build(build(sizes, cgroup_v2), pin_dir, path, forget_runners), sizes, "bpf")


def build(sizes: Sizes, cgroup_v2: bool) -> Build:
    """What to load on this kernel."""
    skip = WAKEUPS if libbpf.kernel_has_function(TASK_THROTTLE) else ()
    return Build(
        probe=PROBE,
        programs=tuple(name for name in (*SWITCHES, *WAKEUPS) if name not in skip),
        entries=sizes.entries(),
        settings=sizes.settings(cgroup_v2),
        skip=skip,
        shape=SCHED_LATENCY_VERSION,
    )
