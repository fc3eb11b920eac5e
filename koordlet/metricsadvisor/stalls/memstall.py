"""Memory stalls by subject: how long its tasks were stalled for lack of memory, by kind, and which allocations pressed.

The probe counts by cgroup id; here ids become subjects (`probes.memstall.snapshot` describes the kinds). A limit is the
subject's own when it is set on a cgroup of the subject itself; a cgroup that a container makes inside itself does not
change that.

The causing allocations are known as a *share of pressure*, not of time: all owners whose allocation found the same
thing short (the node below its watermark, the same limit reached), by how often that happened, the victim included. A
stall at the subject's own limit is caused by itself. Stalls without a limit to share (compaction, refault, swap-in,
throttling, other) have no culprit. Figures are of the last seconds; everything here is bounded by the probe's tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from koordlet.metricsadvisor.collector import ProbeCollector, ProbeContext, cgroup_ids
from koordlet.metricsadvisor.labels import Row, container_labels, culprit_labels
from koordlet.metricsadvisor.stalls.attribution import (
    CulpritTime,
    OwnerOf,
    culprit_owner,
    group,
    identity,
    sum_rows,
)
from koordlet.metricsadvisor.stalls.buckets import BUCKET_BOUNDS, exported
from koordlet.metricsadvisor.stalls.counters import MonotonicSums
from koordlet.metricsadvisor.usage.readings import Floats
from koordlet.probes.columns import Ints
from koordlet.probes.histogram import quantiles
from koordlet.probes.memstall.snapshot import KINDS, NODE, MemStallSnapshot, diff
from koordlet.statesinformer.pods.cgroupindex import CgroupIndex, Owner
from koordlet.statesinformer.pods.model import Subject, SubjectKind, Workloads

OWN, ANCESTOR = KINDS.index("own_limit"), KINDS.index("ancestor")
SHOWN_KINDS = (SubjectKind.CONTAINER, SubjectKind.HOST_APP)
MAX_PRESSING = 10
MAX_CULPRIT_SERIES = 5
"""Culprits that a victim exports."""
OTHERS = Owner("other", "")
"""All owners that pressed on the same thing besides the `MAX_PRESSING` that pressed most."""


@dataclass(frozen=True, slots=True)
class SubjectMemStall:
    """One subject over the window. Task-seconds per second by kind of `KINDS`; kinds that did not occur are left
    out."""

    seconds: Mapping[str, float] = field(default_factory=dict)
    p99: float | None = None
    """Seconds a stall lasted, all kinds together; None without a stall or a histogram."""
    culprits: tuple[CulpritTime, ...] = ()
    """The owners whose allocations made it reclaim: reclaiming seconds per second shared by pressure, largest first.
    The subject itself is among them."""


def by_subject(window: MemStallSnapshot, seconds: float, owner: OwnerOf, limit: OwnerOf) -> dict[str, SubjectMemStall]:
    """Figures by subject key. `owner` returns the owner of a task's cgroup, `limit` that of a limit. Pure."""
    if not len(window.keys):
        return {}
    subjects, rows = group(window.keys, owner)
    sums = sum_rows(window.sum_ns, rows, len(subjects)) / 1e9
    hist = sum_rows(window.hist, rows, len(subjects)).sum(axis=1)
    own_limits = _seconds_at_own_limits(window, owner, limit)
    for row, subject in enumerate(subjects):
        # The kernel counts the limit of a cgroup above the task's as an ancestor's, though both may be the subject's.
        both = sums[row, OWN] + sums[row, ANCESTOR]
        sums[row, OWN] = max(sums[row, OWN], min(both, own_limits.get(subject.key, 0.0)))
        sums[row, ANCESTOR] = both - sums[row, OWN]
    p99 = quantiles(hist, 0.99) / 1e9
    culprits = pressure_shares(window, owner, limit, seconds)
    figures = {}
    for row, subject in enumerate(subjects):
        figures[subject.key] = SubjectMemStall(
            seconds={kind: float(value) / seconds for kind, value in zip(KINDS, sums[row], strict=True) if value > 0},
            p99=float(p99[row]) if hist[row].any() else None,
            culprits=tuple(culprits.get(subject.key, ())),
        )
    return {key: figure for key, figure in figures.items() if figure.seconds}


def _seconds_at_own_limits(window: MemStallSnapshot, owner: OwnerOf, limit: OwnerOf) -> dict[str, float]:
    """Seconds by subject key that were reclaimed at limits set on the subject itself."""
    seconds: dict[str, float] = {}
    limits = window.limits
    for task, culprit, ns in zip(limits.victim.tolist(), limits.culprit.tolist(), limits.ns.tolist(), strict=True):
        subject = owner(task).subject if task > 0 else None
        if subject is not None and _is_own(subject, culprit, limit):
            seconds[subject.key] = seconds.get(subject.key, 0.0) + ns / 1e9
    return seconds


def _is_own(subject: Subject, culprit: int, limit: OwnerOf) -> bool:
    """Whether a limit is set on a cgroup of the subject."""
    owner = limit(culprit).subject if culprit != NODE else None
    return owner is not None and owner.key == subject.key


@dataclass(slots=True)
class _Pressing:
    """How often an owner's allocations found the same thing short."""

    owner: Owner
    count: int = 0


def pressure_shares(
    window: MemStallSnapshot, owner: OwnerOf, limit: OwnerOf, seconds: float = 1.0
) -> dict[str, list[CulpritTime]]:
    """By the victim's subject key: its reclaiming time, shared among the owners that pressed on the same thing; per
    second of a window of `seconds`. Pure."""
    limits = window.limits
    columns = (limits.victim, limits.culprit, limits.ns, limits.count)
    entries = list(zip(*(column.tolist() for column in columns), strict=True))
    pressing_on = _pressing_on_limits(window, owner)
    shares: dict[str, dict[str, CulpritTime]] = {}
    for task, culprit, ns, _ in entries:
        victim = owner(task) if task > 0 else None
        if ns <= 0 or victim is None or victim.subject is None:
            continue
        alone = _is_own(victim.subject, culprit, limit) or culprit not in pressing_on
        pressing = [_Pressing(victim, 1)] if alone else pressing_on[culprit]
        total = sum(item.count for item in pressing)
        of_victim = shares.setdefault(victim.subject.key, {})
        for item in pressing:
            before = of_victim.get(identity(item.owner), CulpritTime(item.owner, 0.0, 0))
            of_victim[identity(item.owner)] = CulpritTime(
                item.owner, before.seconds + ns / 1e9 / seconds * item.count / total, before.count + item.count
            )
    return {
        victim: sorted(culprits.values(), key=lambda item: (-item.seconds, item.owner.label))
        for victim, culprits in shares.items()
    }


def _pressing_on_limits(window: MemStallSnapshot, owner: OwnerOf) -> dict[int, list[_Pressing]]:
    """Limit (or `NODE`) -> the owners whose allocations found it reached."""
    counts: dict[int, dict[str, _Pressing]] = {}

    def add(limit: int, task: int, count: int) -> None:
        if count > 0:
            pressing = culprit_owner(task, owner)
            counts.setdefault(limit, {}).setdefault(identity(pressing), _Pressing(pressing)).count += count

    limits = window.limits
    for task, limit, count in zip(limits.victim.tolist(), limits.culprit.tolist(), limits.count.tolist(), strict=True):
        add(limit, task, count)
    for key, count in zip(window.keys.tolist(), window.wakeups.tolist(), strict=True):
        add(NODE, key, count)
    return {limit: _top(list(pressing.values())) for limit, pressing in counts.items()}


def _top(pressing: list[_Pressing]) -> list[_Pressing]:
    """The `MAX_PRESSING` that pressed most, and all others as one: the cost on a full node must not grow
    quadratically."""
    ranked = sorted(pressing, key=lambda item: -item.count)
    rest = sum(item.count for item in ranked[MAX_PRESSING:])
    return ranked[:MAX_PRESSING] + ([_Pressing(OTHERS, rest)] if rest else [])


class MemStallCollector(ProbeCollector[MemStallSnapshot, SubjectMemStall]):
    """`figures` has only subjects that stalled. `limits` maps the cgroups of the hierarchy with the memory controller;
    it may be the context's index, which maps those that the probe counts by."""

    def __init__(self, context: ProbeContext, *, limits: CgroupIndex, window_seconds: float = 10.0) -> None:
        super().__init__(context, window_seconds)
        self._limits = limits
        self._hist_counters = MonotonicSums()
        self._sum_counters = MonotonicSums()
        self._kind_counters = MonotonicSums()
        registries = context.registries
        registries.view("mem_stall_seconds", self._histograms, BUCKET_BOUNDS)
        registries.view("mem_stall_kind_seconds_total", self._sums)
        registries.view("mem_stall_culprit_share", self._culprits)
        registries.view("mem_stall_lost_total", self._lost)

    def refresh(self, snapshot: MemStallSnapshot, workloads: Workloads, now: float) -> None:
        """Also looks up the limits."""
        super().refresh(snapshot, workloads, now)
        if self._limits is not self.context.index:
            self._limits.refresh(workloads, now, cgroup_ids(snapshot.limits.culprit))

    def derive(self, old: MemStallSnapshot, new: MemStallSnapshot, seconds: float) -> Mapping[str, SubjectMemStall]:
        """See `by_subject`."""
        return by_subject(diff(old, new), seconds, self.context.index.owner, self._limits.owner)

    def _containers(self) -> tuple[list[Subject], Ints, Ints]:
        """(subjects, their histograms, their sums) since the probe was loaded."""
        none = np.zeros(0, dtype=np.int64)
        if self.latest is None:
            return [], none, none
        subjects, rows = group(self.latest.keys, self.context.index.owner)
        hist = sum_rows(self.latest.hist, rows, len(subjects))
        sums = sum_rows(self.latest.sum_ns, rows, len(subjects))
        shown = [row for row, subject in enumerate(subjects) if subject.kind in SHOWN_KINDS]
        return [subjects[row] for row in shown], hist[shown], sums[shown]

    def _histograms(self) -> Iterator[tuple[tuple[str, ...], list[int], float]]:
        subjects, hist, sums = self._containers()
        if not subjects:
            return
        counts = self._hist_counters.update(_by_key(subjects, hist.sum(axis=1)))
        totals = self._sum_counters.update(_by_key(subjects, sums))
        cumulative = exported(np.array([counts[subject.key] for subject in subjects]))
        for subject, buckets in zip(subjects, cumulative, strict=True):
            yield (*container_labels(subject), subject.qos), buckets, float(totals[subject.key].sum()) / 1e9

    def _sums(self) -> Iterator[Row]:
        subjects, _, sums = self._containers()
        totals = self._kind_counters.update(_by_key(subjects, sums))
        for subject in subjects:
            for kind, ns in zip(KINDS, totals[subject.key].tolist(), strict=True):
                if ns:
                    yield (*container_labels(subject), subject.qos, kind), ns / 1e9

    def _culprits(self) -> Iterator[Row]:
        subjects = {subject.key: subject for subject in self.context.workloads().subjects}
        for key, stall in self.figures.items():
            subject, total = subjects.get(key), sum(culprit.seconds for culprit in stall.culprits)
            if subject is None or subject.kind not in SHOWN_KINDS or not total:
                continue
            for culprit in stall.culprits[:MAX_CULPRIT_SERIES]:
                labels = (*container_labels(subject), subject.qos, *culprit_labels(culprit.owner))
                yield labels, culprit.seconds / total

    def _lost(self) -> list[Row]:
        if self.latest is None:
            return []
        lost = self.latest.lost
        return [(("cgroups",), lost.slots), (("limits",), lost.limits), (("tasks",), lost.tasks)]


def _by_key(subjects: list[Subject], values: Ints) -> dict[str, Floats]:
    return {subject.key: row for subject, row in zip(subjects, values.astype(float), strict=True)}
