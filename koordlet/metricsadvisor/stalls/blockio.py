"""Block I/O by subject: bytes, operations, latency, throttling by its own limit, and whose requests were served first.

The probe counts by (cgroup, disk); here cgroups become subjects, and `BlockIOCollector.figures` has the figures of the
last seconds, all disks together. Prometheus gets the totals; bytes, operations and latencies by disk. Bounded by the
probe's tables; only disks that a container uses have series.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from koordlet.metricsadvisor.collector import NO_SOURCE, ProbeCollector, ProbeContext
from koordlet.metricsadvisor.labels import Row, container_labels, culprit_labels
from koordlet.metricsadvisor.stalls.attribution import (
    CulpritTime,
    OwnerOf,
    SubjectNaming,
    culprits_by_subject,
    group,
    sum_rows,
)
from koordlet.metricsadvisor.stalls.buckets import BUCKET_BOUNDS, exported
from koordlet.metricsadvisor.stalls.counters import CulpritCounters, MonotonicSums
from koordlet.metricsadvisor.usage.readings import Floats
from koordlet.probes.blockio.snapshot import DIRECTIONS, READ, WRITE, BlockIOSnapshot, diff
from koordlet.probes.columns import distinct
from koordlet.probes.histogram import quantiles
from koordlet.probes.layouts import BUCKETS
from koordlet.statesinformer.pods.model import Subject, SubjectKind
from koordlet.system.devices.blockdev import disk_name

STAGES = {"queue": ("queue_hist", "queue_ns"), "device": ("device_hist", "device_ns")}


@dataclass(frozen=True, slots=True)
class SubjectBlockIO:
    """One subject over the window."""

    read_bytes: float
    """Per second."""
    write_bytes: float
    device: float
    """Request-seconds per second between issue and completion."""
    wait: float
    """Request-seconds per second from arrival until the disk began to work for the request: `culprits` splits them."""
    throttled: float
    """Seconds per second in which its own limit throttled at least one request."""
    queue_p99: float | None
    culprits: tuple[CulpritTime, ...] = ()
    """The owners of the requests that the disk worked for meanwhile, longest first: the subject itself, others, kernel
    threads, and `idle` for a disk that did nothing yet. Per second; their sum is `wait`."""


def by_subject(window: BlockIOSnapshot, seconds: float, owner: OwnerOf) -> dict[str, SubjectBlockIO]:
    """Figures by subject key. Pure."""
    subjects, rows = group(window.keys, owner)
    count = len(subjects)
    ops, size = sum_rows(window.ops, rows, count), sum_rows(window.bytes, rows, count) / seconds
    device = sum_rows(window.device_ns, rows, count).sum(axis=1) / 1e9
    wait, throttled = (sum_rows(column, rows, count) / 1e9 for column in (window.ahead_ns, window.throttled_ns))
    queue_hist = sum_rows(window.queue_hist, rows, count).sum(axis=1)
    queue_p99 = (quantiles(queue_hist, 0.99) / 1e9).tolist()
    culprits = culprits_by_subject(window.culprits, owner, seconds)
    return {
        subject.key: SubjectBlockIO(
            read_bytes=float(size[row, READ]),
            write_bytes=float(size[row, WRITE]),
            device=float(device[row]) / seconds,
            wait=float(wait[row]) / seconds,
            throttled=min(float(throttled[row]) / seconds, 1.0),
            queue_p99=queue_p99[row] if queue_hist[row].any() else None,
            culprits=tuple(culprits.get(subject.key, ())),
        )
        for row, subject in enumerate(subjects)
        if ops[row].any() or size[row].any() or throttled[row]
    }


class DiskNames:
    """Names of disks by device number, each read from /sys once."""

    def __init__(self, sys: Path) -> None:
        self._sys = sys
        self._names: dict[int, str] = {}

    def name(self, number: int) -> str:
        """``vda``; ``major:minor`` of a disk that is gone."""
        if number not in self._names:
            self._names[number] = disk_name(self._sys, number)
        return self._names[number]


class BlockIOCollector(ProbeCollector[BlockIOSnapshot, SubjectBlockIO]):
    """`figures` has only subjects that did I/O."""

    def __init__(self, context: ProbeContext, *, sys: Path, window_seconds: float = 10.0) -> None:
        super().__init__(context, window_seconds)
        self._disks = DiskNames(sys)
        self._counters: dict[str, MonotonicSums] = {}
        """By column."""
        self._disk_counters: dict[str, dict[int, MonotonicSums]] = {}
        """By column and disk, of the disks in the newest snapshot."""
        self._culprit_counters = CulpritCounters()
        registries = context.registries
        registries.view("block_io_bytes_total", lambda: self._rows_by_disk("bytes"))
        registries.view("block_io_operations_total", lambda: self._rows_by_disk("ops"))
        registries.view("block_io_seconds", self._histograms, BUCKET_BOUNDS)
        registries.view("block_io_wait_seconds_total", lambda: self._seconds("ahead_ns"))
        registries.view("block_io_throttled_seconds_total", lambda: self._seconds("throttled_ns"))
        registries.view("block_io_culprit_wait_seconds_total", self._culprits)
        registries.view("block_io_lost_total", self._lost)

    def bytes_per_second(self, key: str) -> float | None:
        """Bytes that a subject read and wrote in the window; 0 for one that did nothing, None without a probe."""
        if self.source == NO_SOURCE:
            return None
        figures = self.figures.get(key)
        return 0.0 if figures is None else figures.read_bytes + figures.write_bytes

    def derive(self, old: BlockIOSnapshot, new: BlockIOSnapshot, seconds: float) -> Mapping[str, SubjectBlockIO]:
        """See `by_subject`."""
        return by_subject(diff(old, new), seconds, self.context.index.owner)

    def _totals(self, column: str) -> list[tuple[Subject, Floats]]:
        """A column of the newest snapshot by subject, as monotonic counters."""
        if self.latest is None:
            return []
        return self._counted(self.latest, column, self._counters.setdefault(column, MonotonicSums()))

    def _totals_by_disk(self, column: str) -> Iterator[tuple[str, list[tuple[Subject, Floats]]]]:
        """`_totals` of each disk, with its name."""
        if self.latest is None:
            return
        known = self._disk_counters.get(column, {})
        counters = self._disk_counters[column] = {
            number: known.get(number) or MonotonicSums() for number in distinct(self.latest.device).tolist()
        }
        for number, monotonic in counters.items():
            yield (
                self._disks.name(number),
                self._counted(self.latest, column, monotonic, np.flatnonzero(self.latest.device == number)),
            )

    def _counted(
        self,
        snapshot: BlockIOSnapshot,
        column: str,
        counters: MonotonicSums,
        entries: NDArray[np.intp] | slice = slice(None),
    ) -> list[tuple[Subject, Floats]]:
        subjects, rows = group(snapshot.keys[entries], self.context.index.owner)
        sums = sum_rows(getattr(snapshot, column)[entries], rows, len(subjects)).astype(float)
        shown = {s.key: sums[row] for row, s in enumerate(subjects) if s.kind is not SubjectKind.POD}
        values = counters.update(shown)
        return [(subject, values[subject.key]) for subject in subjects if subject.key in values]

    def _rows_by_disk(self, column: str) -> Iterator[Row]:
        for disk, totals in self._totals_by_disk(column):
            for subject, values in totals:
                for direction, value in zip(DIRECTIONS, values.tolist(), strict=True):
                    if value:
                        yield (*container_labels(subject), subject.qos, disk, direction), value

    def _histograms(self) -> Iterator[tuple[tuple[str, ...], list[int], float]]:
        for stage, (hist, total) in STAGES.items():
            for (disk, counted), (_, totals) in zip(
                self._totals_by_disk(hist), self._totals_by_disk(total), strict=True
            ):
                sums = {subject.key: float(value.sum()) for subject, value in totals}
                counts = np.array([count.sum(axis=0) for _, count in counted]).reshape(-1, BUCKETS)
                for (subject, _), cumulative in zip(counted, exported(counts), strict=True):
                    if cumulative[-1]:
                        labels = (*container_labels(subject), subject.qos, disk, stage)
                        yield labels, cumulative, sums[subject.key] / 1e9

    def _seconds(self, column: str) -> list[Row]:
        return [((*container_labels(s), s.qos), float(ns) / 1e9) for s, ns in self._totals(column)]

    def _culprits(self) -> Iterator[Row]:
        if self.latest is None:
            return
        subjects = {s.key: s for s in self.context.workloads().subjects if s.kind is not SubjectKind.POD}
        table = self.latest.culprits.by_subject(SubjectNaming(self.context.index.owner, subjects)).dense()
        for victim, culprit, waited in self._culprit_counters.update(table):
            subject = subjects[victim]
            yield (*container_labels(subject), subject.qos, *culprit_labels(culprit)), waited

    def _lost(self) -> list[Row]:
        if self.latest is None:
            return []
        lost = self.latest.lost
        return [
            (("matrix",), lost.matrix_lost_count),
            (("pairs",), lost.slot_lost),
            (("devices",), lost.device_lost),
            (("requests",), lost.request_lost),
            (("bios",), lost.unstamped),
        ]
