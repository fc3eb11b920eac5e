"""oom: the victims of the kernel's OOM killer, the limit that was reached, and the task whose allocation failed.

A ring of the last `EVENTS` kills and counters by cgroup, both in pinned maps: kills that happen while koordlet does not
run are reported at its next start. Events are numbered, so a reader knows how many it missed. What is measured:
docs/probes.md.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from koordlet.probes.columns import Ints, sum_by
from koordlet.probes.culprits.slots import SPECIALS, TAG, SlotTable
from koordlet.probes.layouts import (
    OOM_CONFIG,
    OOM_COUNTS,
    OOM_EVENT,
    OOM_EVENTS,
    OOM_PENDING,
    OOM_SCOPE,
    OOM_VERSION,
)
from koordlet.probes.loading import libbpf
from koordlet.probes.loading.frame import (
    Attached,
    Build,
    MappedProbe,
    ProbeEnvironment,
    SourceOf,
    as_probe_error,
    load,
    open_core,
)
from koordlet.probes.loading.mapped import map_arrays
from koordlet.probes.status import ProbeStatus

PROBE = "oom"
CGROUPS, TASKS = 1024, 4096
"""Entries of the tables; powers of two."""
ENTRIES: dict[str, int] = {
    "tags": CGROUPS,
    "counts": CGROUPS + SPECIALS,
    "events": OOM_EVENTS,
    "head": 1,
    "reclaims": TASKS,
    "pending": OOM_PENDING,
}
SCOPES = tuple(name.removeprefix("OOM_").lower() for name in OOM_SCOPE)
"""By ``enum oom_scope``."""
RECLAIM_PROGRAMS = ("direct_begin", "memcg_begin")
BY_TASK, BY_PID = ("mark_task",), ("mark_pid", "killing")
ARGUMENTS_BY_TASK = 2
"""mark_victim has the arguments (task, uid) since v6.9, (pid) before."""


@dataclass(frozen=True, slots=True)
class OomKill:
    """One victim. Cgroups are ids as in the other probes, 0 = none (a kernel thread triggered it); `limit_cgroup` is an
    id of the hierarchy with the memory controller. Pages have the machine's page size. The victim's resident pages are
    read from approximate counters: a few dozen pages per CPU may be missing."""

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
        """Pages of all kinds that the victim held."""
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
    """``[n]``: kills of any task for an allocation of the cgroup's tasks."""
    kills: tuple[OomKill, ...]

    def since(self, number: int) -> list[OomKill]:
        """The remembered kills with a higher number."""
        return [kill for kill in self.kills if kill.number > number]


OomSource = SourceOf[OomSnapshot]


class Oom(MappedProbe):
    """The loaded probe."""

    def __init__(self, attached: Attached) -> None:
        super().__init__(attached)
        self._last: OomSnapshot | None = None
        """Returned until there is another kill: it contains every kill up to its total."""

    def map_tables(self, maps: Mapping[str, int]) -> None:
        """See `MappedProbe.map_tables`."""
        tags, self._counts, self._events, self._head = map_arrays(
            maps, ENTRIES, tags=TAG, counts=OOM_COUNTS, events=OOM_EVENT, head=TAG
        )
        self._slots = SlotTable(tags)

    def read(self) -> OomSnapshot:
        """Everything counted so far, and the last kills."""
        total = int(self._head[0])
        if self._last is not None and self._last.total == total:
            return self._last
        snapshot = self._read(total)
        # The kernel side assigns a number first, then adds the counts, then completes the event.
        numbers = [kill.number for kill in snapshot.kills]
        complete = numbers == list(range(max(total - OOM_EVENTS, 0) + 1, total + 1))
        self._last = snapshot if complete else None
        return snapshot

    def _read(self, total: int) -> OomSnapshot:
        events = self._events.copy()  # before the counts, so that every event in it has been counted
        slot_keys = self._slots.keys()
        used = np.flatnonzero(slot_keys)
        keys, group = np.unique(slot_keys[used], return_inverse=True)
        counts = {name: sum_by(group, self._counts[name][used], len(keys)) for name in OOM_COUNTS.names or ()}
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
        """Free the slots of dead cgroups (`SlotTable.dead`); returns their number."""
        slots = self._slots.dead(live)
        if len(slots):
            self._counts[slots] = 0
            self._slots.free(slots)
            self._last = None
        return len(slots)


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


def load_core(place: ProbeEnvironment) -> Oom:
    """The probe. Raises `ProbeError`."""
    config = np.zeros((), OOM_CONFIG)
    config["slots"] = place.cgroup_v2, CGROUPS - 1
    config["task_mask"] = TASKS - 1
    with as_probe_error():
        passes_task = libbpf.tracepoint_arguments("mark_victim") >= ARGUMENTS_BY_TASK
        mark, skip = (BY_TASK, BY_PID) if passes_task else (BY_PID, BY_TASK)
        build = Build(PROBE, (*RECLAIM_PROGRAMS, *mark), ENTRIES, config.tobytes(), skip, shape=OOM_VERSION)
        return Oom(load(build, place.pins))


def open_oom(place: ProbeEnvironment) -> tuple[OomSource | None, ProbeStatus]:
    """The probe, or nothing: no file stands in for it."""
    return open_core(place, load_core)
