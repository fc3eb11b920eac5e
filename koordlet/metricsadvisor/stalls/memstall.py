"""Memory stalls by subject: how long its tasks were held up for want of memory, by kind, and who pressed.

The probe counts by cgroup id; here ids become subjects (`probes.memstall` says what each kind is). A limit is the
subject's own when it is set on a cgroup of the subject itself, which a cgroup that a container makes inside itself
doesn't change.

Whose allocations caused it is told as a *share of pressure*, not of time: of everybody whose allocation found the same
thing short (the node below its mark, the same limit reached), by how often it did, the victim included. A stall at
the subject's own limit is its own doing. Stalls without a limit to share (compaction, refault, swap-in, throttling,
other) name nobody. Figures come from the last `window` seconds; everything here is bounded by the probe's tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from koordlet.app.logging import get_logger
from koordlet.metriccache import Batch, MetricCache, SeriesError
from koordlet.metricsadvisor.stalls.buckets import BUCKET_BOUNDS, exported
from koordlet.metricsadvisor.stalls.counters import SteadySums
from koordlet.metricsadvisor.stalls.latency import Blame, culprit_owner, sum_rows
from koordlet.metricsadvisor.stalls.latency import group as group_subjects
from koordlet.metricsadvisor.stalls.window import Window
from koordlet.metricsadvisor.views import container_labels
from koordlet.probes.memstall import KINDS, NODE, MemStallSnapshot, MemStallSource, diff
from koordlet.probes.schedlatency.snapshot import quantiles
from koordlet.prometheus import Registries
from koordlet.statesinformer.pods.cgroupindex import CgroupIndex, Owner
from koordlet.statesinformer.pods.model import Subject, SubjectKind, Workloads

log = get_logger(__name__)

NAME = "mem_stall"
OWN, ANCESTOR = KINDS.index("own_limit"), KINDS.index("ancestor")
SHOWN = (SubjectKind.CONTAINER, SubjectKind.HOST_APP)
PARTIES = 10
OTHERS = Owner("other", "")
"""Who pressed on the same thing beside the `PARTIES` that did most."""
OwnerOf = Callable[[int], Owner]


@dataclass(frozen=True, slots=True)
class SubjectMemStall:
    """One subject over the window. Task-seconds a second, by kind of `KINDS`; kinds that didn't occur are left out."""

    seconds: Mapping[str, float] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    p50: float | None = None
    """Seconds a stall lasted, all kinds together; None without a stall or a histogram."""
    p99: float | None = None
    culprits: tuple[Blame, ...] = ()
    """Whose allocations made it reclaim: reclaiming seconds a second shared by pressure, most first. The subject itself
    is among them."""

    @property
    def total(self) -> float:
        return sum(self.seconds.values())

    @property
    def own(self) -> float:
        """By its own limits."""
        return self.seconds.get("own_limit", 0.0) + self.seconds.get("throttle", 0.0)

    @property
    def count(self) -> int:
        return sum(self.counts.values())


def by_subject(window: MemStallSnapshot, seconds: float, owner: OwnerOf, limit: OwnerOf) -> dict[str, SubjectMemStall]:
    """Figures by subject key. *owner* tells whose a task's cgroup is, *limit* whose a limit is. Pure."""
    if not len(window.keys):
        return {}
    subjects, rows = group_subjects(window.keys, owner)
    sums = sum_rows(window.sum_ns, rows, len(subjects)) / 1e9
    hist = sum_rows(window.hist, rows, len(subjects))
    within = _within(window, owner, limit)
    for row, subject in enumerate(subjects):
        # The kernel takes the limit of a cgroup above the task's for an ancestor's, though both may be the subject's.
        both = sums[row, OWN] + sums[row, ANCESTOR]
        sums[row, OWN] = max(sums[row, OWN], min(both, within.get(subject.key, 0.0)))
        sums[row, ANCESTOR] = both - sums[row, OWN]
    counts = hist.sum(axis=2)
    p50, p99 = (quantiles(hist.sum(axis=1), q) / 1e9 for q in (0.5, 0.99))
    blamed = pressure_shares(window, owner, limit, seconds)
    figures = {}
    for row, subject in enumerate(subjects):
        told = counts[row].any()
        figures[subject.key] = SubjectMemStall(
            seconds={kind: float(value) / seconds for kind, value in zip(KINDS, sums[row], strict=True) if value > 0},
            counts={kind: int(count) for kind, count in zip(KINDS, counts[row], strict=True) if count},
            p50=float(p50[row]) if told else None,
            p99=float(p99[row]) if told else None,
            culprits=tuple(blamed.get(subject.key, ())),
        )
    return {key: figure for key, figure in figures.items() if figure.seconds}


def _within(window: MemStallSnapshot, owner: OwnerOf, limit: OwnerOf) -> dict[str, float]:
    """Seconds by subject key that were reclaimed at limits set on the subject itself."""
    found: dict[str, float] = {}
    for task, at, ns in zip(window.task.tolist(), window.limit.tolist(), window.limit_ns.tolist(), strict=True):
        mine, its = owner(task).subject if task > 0 else None, limit(at).subject if at != NODE else None
        if mine is not None and its is not None and mine.key == its.key:
            found[mine.key] = found.get(mine.key, 0.0) + ns / 1e9
    return found


def pressure_shares(
    window: MemStallSnapshot, owner: OwnerOf, limit: OwnerOf, seconds: float = 1.0
) -> dict[str, list[Blame]]:
    """By victim's subject key: its reclaiming time shared among those who pressed on the same thing. Of a window of so
    many *seconds*, for each of them. Pure."""
    pressed: dict[int, dict[tuple[str, str], tuple[Owner, int]]] = {}

    def press(at: int, who: Owner, count: int) -> None:
        mine = pressed.setdefault(at, {})
        mine[_name(who)] = (who, mine.get(_name(who), (who, 0))[1] + count)

    columns = (window.task, window.limit, window.limit_ns, window.limit_count)
    entries = list(zip(*(column.tolist() for column in columns), strict=True))
    for task, at, _, count in entries:
        if count > 0:
            press(at, culprit_owner(task, owner), count)
    for key, count in zip(window.keys.tolist(), window.wakeups.tolist(), strict=True):
        if count > 0:
            press(NODE, culprit_owner(key, owner), count)
    parties_of = {at: _most(found) for at, found in pressed.items()}
    shares: dict[str, dict[tuple[str, str], Blame]] = {}
    for task, at, ns, _ in entries:
        who = owner(task) if task > 0 else None
        if ns <= 0 or who is None or who.subject is None:
            continue
        its = limit(at).subject if at != NODE else None
        own = its is not None and its.key == who.subject.key
        parties = {_name(who): (who, 1)} if own else parties_of[at]
        total = sum(count for _, count in parties.values())
        mine = shares.setdefault(who.subject.key, {})
        for name, (culprit, count) in parties.items():
            before = mine.get(name)
            mine[name] = Blame(
                culprit,
                (before.seconds if before else 0.0) + ns / 1e9 / seconds * count / total,
                (before.count if before else 0) + count,
            )
    return {
        victim: sorted(found.values(), key=lambda one: (-one.seconds, one.owner.label))
        for victim, found in shares.items()
    }


def _most(found: dict[tuple[str, str], tuple[Owner, int]]) -> dict[tuple[str, str], tuple[Owner, int]]:
    """The `PARTIES` that pressed most, and all others as one: a full node must not cost its square."""
    ranked = sorted(found.items(), key=lambda item: -item[1][1])
    rest = sum(count for _, (_, count) in ranked[PARTIES:])
    return dict(ranked[:PARTIES]) | ({_name(OTHERS): (OTHERS, rest)} if rest else {})


def _name(who: Owner) -> tuple[str, str]:
    return who.kind, who.subject.key if who.subject is not None else who.label


class MemStallCollector:
    """`read` is one round. `limits` knows the cgroups of the hierarchy with the memory controller; it may be the same
    as `index`, which knows those that the probe counts by."""

    def __init__(
        self,
        source: MemStallSource | None,
        workloads: Callable[[], Workloads],
        cache: MetricCache,
        registries: Registries,
        *,
        index: CgroupIndex,
        limits: CgroupIndex,
        clock: Callable[[], float],
        window: float = 10.0,
    ) -> None:
        self._source, self._workloads, self._cache, self._registries = source, workloads, cache, registries
        self._index, self._limits, self._clock = index, limits, clock
        self._window: Window[MemStallSnapshot] = Window(window)
        self._steady: dict[str, SteadySums] = {name: SteadySums() for name in ("hist", "sum")}
        self.window: Mapping[str, SubjectMemStall] = {}
        """Subject key -> figures of the last seconds, only of those that stalled."""
        registries.view("mem_stall_seconds", self._histograms, BUCKET_BOUNDS)
        registries.view("mem_stall_kind_seconds_total", self._sums)
        registries.view("mem_stall_culprit_share", self._culprits)
        registries.view("mem_stall_lost_total", self._lost)

    def attach(self, source: MemStallSource | None) -> None:
        """Read *source* from now on: a probe may come later than its collector."""
        self._source = source

    @property
    def latest(self) -> MemStallSnapshot | None:
        """The newest reading: cumulative."""
        return self._window.latest

    def read(self) -> None:
        """Read the probe and judge the window; nothing without a source."""
        if self._source is None:
            return
        snapshot = self._source.read()
        now, workloads = self._clock(), self._workloads()
        self._index.refresh(workloads, now, snapshot.keys[snapshot.keys > 0].tolist())
        if self._limits is not self._index:
            self._limits.refresh(workloads, now, snapshot.limit[snapshot.limit > 0].tolist())
        self._window.push(snapshot)
        span = self._window.span()
        if span is not None:
            old, new, seconds = span
            self.window = by_subject(diff(old, new), seconds, self._index.owner, self._limits.owner)
            self._commit(now)

    def _commit(self, now: float) -> None:
        batch = Batch(now)
        keys = [(key,) for key in self.window]
        batch.extend("container_mem_stall", keys, np.array([one.total for one in self.window.values()], dtype=float))
        timed = [((key,), one.p99) for key, one in self.window.items() if one.p99 is not None]
        batch.extend("container_mem_stall_p99", [key for key, _ in timed], np.array([p99 for _, p99 in timed]))
        try:
            self._cache.commit(batch)
        except SeriesError as error:
            self._registries.count("collector_failures_total", NAME, "series")
            log.once(f"collector:{NAME}:{error}", "no figure from a source", collector=NAME, cause=str(error))

    # --- Prometheus rows

    def _containers(self) -> tuple[list[Subject], np.ndarray, np.ndarray]:
        """Subjects, their histograms and sums since the probe was loaded."""
        if self.latest is None:
            return [], np.zeros(0), np.zeros(0)
        subjects, rows = group_subjects(self.latest.keys, self._index.owner)
        hist = sum_rows(self.latest.hist, rows, len(subjects))
        sums = sum_rows(self.latest.sum_ns, rows, len(subjects))
        shown = [row for row, subject in enumerate(subjects) if subject.kind in SHOWN]
        return [subjects[row] for row in shown], hist[shown], sums[shown]

    def _histograms(self) -> Iterator[tuple[tuple[str, ...], list[int], float]]:
        subjects, hist, sums = self._containers()
        if not subjects:
            return
        keys = [subject.key for subject in subjects]
        counted = self._steady["hist"].update(dict(zip(keys, hist.sum(axis=1).astype(float), strict=True)))
        added = self._steady["sum"].update(dict(zip(keys, sums.astype(float), strict=True)))
        for subject, reached in zip(subjects, exported(np.array([counted[key] for key in keys])), strict=True):
            yield (*container_labels(subject), subject.qos), reached, float(added[subject.key].sum()) / 1e9

    def _sums(self) -> Iterator[tuple[tuple[str, ...], float]]:
        subjects, _, sums = self._containers()
        steady = self._steady.setdefault("kinds", SteadySums())
        now = steady.update({s.key: row for s, row in zip(subjects, sums.astype(float), strict=True)})
        for subject in subjects:
            for kind, ns in zip(KINDS, now[subject.key].tolist(), strict=True):
                if ns:
                    yield (*container_labels(subject), subject.qos, kind), ns / 1e9

    def _culprits(self) -> Iterator[tuple[tuple[str, ...], float]]:
        subjects = {subject.key: subject for subject in self._workloads().subjects}
        for key, stall in self.window.items():
            subject, total = subjects.get(key), sum(one.seconds for one in stall.culprits)
            if subject is None or subject.kind not in SHOWN or not total:
                continue
            for one in stall.culprits[:5]:
                who = one.owner
                labels = (*container_labels(subject), subject.qos, who.kind, who.namespace, who.pod, who.name)
                yield labels, one.seconds / total

    def _lost(self) -> list[tuple[tuple[str, ...], float]]:
        if self.latest is None:
            return []
        lost = self.latest.lost
        return [(("cgroups",), lost.slots), (("limits",), lost.limits), (("tasks",), lost.tasks)]
