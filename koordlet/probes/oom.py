"""oom: whom the kernel killed for want of memory, whose limit that was, and whose allocation set it off.

A ring of the last `EVENTS` kills and counters by cgroup, both in pinned maps: what happened while koordlet was away is
still told. Events are numbered, so a reader knows how many it missed. What is measured: docs/probes.md.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from koordlet.probes.culprits.slots import Slots
from koordlet.probes.loading import libbpf
from koordlet.probes.loading.frame import Attached, Build, Place, SourceOf, as_probe_error, load, open_core
from koordlet.probes.loading.libbpf import ProgramStats
from koordlet.probes.loading.mapped import Ints, map_array, sum_by
from koordlet.probes.schedlatency.layout import SPECIALS, TAG
from koordlet.probes.status import ProbeStatus

PROBE = "oom"
VERSION = 1
EVENTS, PENDING, CGROUPS, TASKS = 64, 64, 1024, 4096
NAME, COMM = 72, 16
SCOPES = ("unknown", "limit", "node")
"""By ``enum oom_scope``."""

COUNTS = np.dtype([("killed_limit", "u8"), ("killed_node", "u8"), ("killed_unknown", "u8"), ("triggered", "u8")])
EVENT = np.dtype(
    [
        *(
            (name, "u8")
            for name in (
                "number", "boot_ns", "victim_cgroup", "trigger_cgroup", "limit_cgroup", "limit_pages", "usage_pages",
                "anon_pages", "file_pages", "shmem_pages", "total_vm_pages",
            )
        ),
        *((name, "u4") for name in ("victim_pid", "victim_thread", "trigger_pid", "scope", "score_adj", "reserved")),
        *((name, "u1", COMM) for name in ("victim_comm", "trigger_comm")),
        *((name, "u1", NAME) for name in ("victim_name", "victim_parent", "limit_name", "limit_parent")),
    ]
)  # fmt: skip
RECLAIM_SIZE = 32
_COMMON = ("direct_begin", "memcg_begin")
BY_TASK, BY_PID = ("mark_task",), ("mark_pid", "killing")
TASK_ARGUMENTS = 2
"""mark_victim hands over (task, uid) since v6.9, (pid) before."""


@dataclass(frozen=True, slots=True)
class OomKill:
    """One victim. Cgroups are ids as in the other probes, 0 = none (a kernel thread triggered it); ``limit_cgroup`` is
    one of the hierarchy with the memory controller. Pages are the machine's. The victim's resident pages are read from
    approximate counters: a few dozen pages a CPU may be missing."""

    number: int
    """1 for the first since the probe was loaded."""
    at: float
    """Seconds since boot, suspend included."""
    scope: str
    """``limit``, ``node`` or ``unknown`` (`SCOPES`)."""
    victim_pid: int
    victim_comm: str
    victim_cgroup: int
    victim_path: str
    """The last two parts of the cgroup's path, for when the cgroup is gone."""
    trigger_pid: int
    trigger_comm: str
    trigger_cgroup: int
    limit_cgroup: int
    limit_path: str
    limit_pages: int
    usage_pages: int
    anon_pages: int
    file_pages: int
    shmem_pages: int
    score_adj: int

    @property
    def resident_pages(self) -> int:
        return self.anon_pages + self.file_pages + self.shmem_pages


@dataclass(frozen=True, slots=True)
class OomSnapshot:
    """Cumulative counts (row i belongs to ``keys[i]``, sorted, unique) and the last kills, oldest first."""

    total: int
    """Kills since the probe was loaded."""
    keys: Ints
    killed: Mapping[str, Ints]
    """Scope -> ``[n]`` kills of the cgroup's tasks."""
    triggered: Ints
    """``[n]``: kills, of anybody, for an allocation of the cgroup's tasks."""
    kills: tuple[OomKill, ...]

    def since(self, number: int) -> list[OomKill]:
        """Kills after that number, as far as they are remembered."""
        return [kill for kill in self.kills if kill.number > number]


OomSource = SourceOf[OomSnapshot]


class Oom:
    """The loaded probe."""

    source = "bpf"
    conditions: tuple[str, ...] = ()

    def __init__(self, attached: Attached) -> None:
        try:
            arrays = {
                name: map_array(attached.maps[name], name, dtype, _ENTRIES[name])
                for name, dtype in (("tags", TAG), ("counts", COUNTS), ("events", EVENT), ("head", TAG))
            }
        except BaseException:
            attached.close(keep=True)
            raise
        attached.release_maps()
        self._attached, self.reused = attached, attached.reused
        self._slots = Slots(arrays["tags"])
        self._counts, self._events, self._head = arrays["counts"], arrays["events"], arrays["head"]
        self._last: OomSnapshot | None = None
        """Stands until there is another kill: every one up to its total is told in full."""

    def read(self) -> OomSnapshot:
        total = int(self._head[0])
        if self._last is not None and self._last.total == total:
            return self._last
        snapshot = self._read(total)
        told = [kill.number for kill in snapshot.kills]  # a kill has its number first, then its counts, then its event
        self._last = snapshot if told == list(range(max(total - EVENTS, 0) + 1, total + 1)) else None
        return snapshot

    def _read(self, total: int) -> OomSnapshot:
        events = self._events.copy()  # before the counts, so that every event in it has been counted
        slot_keys = self._slots.keys()
        used = np.flatnonzero(slot_keys)
        keys, group = np.unique(slot_keys[used], return_inverse=True)
        counts = {name: sum_by(group, self._counts[name][used], len(keys)) for name in COUNTS.names or ()}
        seen = np.sum(list(counts.values()), axis=0) > 0
        order = np.argsort(events["number"], kind="stable")
        return OomSnapshot(
            total=total,
            keys=keys[seen],
            killed={scope: counts[f"killed_{scope}"][seen] for scope in SCOPES},
            triggered=counts["triggered"][seen],
            kills=tuple(_kill(events[i]) for i in order if events["number"][i]),
        )

    def reclaim(self, live: Collection[int]) -> int:
        slots = self._slots.dead(live)
        if len(slots):
            self._counts[slots] = 0
            self._slots.free(slots)
            self._last = None
        return len(slots)

    def programs(self) -> list[ProgramStats]:
        return self._attached.programs()

    def close(self, keep: bool) -> None:
        self._attached.close(keep)


def _kill(row: np.void) -> OomKill:
    def text(name: str) -> str:
        return bytes(row[name]).partition(b"\0")[0].decode(errors="replace")

    def path(name: str) -> str:
        return "/".join(part for part in (text(f"{name}_parent"), text(f"{name}_name")) if part)

    def number(name: str) -> int:
        return int(row[name])

    return OomKill(
        number=number("number"),
        at=number("boot_ns") / 1e9,
        scope=SCOPES[number("scope")],
        victim_pid=number("victim_pid"),
        victim_comm=text("victim_comm"),
        victim_cgroup=number("victim_cgroup"),
        victim_path=path("victim"),
        trigger_pid=number("trigger_pid"),
        trigger_comm=text("trigger_comm"),
        trigger_cgroup=number("trigger_cgroup"),
        limit_cgroup=number("limit_cgroup"),
        limit_path=path("limit"),
        limit_pages=number("limit_pages"),
        usage_pages=number("usage_pages"),
        anon_pages=number("anon_pages"),
        file_pages=number("file_pages"),
        shmem_pages=number("shmem_pages"),
        score_adj=int(np.int32(np.uint32(row["score_adj"]))),
    )


_ENTRIES: dict[str, int] = {
    "tags": CGROUPS,
    "counts": CGROUPS + SPECIALS,
    "events": EVENTS,
    "head": 1,
    "reclaims": TASKS,
    "pending": PENDING,
}


def load_core(place: Place) -> Oom:
    """The probe. Raises `ProbeError`."""
    settings = struct.pack("=4I", place.cgroup_v2, CGROUPS - 1, TASKS - 1, 0)
    with as_probe_error():
        hands_over_task = libbpf.tracepoint_arguments("mark_victim") >= TASK_ARGUMENTS
        wanted, skip = (BY_TASK, BY_PID) if hands_over_task else (BY_PID, BY_TASK)
        build = Build(PROBE, (*_COMMON, *wanted), _ENTRIES, settings, skip, shape=VERSION)
        return Oom(load(build, place.pins))


def open_oom(place: Place) -> tuple[OomSource | None, ProbeStatus]:
    return open_core(place, load_core)
