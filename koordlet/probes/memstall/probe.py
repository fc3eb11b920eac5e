"""mem_stall: loads and reads the probe. What each kind measures, its error and its cost: docs/probes.md.

Without BPF `files.PressureFiles` gives PSI's sum of all kinds as *other*.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from koordlet.probes.columns import sum_by
from koordlet.probes.culprits.matrix import CulpritMatrix
from koordlet.probes.culprits.slots import SPECIALS, TAG, SlotTable
from koordlet.probes.layouts import (
    LIMIT_ENTRY,
    MEM_STALL_VERSION,
    STALL_CONFIG,
    STALL_FUNCTION,
    STALL_LOST,
    STALL_STATS,
)
from koordlet.probes.loading.frame import (
    Attached,
    Build,
    MappedProbe,
    ProbeEnvironment,
    SourceOf,
    as_probe_error,
    load,
    open_or_files,
)
from koordlet.probes.loading.mapped import map_arrays
from koordlet.probes.memstall.files import PressureFiles
from koordlet.probes.memstall.snapshot import KINDS, SLEEP_KINDS, MemStallSnapshot, StallLosses, sums_only
from koordlet.probes.status import ProbeStatus
from koordlet.system.proc.kallsyms import function_ranges

PROBE = "mem_stall"
CGROUPS, LIMITS, TASKS = 1024, 1024, 8192
"""Entries of the tables; powers of two."""
RECLAIM_PROGRAMS = (
    "direct_begin",
    "direct_end",
    "node_begin",
    "node_end",
    "memcg_begin",
    "memcg_end",
    "wakeup_kswapd",
)
COMPACTION_PROGRAMS = ("compaction_begin", "compaction_end")
SWITCH = "stall_switch"
FUNCTIONS = {
    "IN_SWAPIN": ("do_swap_page",),
    "IN_SHMEM_SWAPIN": ("shmem_swapin_folio",),
    "IN_THROTTLE": ("__mem_cgroup_handle_over_high", "mem_cgroup_handle_over_high"),
}
"""``enum stall_function`` -> names of the function, from the newest kernel to the oldest."""
AddressRange = tuple[int, int]
UNKNOWN_RANGE: AddressRange = (0, 0)

MemStallSource = SourceOf[MemStallSnapshot]


class MemStall(MappedProbe):
    """The loaded probe."""

    def __init__(self, attached: Attached, conditions: Sequence[str] = (), cgroups: int = CGROUPS) -> None:
        self._entries = _entries(cgroups)
        super().__init__(attached, conditions)

    def map_tables(self, maps: Mapping[str, int]) -> None:
        """See `MappedProbe.map_tables`."""
        tags, self._stats, self._limits, self._lost = map_arrays(
            maps, self._entries, tags=TAG, stats=STALL_STATS, limits=LIMIT_ENTRY, lost=STALL_LOST
        )
        self._slots = SlotTable(tags)

    def read(self) -> MemStallSnapshot:
        """Everything counted so far."""
        limits = self._limits[self._limits["key"] != 0]  # before the tags, so that every slot in it has a key
        slot_keys = self._slots.keys()
        stalled = np.flatnonzero(slot_keys)
        stalled = stalled[_has_stalled(self._stats, stalled)]
        if not len(stalled) and not len(limits):  # the usual case
            return sums_only({}, source=self.source, lost=self._losses())
        stats = self._stats[stalled]
        keys, group = np.unique(slot_keys[stalled], return_inverse=True)
        maxima = np.zeros((len(keys), len(KINDS)), dtype=np.int64)
        np.maximum.at(maxima, group, stats["kind"]["max_ns"].astype(np.int64))
        return MemStallSnapshot(
            source=self.source,
            time_ns=time.monotonic_ns(),
            keys=keys,
            hist=sum_by(group, stats["kind"]["hist"], len(keys)),
            sum_ns=sum_by(group, stats["kind"]["sum_ns"], len(keys)),
            max_ns=maxima,
            **{name: sum_by(group, stats[name], len(keys)) for name in ("wakeups", "direct_pages", "limit_pages")},
            limits=_limits_matrix(limits, slot_keys),
            lost=self._losses(),
        )

    def _losses(self) -> StallLosses:
        lost = self._lost[0]
        return StallLosses(int(lost["slots"]), int(lost["limits"]), int(lost["tasks"]))

    def reclaim(self, live: Collection[int]) -> int:
        """Free the slots of dead cgroups (`SlotTable.dead`); returns their number."""
        slots = self._slots.dead(live)
        if len(slots):
            packed = self._limits["key"]
            stale = (packed != 0) & np.isin((packed & 0xFFFF).astype(np.int64) - 1, slots)
            for name in ("count", "sum_ns", "key"):  # the figures before the key: the kernel may claim the entry then
                self._limits[name][stale] = 0
            self._stats[slots] = 0
            self._slots.free(slots)
        return len(slots)


def _has_stalled(stats: npt.NDArray[np.void], slots: npt.NDArray[np.intp]) -> npt.NDArray[np.bool_]:
    """Which of these slots counted anything, without a copy of their rows: those have 2 KB each and are mostly
    empty."""
    stalled: npt.NDArray[np.bool_] = (stats["kind"]["sum_ns"][slots].sum(axis=1) + stats["wakeups"][slots]) > 0
    return stalled


def _limits_matrix(limits: npt.NDArray[np.void], slot_keys: npt.NDArray[np.int64]) -> CulpritMatrix:
    packed = limits["key"].astype(np.int64)
    task, limit = slot_keys[(packed & 0xFFFF) - 1], packed >> 16
    known = task != 0
    names, name = np.unique(np.concatenate([task[known], limit[known]]), return_inverse=True)
    victim, culprit = name[: len(name) // 2], name[len(name) // 2 :]
    ns, count = (limits[column][known].astype(np.int64) for column in ("sum_ns", "count"))
    return CulpritMatrix.summed(victim * len(names) + culprit, ns, count, names)


def _entries(cgroups: int) -> dict[str, int]:
    return {"tags": cgroups, "stats": cgroups + SPECIALS, "limits": LIMITS, "tasks": TASKS, "lost": 1}


def load_core(place: ProbeEnvironment) -> MemStall:
    """The probe. Raises `ProbeError`."""
    conditions = []
    functions = _functions(place.host.roots.proc)
    skip: tuple[str, ...] = ()
    if not place.host.facts.psi:
        conditions.append(f"no {', '.join(SLEEP_KINDS)}: {place.host.facts.reasons()['psi']}")
        skip = (SWITCH,)
    elif UNKNOWN_RANGE in functions.values():
        conditions.append("swapin counts as refault, and throttle may be another sleep: kallsyms hides addresses")
        functions = dict.fromkeys(functions, UNKNOWN_RANGE)
    build = Build(
        probe=PROBE,
        programs=tuple(name for name in (*RECLAIM_PROGRAMS, *COMPACTION_PROGRAMS, SWITCH) if name not in skip),
        entries=_entries(CGROUPS),
        settings=_settings(place.cgroup_v2, functions),
        skip=skip,
        shape=MEM_STALL_VERSION,
    )
    with as_probe_error():
        return MemStall(load(build, place.pins), tuple(conditions))


def _settings(cgroup_v2: bool, functions: dict[str, AddressRange]) -> bytes:
    """``struct stall_config``"""
    config = np.zeros((), STALL_CONFIG)
    config["slots"] = cgroup_v2, CGROUPS - 1
    config["limit_mask"] = LIMITS - 1
    config["task_mask"] = TASKS - 1
    for name, address_range in functions.items():
        config["functions"][STALL_FUNCTION[name]] = address_range
    return config.tobytes()


def _functions(proc: Path) -> dict[str, AddressRange]:
    ranges = function_ranges(proc, (name for names in FUNCTIONS.values() for name in names))
    return {
        function: next((ranges[name] for name in names if name in ranges), UNKNOWN_RANGE)
        for function, names in FUNCTIONS.items()
    }


def open_mem_stall(place: ProbeEnvironment) -> tuple[MemStallSource | None, ProbeStatus]:
    """The probe, else PSI's files, else nothing."""
    return open_or_files(place, load_core, PressureFiles.of)
