"""Block I/O by subject: bytes, operations, latency, time held back by its own limit, and whose I/O went before.

The probe counts by (cgroup, disk); here cgroups become subjects and `window` has the figures of the last seconds, all
disks together. Prometheus gets the totals; bytes, operations and latencies by disk. Bounded by the probe's tables; only
disks that a container uses have series.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from koordlet.app.logging import get_logger
from koordlet.metriccache import Batch, MetricCache, SeriesError
from koordlet.metricsadvisor.stalls.buckets import BUCKET_BOUNDS, exported
from koordlet.metricsadvisor.stalls.counters import CulpritCounters, SteadySums
from koordlet.metricsadvisor.stalls.latency import Blame, OwnerOf, blame, group, sum_rows
from koordlet.metricsadvisor.stalls.waiting import Waiting
from koordlet.metricsadvisor.stalls.window import Window
from koordlet.metricsadvisor.usage.readings import Floats
from koordlet.metricsadvisor.views import CULPRITS_EXPORTED, container_labels, culprit_labels
from koordlet.probes.blockio.probe import BlockIOSource
from koordlet.probes.blockio.snapshot import DIRECTIONS, FLUSH, READ, WRITE, BlockIOSnapshot, device_name, diff
from koordlet.probes.culprits.rows import distinct
from koordlet.probes.schedlatency.layout import BUCKETS
from koordlet.probes.schedlatency.snapshot import quantiles
from koordlet.prometheus import Registries
from koordlet.statesinformer.pods.cgroupindex import CgroupIndex
from koordlet.statesinformer.pods.model import Subject, SubjectKind, Workloads

log = get_logger(__name__)

NAME = "block_io"
STAGES = {"queue": ("queue_hist", "queue_ns"), "device": ("device_hist", "device_ns")}
Row = tuple[tuple[str, ...], float]


@dataclass(frozen=True, slots=True)
class SubjectBlockIO:
    """One subject over the window."""

    read_bytes: float
    """A second, like the next four."""
    write_bytes: float
    read_ops: float
    write_ops: float
    flush_ops: float
    queue: float
    """Request-seconds a second between arrival and issue."""
    device: float
    """Request-seconds a second between issue and completion."""
    wait: float
    """Request-seconds a second from arrival until the disk turned to the request: what `culprits` splits."""
    throttled: float
    """Seconds a second in which its own limit held something back."""
    queue_p50: float | None
    queue_p99: float | None
    device_p50: float | None
    device_p99: float | None
    count: int
    """Requests completed."""
    culprits: tuple[Blame, ...] = ()
    """Whose requests the disk worked for meanwhile, longest first: the subject itself, others, kernel threads, and
    `idle` for a disk that did nothing yet. A second; together they are `wait`."""


def by_subject(window: BlockIOSnapshot, seconds: float, owner: OwnerOf) -> dict[str, SubjectBlockIO]:
    """Figures by subject key. Pure."""
    subjects, rows = group(window.keys, owner)
    count = len(subjects)
    ops, size = (sum_rows(column, rows, count) / seconds for column in (window.ops, window.bytes))
    queue, device = (sum_rows(column, rows, count).sum(axis=1) / 1e9 for column in (window.queue_ns, window.device_ns))
    wait, throttled = (sum_rows(column, rows, count) / 1e9 for column in (window.ahead_ns, window.throttled_ns))
    quantile: dict[tuple[str, float], list[float]] = {}
    counted: dict[str, Floats] = {}
    for stage, (hist, _) in STAGES.items():
        table = sum_rows(getattr(window, hist), rows, count).sum(axis=1)
        counted[stage] = table.sum(axis=1)
        for q in (0.5, 0.99):
            quantile[stage, q] = (quantiles(table, q) / 1e9).tolist()

    def of(stage: str, q: float, row: int) -> float | None:
        return quantile[stage, q][row] if counted[stage][row] else None

    blamed = blame(window, owner, seconds)
    return {
        subject.key: SubjectBlockIO(
            read_bytes=float(size[row, READ]),
            write_bytes=float(size[row, WRITE]),
            read_ops=float(ops[row, READ]),
            write_ops=float(ops[row, WRITE]),
            flush_ops=float(ops[row, FLUSH]),
            queue=float(queue[row]) / seconds,
            device=float(device[row]) / seconds,
            wait=float(wait[row]) / seconds,
            throttled=min(float(throttled[row]) / seconds, 1.0),
            queue_p50=of("queue", 0.5, row),
            queue_p99=of("queue", 0.99, row),
            device_p50=of("device", 0.5, row),
            device_p99=of("device", 0.99, row),
            count=round(float(ops[row].sum()) * seconds),
            culprits=tuple(blamed.get(subject.key, ())),
        )
        for row, subject in enumerate(subjects)
        if ops[row].any() or size[row].any() or throttled[row]
    }


class Disks:
    """Names of disks by number, asked of /sys once each."""

    def __init__(self, sys: Path) -> None:
        self._sys = sys
        self._names: dict[int, str] = {}

    def name(self, number: int) -> str:
        """``vda``; ``major:minor`` of one that is gone."""
        if number not in self._names:
            link = self._sys / "dev/block" / device_name(number)
            self._names[number] = link.resolve().name if link.exists() else device_name(number)
        return self._names[number]


class BlockIOCollector:
    """`read` is one round; nothing without a source."""

    def __init__(
        self,
        source: BlockIOSource | None,
        workloads: Callable[[], Workloads],
        cache: MetricCache,
        registries: Registries,
        *,
        index: CgroupIndex,
        sys: Path,
        clock: Callable[[], float],
        window: float = 10.0,
    ) -> None:
        self._source, self._workloads, self._cache, self._registries = source, workloads, cache, registries
        self._index, self._clock, self._disks = index, clock, Disks(sys)
        self._window: Window[BlockIOSnapshot] = Window(window)
        self._steady: dict[str, SteadySums] = {}
        self._steady_on: dict[str, dict[int, SteadySums]] = {}
        """By column and disk, of disks that the newest reading has."""
        self._culprit_counters = CulpritCounters(CULPRITS_EXPORTED)
        self.window: Mapping[str, SubjectBlockIO] = {}
        """Subject key -> figures of the last seconds, only of those that did I/O."""
        registries.view("block_io_bytes_total", lambda: self._by_disk("bytes"))
        registries.view("block_io_operations_total", lambda: self._by_disk("ops"))
        registries.view("block_io_seconds", self._histograms, BUCKET_BOUNDS)
        registries.view("block_io_wait_seconds_total", lambda: self._seconds("ahead_ns"))
        registries.view("block_io_throttled_seconds_total", lambda: self._seconds("throttled_ns"))
        registries.view("block_io_culprit_wait_seconds_total", self._culprits)
        registries.view("block_io_lost_total", self._lost)

    def attach(self, source: BlockIOSource | None) -> None:
        """Read *source* from now on: a probe may come later than its collector."""
        self._source = source

    @property
    def source(self) -> str:
        """Where figures come from: ``bpf``, ``files``, ``none``."""
        return "none" if self._source is None else self._source.source

    def bytes_per_second(self, key: str) -> float | None:
        """What a subject read and wrote in the window; 0 for one that did nothing, None without a probe."""
        if self._source is None:
            return None
        found = self.window.get(key)
        return 0.0 if found is None else found.read_bytes + found.write_bytes

    def read(self) -> None:
        """Read the probe and judge the window."""
        if self._source is None:
            return
        snapshot = self._source.read()
        now = self._clock()
        self._index.refresh(self._workloads(), now, snapshot.keys[snapshot.keys > 0].tolist())
        self._window.push(snapshot)
        span = self._window.span()
        if span is not None:
            old, new, seconds = span
            self.window = by_subject(diff(old, new), seconds, self._index.owner)
            self._commit(now)

    def _commit(self, now: float) -> None:
        batch = Batch(now)
        keys = [(key,) for key in self.window]
        figures = list(self.window.values())
        for kind, values in (
            ("container_block_io_read", [one.read_bytes for one in figures]),
            ("container_block_io_write", [one.write_bytes for one in figures]),
            ("container_block_io_wait", [one.wait for one in figures]),
            ("container_block_io_throttled", [one.throttled for one in figures]),
        ):
            batch.extend(kind, keys, np.array(values, dtype=float))
        timed = [((key,), one.device_p99) for key, one in self.window.items() if one.device_p99 is not None]
        batch.extend("container_block_io_p99", [key for key, _ in timed], np.array([p99 for _, p99 in timed]))
        try:
            self._cache.commit(batch)
        except SeriesError as error:
            self._registries.count("collector_failures_total", NAME, "series")
            log.once(f"collector:{NAME}:{error}", "no figure from a source", collector=NAME, cause=str(error))

    # --- Prometheus rows

    def _totals(self, column: str) -> list[tuple[Subject, Floats]]:
        """A column of the newest reading by subject; counters that never run back."""
        latest = self._window.latest
        if latest is None:
            return []
        subjects, rows = group(latest.keys, self._index.owner)
        sums = sum_rows(getattr(latest, column), rows, len(subjects)).astype(float)
        shown = {s.key: sums[row] for row, s in enumerate(subjects) if s.kind is not SubjectKind.POD}
        steady = self._steady.setdefault(column, SteadySums()).update(shown)
        return [(subject, steady[subject.key]) for subject in subjects if subject.key in steady]

    def _by_disk(self, column: str) -> Iterator[Row]:
        for disk, found in self._on_disks(column):
            for subject, values in found:
                for direction, value in zip(DIRECTIONS, values.tolist(), strict=True):
                    if value:
                        yield (*container_labels(subject), subject.qos, disk, direction), value

    def _on_disks(self, column: str) -> Iterator[tuple[str, list[tuple[Subject, Floats]]]]:
        """`_totals` of each disk, with its name."""
        latest = self._window.latest
        if latest is None:
            return
        known = self._steady_on.get(column, {})
        on = self._steady_on[column] = {one: known.get(one) or SteadySums() for one in distinct(latest.device).tolist()}
        for number, steady in on.items():
            at = latest.device == number
            subjects, rows = group(latest.keys[at], self._index.owner)
            sums = sum_rows(getattr(latest, column)[at], rows, len(subjects)).astype(float)
            shown = {s.key: sums[row] for row, s in enumerate(subjects) if s.kind is not SubjectKind.POD}
            now = steady.update(shown)
            yield self._disks.name(number), [(s, now[s.key]) for s in subjects if s.key in now]

    def _histograms(self) -> Iterator[tuple[tuple[str, ...], list[int], float]]:
        for stage, (hist, total) in STAGES.items():
            for (disk, found), (_, totals) in zip(self._on_disks(hist), self._on_disks(total), strict=True):
                sums = {subject.key: float(value.sum()) for subject, value in totals}
                counts = np.array([count.sum(axis=0) for _, count in found]).reshape(-1, BUCKETS)
                for (subject, _), reached in zip(found, exported(counts), strict=True):
                    if reached[-1]:
                        yield (*container_labels(subject), subject.qos, disk, stage), reached, sums[subject.key] / 1e9

    def _seconds(self, column: str) -> list[Row]:
        return [((*container_labels(s), s.qos), float(ns) / 1e9) for s, ns in self._totals(column)]

    def _culprits(self) -> Iterator[Row]:
        latest = self._window.latest
        if latest is None:
            return
        subjects = {s.key: s for s in self._workloads().subjects if s.kind is not SubjectKind.POD}
        for victim, who, waited in self._culprit_counters.update(Waiting.of(latest, self._index.owner, subjects)):
            subject = subjects[victim]
            yield (*container_labels(subject), subject.qos, *culprit_labels(who)), waited

    def _lost(self) -> list[Row]:
        if self._window.latest is None:
            return []
        lost = self._window.latest.lost
        return [
            (("matrix",), lost.matrix_lost_count),
            (("pairs",), lost.slot_lost),
            (("devices",), lost.device_lost),
            (("requests",), lost.request_lost),
            (("bios",), lost.unstamped),
        ]
