"""Out-of-memory kills: one log line each, and counters by subject.

The probe's ring is numbered and pinned. Kills while koordlet did not run are reported at the next start, and those that
an earlier koordlet reported are reported again, with their age. Kills that were overwritten in the ring before they
were read count as missed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from koordlet.app.logging import get_logger
from koordlet.metricsadvisor.collector import ProbeContext, cgroup_ids
from koordlet.metricsadvisor.labels import container_labels
from koordlet.metricsadvisor.stalls.attribution import group, sum_rows
from koordlet.metricsadvisor.stalls.counters import MonotonicSums
from koordlet.probes.oom import SCOPES, OomKill, OomSnapshot, OomSource
from koordlet.statesinformer.pods.cgroupindex import CgroupIndex, Owner
from koordlet.statesinformer.pods.model import SubjectKind

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class OomEvent:
    """A kill with names. `limit` is None when the node had no free memory, or the limit is not known."""

    kill: OomKill
    victim: Owner
    trigger: Owner | None
    limit: Owner | None


class OomCollector:
    """`read` is one round; without a source it does nothing. `limits` maps the cgroups of the hierarchy with the memory
    controller; it may be the context's index."""

    def __init__(self, context: ProbeContext, *, limits: CgroupIndex) -> None:
        self._context = context
        self._limits = limits
        self._source: OomSource | None = None
        self._read_up_to = 0
        """Number of the last kill that was read."""
        self._counters = MonotonicSums()
        self.latest: OomSnapshot | None = None
        self.missed = 0
        """Kills that were overwritten in the ring before they were read."""
        context.registries.view("oom_kills_total", self._kills)
        context.registries.view("oom_events_missed_total", lambda: [((), self.missed)])

    def attach(self, source: OomSource | None) -> None:
        """Read `source` from now on: a probe may be opened after its collector was made."""
        self._source = source

    def read(self) -> None:
        """Report the kills since the last round."""
        if self._source is None:
            return
        snapshot = self._source.read()
        new = snapshot.since(self._read_up_to)
        self._refresh(snapshot, new)
        for kill in new:
            self.missed += kill.number - self._read_up_to - 1
            self._read_up_to = kill.number
            self._log(self._event(kill))
        self.latest = snapshot

    def _refresh(self, snapshot: OomSnapshot, new: Sequence[OomKill]) -> None:
        """In every round, so that a cgroup that is removed before its kill is read still has a name."""
        index, now, workloads = self._context.index, self._context.clock(), self._context.workloads()
        triggers = [kill.trigger_cgroup for kill in new if kill.trigger_cgroup]
        index.refresh(workloads, now, [*cgroup_ids(snapshot.keys), *triggers])
        if self._limits is not index:
            self._limits.refresh(workloads, now, [kill.limit_cgroup for kill in new if kill.limit_cgroup])

    def _event(self, kill: OomKill) -> OomEvent:
        owner, limit = self._context.index.owner, self._limits.owner
        return OomEvent(
            kill,
            victim=_named(owner(kill.victim_cgroup), kill.victim_path),
            trigger=owner(kill.trigger_cgroup) if kill.trigger_cgroup else None,
            limit=_named(limit(kill.limit_cgroup), kill.limit_path) if kill.limit_cgroup else None,
        )

    def _log(self, event: OomEvent) -> None:
        kill = event.kill
        log.warning(
            "Out of memory: a task was killed",
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
            age=round(max(0.0, self._context.clock() - kill.at), 1),
        )

    def _kills(self) -> Iterator[tuple[tuple[str, ...], float]]:
        snapshot = self.latest
        if snapshot is None:
            return
        subjects, rows = group(snapshot.keys, self._context.index.owner)
        killed = sum_rows(np.stack([snapshot.killed[scope] for scope in SCOPES], axis=1), rows, len(subjects))
        counts = self._counters.update({s.key: row for s, row in zip(subjects, killed.astype(float), strict=True)})
        for subject in subjects:
            if subject.kind not in (SubjectKind.CONTAINER, SubjectKind.HOST_APP):
                continue
            for scope, count in zip(SCOPES, counts[subject.key].tolist(), strict=True):
                if count:
                    yield (*container_labels(subject), subject.qos, scope), count


def _named(owner: Owner, path: str) -> Owner:
    """A cgroup that was removed before its id was looked up gets the name that the kernel recorded."""
    return Owner("gone", path) if owner.kind == "gone" and path else owner
