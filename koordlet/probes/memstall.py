"""mem_stall: how long the tasks of a cgroup are held up for want of memory, by kind. Loads and reads the probe.

Kinds (``bpf/mem_stall.h``): *direct* reclaim because the node is short, *own_limit* and *ancestor* reclaim because a
memory cgroup is at its limit, *compaction*, *refault* and *swapin* (waiting for evicted pages), *throttle* (put to
sleep for being over memory.high), *other*. The last four are only seen where the kernel keeps PSI.

Without BPF `PressureFiles` gives PSI's sum of them all as *other*. What each measures, error and cost: docs/probes.md.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from koordlet.probes.culprits.rows import Losses, align, align_pairs, columns, lost_since, subtract
from koordlet.probes.culprits.slots import Slots
from koordlet.probes.loading.frame import Attached, Build, Place, ProbeError, SourceOf, as_probe_error, load, open_core
from koordlet.probes.loading.libbpf import ProgramStats
from koordlet.probes.loading.mapped import Ints, map_array, sum_by
from koordlet.probes.schedlatency.layout import BUCKETS, SPECIALS, TAG
from koordlet.probes.schedlatency.schedstat import walk_cgroups
from koordlet.probes.status import ProbeStatus
from koordlet.system.proc.kallsyms import function_ranges

PROBE = "mem_stall"
VERSION = 1
KINDS = ("direct", "own_limit", "ancestor", "compaction", "refault", "swapin", "throttle", "other")
"""By ``enum stall_kind``: the second axis of `MemStallSnapshot`'s arrays."""
SLEPT = KINDS[4:]
NODE = 0
"""`MemStallSnapshot.limit` when the whole node was short."""

CGROUPS, LIMITS, TASKS = 1024, 1024, 8192

KIND_STATS = np.dtype([("hist", "u8", BUCKETS), ("sum_ns", "u8"), ("max_ns", "u8")])
STALL_STATS = np.dtype(
    [
        ("kind", KIND_STATS, len(KINDS)),
        ("wakeups", "u8"),
        ("direct_pages", "u8"),
        ("limit_pages", "u8"),
        ("reserved", "u8", 5),
    ]
)
LIMIT_ENTRY = np.dtype([("key", "u8"), ("count", "u8"), ("sum_ns", "u8")])
LOST = np.dtype([("slots", "u8"), ("limits", "u8"), ("tasks", "u8"), ("reserved", "u8")])

RECLAIM_PROGRAMS = (
    "direct_begin", "direct_end", "node_begin", "node_end", "memcg_begin", "memcg_end", "wakeup_kswapd",
)  # fmt: skip
COMPACTION_PROGRAMS = ("compaction_begin", "compaction_end")
SWITCH = "stall_switch"
FUNCTIONS = (
    ("do_swap_page",),
    ("shmem_swapin_folio",),
    ("__mem_cgroup_handle_over_high", "mem_cgroup_handle_over_high"),
)
"""By ``enum stall_function``, each with its names from the newest kernel to the oldest."""


@dataclass(frozen=True, slots=True)
class StallLost(Losses):
    """What found no room, cumulative: stalls of cgroups without a slot (counted as overflow's), reclaims without a row
    in ``limits`` (in all other figures), stalls that were not counted at all (``tasks``)."""

    slots: int = 0
    limits: int = 0
    tasks: int = 0


@dataclass(frozen=True, slots=True)
class MemStallSnapshot:
    """Cumulative since the probe was loaded. Row i belongs to ``keys[i]`` (cgroup ids or special keys, sorted, unique).

    Entry j of the limits (sorted by task, then limit) says that tasks of ``task[j]`` reclaimed ``limit_count[j]`` times
    for ``limit_ns[j]`` because the memory cgroup ``limit[j]`` was at its limit; `NODE`: because the node was short.
    Limits are ids of the hierarchy that has the memory controller."""

    source: str
    """``bpf`` or ``pressure``."""
    time_ns: int
    keys: Ints
    hist: Ints
    """``[n, kinds, BUCKETS]``: stalls by duration."""
    sum_ns: Ints
    """``[n, kinds]``"""
    max_ns: Ints
    """``[n, kinds]``: since the cgroup was first seen; a window keeps it."""
    wakeups: Ints
    """``[n]``: allocations that found the node below its low mark and woke kswapd."""
    direct_pages: Ints
    """``[n]``: pages reclaimed in *direct*."""
    limit_pages: Ints
    """``[n]``: pages reclaimed in *own_limit* and *ancestor*."""
    task: Ints
    limit: Ints
    limit_ns: Ints
    limit_count: Ints
    lost: StallLost

    def row(self, key: int) -> int | None:
        """Index of *key*, None when nothing of it has stalled."""
        i = int(np.searchsorted(self.keys, key))
        return i if i < len(self.keys) and self.keys[i] == key else None


_ROWS = ("hist", "sum_ns", "wakeups", "direct_pages", "limit_pages")
_LIMITS = ("limit_ns", "limit_count")


def diff(old: MemStallSnapshot, new: MemStallSnapshot) -> MemStallSnapshot:
    """What happened between two snapshots of one source; see `rows.subtract` for keys that come, go or start anew."""
    rows = subtract(columns(old, _ROWS), columns(new, _ROWS), align(old.keys, new.keys))
    at = align_pairs((old.task, old.limit), (new.task, new.limit))
    limits = subtract(columns(old, _LIMITS), columns(new, _LIMITS), at)
    return replace(new, **rows, **limits, lost=lost_since(old.lost, new.lost))  # type: ignore[arg-type]


MemStallSource = SourceOf[MemStallSnapshot]


class MemStall:
    """The loaded probe."""

    source = "bpf"

    def __init__(self, attached: Attached, conditions: tuple[str, ...], cgroups: int = CGROUPS) -> None:
        entries = _entries(cgroups)
        try:
            arrays = {
                name: map_array(attached.maps[name], name, dtype, entries[name])
                for name, dtype in (("tags", TAG), ("stats", STALL_STATS), ("limits", LIMIT_ENTRY), ("lost", LOST))
            }
        except BaseException:
            attached.close(keep=True)
            raise
        attached.release_maps()
        self._attached, self.conditions, self.reused = attached, conditions, attached.reused
        self._slots = Slots(arrays["tags"])
        self._stats, self._limits, self._lost = arrays["stats"], arrays["limits"], arrays["lost"]

    def read(self) -> MemStallSnapshot:
        entries = self._limits[self._limits["key"] != 0]  # before the tags, so that every slot in it has one
        slot_keys = self._slots.keys()
        owned = np.flatnonzero(slot_keys)
        owned = owned[_stalled(self._stats, owned)]
        if not len(owned) and not len(entries):  # the usual case
            return replace(sums_only({}), source=self.source, lost=self._lost_so_far())
        stats = self._stats[owned]
        keys, group = np.unique(slot_keys[owned], return_inverse=True)
        n = len(keys)
        maxima = np.zeros((n, len(KINDS)), dtype=np.int64)
        np.maximum.at(maxima, group, stats["kind"]["max_ns"].astype(np.int64))
        packed = entries["key"].astype(np.int64)
        task, limit = slot_keys[(packed & 0xFFFF) - 1], packed >> 16
        known = task != 0
        pairs, pair = np.unique(np.stack([task[known], limit[known]], axis=1), axis=0, return_inverse=True)
        pair = pair.ravel()
        return MemStallSnapshot(
            source=self.source,
            time_ns=time.monotonic_ns(),
            keys=keys,
            hist=sum_by(group, stats["kind"]["hist"], n),
            sum_ns=sum_by(group, stats["kind"]["sum_ns"], n),
            max_ns=maxima,
            **{name: sum_by(group, stats[name], n) for name in ("wakeups", "direct_pages", "limit_pages")},
            task=pairs[:, 0],
            limit=pairs[:, 1],
            limit_ns=sum_by(pair, entries["sum_ns"][known], len(pairs)),
            limit_count=sum_by(pair, entries["count"][known], len(pairs)),
            lost=self._lost_so_far(),
        )

    def _lost_so_far(self) -> StallLost:
        lost = self._lost[0]
        return StallLost(int(lost["slots"]), int(lost["limits"]), int(lost["tasks"]))

    def reclaim(self, live: Collection[int]) -> int:
        slots = self._slots.dead(live)
        if len(slots):
            packed = self._limits["key"]
            stale = (packed != 0) & np.isin((packed & 0xFFFF).astype(np.int64) - 1, slots)
            for name in ("count", "sum_ns", "key"):
                self._limits[name][stale] = 0
            self._stats[slots] = 0
            self._slots.free(slots)
        return len(slots)

    def programs(self) -> list[ProgramStats]:
        return self._attached.programs()

    def close(self, keep: bool) -> None:
        self._attached.close(keep)


def _stalled(stats: npt.NDArray[np.void], slots: npt.NDArray[np.intp]) -> npt.NDArray[np.bool_]:
    """Which of these slots counted anything; without a copy of their rows, which are 2 KB each and mostly empty."""
    seen: npt.NDArray[np.bool_] = (stats["kind"]["sum_ns"][slots].sum(axis=1) + stats["wakeups"][slots]) > 0
    return seen


def _entries(cgroups: int) -> dict[str, int]:
    return {"tags": cgroups, "stats": cgroups + SPECIALS, "limits": LIMITS, "tasks": TASKS, "lost": 1}


def load_core(place: Place) -> MemStall:
    """The probe. Raises `ProbeError`."""
    conditions = []
    functions = _functions(place.host.roots.proc)
    skip: tuple[str, ...] = ()
    if not place.host.facts.psi:
        conditions.append(f"no {', '.join(SLEPT)}: {place.host.facts.reasons()['psi']}")
        skip = (SWITCH,)
    elif not all(begin for begin, _ in functions):
        conditions.append("swapin is told as refault, and throttle may be another sleep: kallsyms hides addresses")
        functions = ((0, 0),) * len(FUNCTIONS)
    settings = struct.pack("=4I", place.cgroup_v2, CGROUPS - 1, LIMITS - 1, TASKS - 1)
    settings += struct.pack("=8Q", *(number for both in (*functions, (0, 0)) for number in both))
    build = Build(
        probe=PROBE,
        programs=tuple(name for name in (*RECLAIM_PROGRAMS, *COMPACTION_PROGRAMS, SWITCH) if name not in skip),
        entries=_entries(CGROUPS),
        settings=settings,
        skip=skip,
        shape=VERSION,
    )
    with as_probe_error():
        return MemStall(load(build, place.pins), tuple(conditions))


def _functions(proc: Path) -> tuple[tuple[int, int], ...]:
    ranges = function_ranges(proc, (name for names in FUNCTIONS for name in names))
    return tuple(next((ranges[name] for name in names if name in ranges), (0, 0)) for names in FUNCTIONS)


class PressureFiles:
    """``memory.pressure`` of the default hierarchy, as totals of kind *other*: time in which at least one task of the
    group was stalled. Keys are the ids of the directories of the same path in *named*, which has the containers."""

    source = "pressure"

    def __init__(self, unified: Path | None, named: Path) -> None:
        if unified is None:
            raise ProbeError("memory.pressure: no cgroup2 is mounted")
        if next((d for _, d in walk_cgroups(unified) if (d / "memory.pressure").exists()), None) is None:
            raise ProbeError(f"{unified}: no memory.pressure in any cgroup (kernel without PSI, or psi=0)")
        self._unified, self._named = unified, named

    def read(self) -> MemStallSnapshot:
        totals: dict[int, int] = {}
        for _, directory in walk_cgroups(self._unified):
            try:
                text = (directory / "memory.pressure").read_text()
                key = (self._named / directory.relative_to(self._unified)).stat().st_ino
            except OSError:  # the cgroup is gone, or is none of the other hierarchy's
                continue
            some = next((line for line in text.splitlines() if line.startswith("some ")), "")
            totals[key] = int(some.rpartition("total=")[2] or 0) * 1000
        return sums_only(totals)

    def reclaim(self, live: frozenset[int]) -> int:
        return 0

    def close(self, keep: bool) -> None:
        """Nothing is held."""


def sums_only(totals: Mapping[int, int]) -> MemStallSnapshot:
    """Nanoseconds of all kinds together, by key."""
    keys = np.array(sorted(totals), dtype=np.int64)
    n, kinds = len(keys), len(KINDS)
    none, empty = np.zeros(n, dtype=np.int64), np.zeros(0, dtype=np.int64)
    sums = np.zeros((n, kinds), dtype=np.int64)
    sums[:, KINDS.index("other")] = [totals[int(key)] for key in keys]
    return MemStallSnapshot(
        source=PressureFiles.source,
        time_ns=time.monotonic_ns(),
        keys=keys,
        hist=np.zeros((n, kinds, BUCKETS), dtype=np.int64),
        sum_ns=sums,
        max_ns=np.zeros((n, kinds), dtype=np.int64),
        wakeups=none,
        direct_pages=none,
        limit_pages=none,
        task=empty,
        limit=empty,
        limit_ns=empty,
        limit_count=empty,
        lost=StallLost(),
    )


def open_mem_stall(place: Place) -> tuple[MemStallSource | None, ProbeStatus]:
    """The probe, else PSI's files, else nothing."""
    probe, status = open_core(place, load_core)
    if probe is not None:
        return probe, status
    mounts = place.host.facts.cgroup_mounts
    named = mounts.hierarchy("cpu") or mounts.unified
    try:
        if named is None:
            raise ProbeError("memory.pressure: no cgroup hierarchy is mounted")
        files = PressureFiles(mounts.unified, named)
    except ProbeError as error:
        return None, replace(status, reason=f"{status.reason}; {error}")
    return files, replace(status, source=files.source)
