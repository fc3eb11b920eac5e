"""Out-of-memory kills: one log line each, the last few kept by victim, and counters by subject.

The probe's ring is numbered and pinned: kills that happened while koordlet was away are told at the next start, and
those before it again, with their age. What the ring had forgotten before anybody read it is counted as missed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from koordlet.app.logging import get_logger
from koordlet.metricsadvisor.stalls.counters import SteadySums
from koordlet.metricsadvisor.stalls.latency import group as group_subjects
from koordlet.metricsadvisor.stalls.latency import sum_rows
from koordlet.metricsadvisor.views import container_labels
from koordlet.probes.oom import SCOPES, OomKill, OomSnapshot, OomSource
from koordlet.prometheus import Registries
from koordlet.statesinformer.pods.cgroupindex import CgroupIndex, Owner
from koordlet.statesinformer.pods.model import SubjectKind, Workloads

log = get_logger(__name__)

KEPT = 64
"""Kills kept for explanations."""


@dataclass(frozen=True, slots=True)
class OomEvent:
    """A kill with names. `limit` is None when the node was short, or nothing tells."""

    kill: OomKill
    victim: Owner
    trigger: Owner | None
    limit: Owner | None

    @property
    def own(self) -> bool:
        """At a limit of the victim's own."""
        mine, its = self.victim.subject, self.limit.subject if self.limit is not None else None
        return mine is not None and its is not None and mine.key == its.key


class OomCollector:
    """`read` is one round. `limits` knows the cgroups of the hierarchy with the memory controller."""

    def __init__(
        self,
        source: OomSource | None,
        workloads: Callable[[], Workloads],
        registries: Registries,
        *,
        index: CgroupIndex,
        limits: CgroupIndex,
        clock: Callable[[], float],
    ) -> None:
        self._source, self._workloads, self._registries = source, workloads, registries
        self._index, self._limits, self._clock = index, limits, clock
        self._read_up_to = 0
        self._steady = SteadySums()
        self.latest: OomSnapshot | None = None
        self.missed = 0
        """Kills that the ring had forgotten before they were read."""
        self.events: deque[OomEvent] = deque(maxlen=KEPT)
        """The last kills, oldest first."""
        registries.view("oom_kills_total", self._kills)
        registries.view("oom_events_missed_total", lambda: [((), self.missed)])

    def attach(self, source: OomSource | None) -> None:
        """Read *source* from now on: a probe may come later than its collector."""
        self._source = source

    def read(self) -> None:
        """Tell what was killed since the last round; nothing without a probe."""
        if self._source is None:
            return
        snapshot = self._source.read()
        fresh = snapshot.since(self._read_up_to)
        # Looked up at every round, so that a cgroup that is gone by the time of its kill still has a name.
        now, workloads = self._clock(), self._workloads()
        wanted = [*snapshot.keys[snapshot.keys > 0].tolist(), *(kill.trigger_cgroup for kill in fresh)]
        self._index.refresh(workloads, now, [one for one in wanted if one])
        if self._limits is not self._index:
            self._limits.refresh(workloads, now, [kill.limit_cgroup for kill in fresh if kill.limit_cgroup])
        for kill in fresh:
            self.missed += kill.number - self._read_up_to - 1
            self._read_up_to = kill.number
            event = OomEvent(
                kill,
                victim=_named(self._index.owner(kill.victim_cgroup), kill.victim_path),
                trigger=self._index.owner(kill.trigger_cgroup) if kill.trigger_cgroup else None,
                limit=_named(self._limits.owner(kill.limit_cgroup), kill.limit_path) if kill.limit_cgroup else None,
            )
            self.events.append(event)
            self._say(event)
        self.latest = snapshot

    def of(self, key: str) -> Sequence[OomEvent]:
        """The kept kills of one subject's tasks, oldest first."""
        return [one for one in self.events if one.victim.subject is not None and one.victim.subject.key == key]

    def _say(self, event: OomEvent) -> None:
        kill = event.kill
        log.warning(
            "out of memory: a task was killed",
            victim=event.victim.label,
            pid=kill.victim_pid,
            comm=kill.victim_comm,
            scope=kill.scope,
            limit=event.limit.label if event.limit is not None else "",
            trigger=event.trigger.label if event.trigger is not None else "kernel",
            trigger_pid=kill.trigger_pid,
            trigger_comm=kill.trigger_comm,
            resident_pages=kill.resident_pages,
            limit_pages=kill.limit_pages,
            age=round(max(0.0, self._clock() - kill.at), 1),
        )

    def _kills(self) -> Iterator[tuple[tuple[str, ...], float]]:
        snapshot = self.latest
        if snapshot is None:
            return
        subjects, rows = group_subjects(snapshot.keys, self._index.owner)
        killed = sum_rows(np.stack([snapshot.killed[scope] for scope in SCOPES], axis=1), rows, len(subjects))
        now = self._steady.update({s.key: row for s, row in zip(subjects, killed.astype(float), strict=True)})
        for subject in subjects:
            if subject.kind not in (SubjectKind.CONTAINER, SubjectKind.HOST_APP):
                continue
            for scope, count in zip(SCOPES, now[subject.key].tolist(), strict=True):
                if count:
                    yield (*container_labels(subject), subject.qos, scope), count


def _named(owner: Owner, path: str) -> Owner:
    """A cgroup that nobody knew by the time it was asked for has the name that the kernel gave."""
    return Owner("gone", path) if owner.kind == "gone" and path else owner
