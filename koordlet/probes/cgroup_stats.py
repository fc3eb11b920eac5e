"""cgroup_stats: usage, throttling, memory and pressure of all cgroups in one read of the kernel.

``bpf/cgroup_stats.bpf.c`` walks a hierarchy and writes one row per cgroup into a table that is mapped here: one walk on
v2, one for each of cpu, cpuacct and memory on v1 where each has a hierarchy of its own. The numbers equal those of the
kernel's files at that moment to the last digit. Only the totals of pressure are as of the kernel's last averaging (up
to 2 s ago), because nothing but reading the files brings them up to date.

Nothing is counted between readings, so nothing is pinned. Bounds: `MAX_ROWS` cgroups per hierarchy; more raise
`LostRows`. Read by `koordlet.metricsadvisor.usage.allgroups`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from koordlet.probes.layouts import (
    CGROUP_HAS,
    CGROUP_STATS_CONFIG,
    CGROUP_STATS_CONTROL,
    CGROUP_STATS_ROW,
)
from koordlet.probes.loading import libbpf
from koordlet.probes.loading.frame import (
    OBJECTS,
    SETTINGS,
    ProbeEnvironment,
    ProbeError,
    as_probe_error,
    open_core,
)
from koordlet.probes.loading.mapped import map_array
from koordlet.probes.status import ProbeStatus
from koordlet.system.cgroup import tree
from koordlet.system.cgroup.memorystat import MemoryStatFile

PROBE = "cgroup_stats"
MAX_ROWS = 8192
NS_PER_US = 1000

HAS_CPU = CGROUP_HAS["CGROUP_HAS_CPU"]
HAS_USAGE = CGROUP_HAS["CGROUP_HAS_USAGE"]
HAS_MEMORY = CGROUP_HAS["CGROUP_HAS_MEMORY"]
HAS_PRESSURE = CGROUP_HAS["CGROUP_HAS_PSI"]

_PRESSURE = ("io_some", "io_full", "memory_some", "memory_full", "cpu_some", "cpu_full")
_CPU = ("nr_periods", "nr_throttled", "throttled_ns")
_MEMORY = ("cache", "rss", "inactive_file", "active_file", "inactive_anon", "active_anon", "unevictable")
FIGURES: Final[Mapping[str, tuple[int, str, int]]] = {
    "cpu_usage_ns": (HAS_USAGE, "cpu_usage_ns", 0),
    **{name: (HAS_CPU, name, 0) for name in _CPU},
    "memory_usage": (HAS_MEMORY, "memory_usage", 0),
    **{f"memory_{name}": (HAS_MEMORY, name, 0) for name in _MEMORY},
    **{f"{name}_total": (HAS_PRESSURE, "pressure", index) for index, name in enumerate(_PRESSURE)},
}
"""Figure -> (bit that a row must have, its member, index within the member)."""

Floats = NDArray[np.float64]
CONTROLLERS: Final = ("cpu", "cpuacct", "memory")


class LostRows(ProbeError):
    """A hierarchy has more cgroups than the table has rows: missing cgroups cannot be distinguished from removed
    ones."""


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """All cgroups of one tree, sorted by id."""

    ids: NDArray[np.uint64]
    rows: NDArray[np.void]
    """`CGROUP_STATS_ROW`, in kernel units."""
    page_size: int
    cpu_step: int
    """Nanoseconds that CPU times are rounded down to: the files of v2 show whole microseconds."""

    def find(self, ids: NDArray[np.uint64]) -> NDArray[np.intp]:
        """Row of each id, -1 where there is none."""
        if not len(self.ids):
            return np.full(len(ids), -1, dtype=np.intp)
        at = np.minimum(np.searchsorted(self.ids, ids), len(self.ids) - 1)
        return np.where(self.ids[at] == ids, at, -1)

    def columns(self, at: NDArray[np.intp], names: Iterable[str]) -> dict[str, Floats]:
        """The figures `names` of `FIGURES` for the rows `at` (-1: none) as the files show them, NaN where they show
        nothing. Names and units are those of `koordlet.system.cgroup.batch.Want`."""
        rows = self.rows if len(self.rows) else np.zeros(1, dtype=CGROUP_STATS_ROW)
        has = np.where(at >= 0, rows["has"][at], 0).astype(np.uint64)
        absent = {bit: has & np.uint64(bit) == 0 for bit in (HAS_CPU, HAS_USAGE, HAS_MEMORY, HAS_PRESSURE)}
        result: dict[str, Floats] = {}
        for name in names:
            bit, values = self._figure(name, rows)
            column = values[at].astype(np.float64)
            column[absent[bit]] = np.nan
            result[name] = column
        return result

    def _figure(self, name: str, rows: NDArray[np.void]) -> tuple[int, NDArray[np.integer[Any]]]:
        bit, field, index = FIGURES[name]
        if bit == HAS_PRESSURE:
            return bit, rows[field][:, index] // NS_PER_US
        if bit == HAS_MEMORY:
            return bit, np.maximum(rows[field], 0) * self.page_size
        times = field.endswith("_ns") and self.cpu_step > 1
        return bit, rows[field] // self.cpu_step * self.cpu_step if times else rows[field]


class CgroupStats:
    """The loaded iterator. `read` returns a `Hierarchy` by root directory; `roots` has the root of each controller."""

    source = "bpf"
    reused = False
    conditions = ()

    def __init__(
        self, roots: Mapping[str, Path], *, unified: bool, cpus: int, page_size: int, rows: int = MAX_ROWS
    ) -> None:
        """`roots`: the directory of each of `CONTROLLERS`; everything below is read."""
        self.roots = {name: os.fspath(root) for name, root in roots.items()}
        self.unified = unified
        self.page_size = page_size
        self._links: dict[str, int] = {}
        self._orders: dict[int, tuple[NDArray[np.uint64], NDArray[np.intp], NDArray[np.uint64]]] = {}
        """Link -> (ids in the order of the last walk, the order that sorts them, ids sorted)."""
        self._memory_stat = MemoryStatFile(self.roots["memory"])
        try:
            self._open(cpus, rows)
        except BaseException:
            self.close()
            raise

    def _open(self, cpus: int, rows: int) -> None:
        """Load the object; only links and mappings stay open."""
        with libbpf.BpfObject(OBJECTS / f"{PROBE}.bpf.o") as program:
            config = np.zeros((), CGROUP_STATS_CONFIG)
            config["cpus"] = cpus
            config["flush_css"] = libbpf.kernel_has_function("css_rstat_flush")
            config["unified"] = self.unified
            program.set_rodata(SETTINGS, config.tobytes())
            program.set_map_size("rows", rows)
            program.load()
            for root in dict.fromkeys(self.roots.values()):
                start = tree.open_directory(root)
                try:
                    walk = libbpf.cgroup_iter(libbpf.ITER_DESCENDANTS_PRE, start)
                    self._links[root] = os.dup(program.attach(PROBE, walk))
                finally:
                    os.close(start)
            self._rows = map_array(program.map_fd("rows"), "rows", CGROUP_STATS_ROW, rows)
            self._control = map_array(program.map_fd("control"), "control", CGROUP_STATS_CONTROL, 1)[0]

    def read(self) -> Mapping[str, Hierarchy]:
        """Walk every hierarchy. Raises `LostRows`, or `ProbeError` when the kernel ended a walk."""
        with as_probe_error():
            self._memory_stat.flush()
            return {root: self._walk(link) for root, link in self._links.items()}

    def programs(self) -> list[libbpf.ProgramStats]:
        """Run count and time of the program (zero unless kernel.bpf_stats_enabled)."""
        return [libbpf.link_stats(link) for link in list(self._links.values())[:1]]

    def reclaim(self, live: frozenset[int]) -> int:
        """Nothing is kept per cgroup."""
        return 0

    def close(self, keep: bool = False) -> None:
        """Nothing is pinned, so `keep` makes no difference."""
        links, self._links = self._links, {}
        for fd in links.values():
            os.close(fd)
        self._memory_stat.close()

    def _walk(self, link: int) -> Hierarchy:
        self._control["rows"] = self._control["lost"] = 0
        fd = libbpf.iterator(link)
        try:
            while os.read(fd, 1):
                pass
        finally:
            os.close(fd)
        if self._control["lost"]:
            raise LostRows(f"{PROBE}: {self._control['lost']} cgroups beyond {len(self._rows)}")
        rows = self._rows[: int(self._control["rows"])]
        ids = rows["id"].copy()
        last = self._orders.get(link)
        if last is None or not np.array_equal(last[0], ids):
            order = np.argsort(ids)
            last = self._orders[link] = ids, order, ids[order]
        return Hierarchy(last[2], rows[last[1]], self.page_size, NS_PER_US if self.unified else 1)


def open_cgroup_stats(place: ProbeEnvironment) -> tuple[CgroupStats | None, ProbeStatus]:
    """The iterator, or nothing; never raises for what a kernel lacks. Nothing is pinned: a walk leaves nothing
    behind."""
    stats, status = open_core(replace(place, pins=None, note=""), _load)
    return stats, status if stats is not None else replace(status, source="files")


def _load(place: ProbeEnvironment) -> CgroupStats:
    facts = place.host.facts
    roots = {name: facts.cgroup_mounts.hierarchy(name) for name in CONTROLLERS}
    missing = [name for name, root in roots.items() if root is None]
    if missing:
        raise ProbeError(f"{PROBE}: no hierarchy of {', '.join(missing)} is mounted")
    mounted = {name: root for name, root in roots.items() if root is not None}
    with as_probe_error():
        return CgroupStats(mounted, unified=place.cgroup_v2, cpus=place.cpus, page_size=facts.page_size)
