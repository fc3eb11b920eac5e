"""Schedule latency by subject: percentiles, waiting and throttling of the last seconds, and the culprits.

Figures are of a window because one tick of a quiet container has too few waits. The snapshot is read every round; the
culprit matrix, which is much larger, once per window, and `QUERIED_PARTS` times as often while culprits are queried.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import msgspec
import numpy as np

from koordlet.metricsadvisor.collector import ProbeCollector, ProbeContext, cgroup_ids
from koordlet.metricsadvisor.stalls.attribution import OwnerOf, SubjectNaming, group, sum_rows
from koordlet.probes.columns import Ints
from koordlet.probes.culprits.matrix import CulpritMatrix, SubjectTable
from koordlet.probes.culprits.reader import MatrixReading
from koordlet.probes.culprits.window import CulpritWindow
from koordlet.probes.histogram import quantiles
from koordlet.probes.layouts import BUCKETS
from koordlet.probes.schedlatency.loader import LoadedProbe
from koordlet.probes.schedlatency.snapshot import SchedLatencySnapshot, WaitTotals, diff
from koordlet.statesinformer.pods.cgroupindex import Owner
from koordlet.statesinformer.pods.model import Subject

QUERIED_PARTS = 2
"""Readings of the matrix per window while culprits are queried: each costs as much CPU time as two pages of `/top`."""
READER_TTL_S = 10.0
"""For this long after a query for culprits the matrix is read `QUERIED_PARTS` times as often."""
SAME_ROUND_S = 0.3
"""Readings of the matrix that are this close are one."""


class SubjectLatency(msgspec.Struct, frozen=True):
    """One subject over the window: seconds, and task-seconds per second."""

    p50: float | None
    p99: float | None
    wait: float
    throttled: float
    count: int


def by_subject(
    window: SchedLatencySnapshot, seconds: float, owner: OwnerOf, grouped: tuple[list[Subject], Ints] | None = None
) -> dict[str, SubjectLatency]:
    """Figures by subject key. `grouped`: the result of `group` for the window's keys, if it is known. Pure."""
    subjects, rows = grouped or group(window.keys, owner)
    waits = window.hist
    hist = sum_rows(waits, rows, len(subjects)) if waits.size else np.zeros((len(subjects), BUCKETS))
    wait, throttled = (
        (sum_rows(column, rows, len(subjects)) / 1e9 / seconds).tolist()
        for column in (window.sum_ns, window.throttled_ns)
    )
    p50, p99 = ((quantiles(hist, q) / 1e9).tolist() for q in (0.5, 0.99))
    counts = hist.sum(axis=1).astype(np.int64).tolist()
    return {
        subject.key: SubjectLatency(*figures) if figures[4] else SubjectLatency(None, None, *figures[2:])
        for subject, *figures in zip(subjects, p50, p99, wait, throttled, counts, strict=True)
    }


class SchedLatencyCollector(ProbeCollector[SchedLatencySnapshot, SubjectLatency]):
    """See the module."""

    def __init__(self, context: ProbeContext, window_seconds: float = 10.0) -> None:
        super().__init__(context, window_seconds)
        self._culprits = CulpritWindow(window_seconds)
        self._reading: MatrixReading | None = None
        self._queried_at = -READER_TTL_S
        self._grouped: tuple[int, Ints, tuple[list[Subject], Ints]] | None = None

    def read_source(self) -> None:
        """Read the snapshot, and the culprit matrix when it is due."""
        super().read_source()
        latest = self.latest
        if latest is None:
            return
        is_queried = self.context.clock() - self._queried_at < READER_TTL_S
        if self._culprits.due(latest.time_ns, self._part_seconds if is_queried else self._culprits.seconds):
            # A recent reading of the interference detector is shared, and so is the next one.
            reading = self.read_matrix(self._part_seconds)
            if reading is not None:
                self._culprits.push(reading)

    def derive(
        self, old: SchedLatencySnapshot, new: SchedLatencySnapshot, seconds: float
    ) -> Mapping[str, SubjectLatency]:
        """See `by_subject`."""
        return by_subject(diff(old, new), seconds, self.context.index.owner, self.subjects_of(new.keys))

    def waits(self) -> WaitTotals | None:
        """The time waited so far, without figures; None without a probe."""
        return self._source.waits() if isinstance(self._source, LoadedProbe) else None

    def look_up(self, keys: Ints) -> None:
        """Let the index find the subjects of these cgroup ids now, for one that appeared since the last round."""
        self.context.index.refresh(self.context.workloads(), self.context.clock(), cgroup_ids(keys))

    def subjects_of(self, keys: Ints) -> tuple[list[Subject], Ints]:
        """`group`, computed again only when the keys or their owners changed."""
        index, known = self.context.index, self._grouped
        if known is None or known[0] != index.walks or not np.array_equal(known[1], keys):
            known = self._grouped = (index.walks, keys, group(keys, index.owner))
        return known[2]

    def read_matrix(self, max_age: float = SAME_ROUND_S) -> MatrixReading | None:
        """The culprit matrix, at most `max_age` seconds old, to take differences of; None without a probe. Consumers
        that read it in the same round get the same reading."""
        if not isinstance(self._source, LoadedProbe):
            return None
        last = self._reading
        oldest_ns = time.monotonic_ns() - max_age * 1e9
        if last is None or last.source != self._source.source or last.time_ns <= oldest_ns:
            last = self._reading = self._source.read_matrix()
        return last

    def matrix_by_subject(self, naming: SubjectNaming) -> SubjectTable[Owner] | None:
        """Everything charged so far; None without a probe."""
        return self._source.matrix_by_subject(naming) if isinstance(self._source, LoadedProbe) else None

    def culprits(self) -> tuple[CulpritMatrix, float] | None:
        """(the culprit matrix of the window, its seconds); None without a probe. The window is up to twice as long when
        nothing queried it for a while. While it is queried, it ends at the last reading of `read`, and the matrix is
        the same object until the next one."""
        now = self.context.clock()
        queried_at, self._queried_at = self._queried_at, now
        if now - queried_at < READER_TTL_S and not self._culprits.due(time.monotonic_ns(), self._part_seconds * 2):
            pushed = self._culprits.pushed()
            if pushed is not None:
                return pushed
        reading = self.read_matrix()
        return None if reading is None else self._culprits.until(reading)

    @property
    def _part_seconds(self) -> float:
        """Between two readings of the matrix while it is queried."""
        return self._culprits.seconds / QUERIED_PARTS
