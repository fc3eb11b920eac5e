"""The evidence source of the CPU: schedule latency at every evaluation, the culprit matrix at the pace of `cadence`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np

from koordlet.api.sloconfig.interference import InterferenceStrategy
from koordlet.interference.attribution import Attribution, WaitShares
from koordlet.interference.cadence import NOTICEABLE_RATIO, Cadence, noticeable_cpu_loss, noticeably_behind_packets
from koordlet.interference.cpu import CpuReading, CpuWindow, cpu_evidence, possible_loss
from koordlet.interference.detector import eligible
from koordlet.interference.evidence import ContainerWindow
from koordlet.interference.hypervisor import Steal
from koordlet.interference.model import Floats, ResourceEvidence, WaitResource
from koordlet.interference.rows import ContainerRows
from koordlet.metricsadvisor.advisor import MetricsAdvisor
from koordlet.metricsadvisor.usage.snapshot import UsageSnapshot
from koordlet.probes.culprits.window import CulpritWindow
from koordlet.probes.schedlatency.snapshot import SchedLatencySnapshot
from koordlet.statesinformer.pods.model import Subject

ROWS_SECONDS = 5.0
"""How long the map from cgroup ids to containers is used while the containers are the same."""
STEAL_WINDOWS = 1.5
"""Windows over which steal is measured: a matrix may be half a window old."""
MIN_STEAL_CORES = 0.01
"""Below this, no container can lose a noticeable share of its time to the hypervisor, so steal is not separated."""
AlarmThreshold = Callable[[tuple[Subject, ...], WaitResource, InterferenceStrategy], Floats]
"""[containers]: the symptom that raises an alarm now."""


class NodeTicks:
    """The node's CPU seconds over `STEAL_WINDOWS` windows."""

    def __init__(self) -> None:
        self._readings: deque[tuple[float, float, float]] = deque()
        """(time, busy seconds, stolen seconds)"""

    def steal(self, picture: UsageSnapshot, ran: Floats, window_seconds: float) -> Steal | None:
        """None while a hypervisor takes less than `MIN_STEAL_CORES`, and before two readings."""
        node, readings = picture.node, self._readings
        if node is None:
            return None
        if readings and (readings[-1][1] > node.busy_seconds or readings[-1][2] > node.stolen_seconds):  # went back
            readings.clear()
        if not readings or readings[-1][0] < picture.at:
            readings.append((picture.at, node.busy_seconds, node.stolen_seconds))
        while len(readings) > 2 and picture.at - readings[1][0] >= STEAL_WINDOWS * window_seconds:
            readings.popleft()
        (begin, busy, stolen), (end, busy_now, stolen_now) = readings[0], readings[-1]
        if end <= begin or stolen_now - stolen < MIN_STEAL_CORES * (end - begin):
            return None
        return Steal((stolen_now - stolen) / (end - begin), (busy_now - busy) / (end - begin), ran)


class CpuSource:
    """`packet_seconds` returns the seconds per second in which ksoftirqd processed packets recently."""

    resource = WaitResource.CPU

    def __init__(
        self,
        advisor: MetricsAdvisor,
        cadence: Cadence,
        alarm_threshold: AlarmThreshold,
        packet_seconds: Callable[[], float],
    ) -> None:
        self._advisor = advisor
        self._cadence = cadence
        self._alarm_threshold = alarm_threshold
        self._packet_seconds = packet_seconds
        self._window = CpuWindow()
        self._culprits = CulpritWindow(0.0)
        self._ticks = NodeTicks()
        self._rows: tuple[ContainerRows, tuple[Subject, ...], float] | None = None
        self.shares = WaitShares.none(0)
        """Kinds of culprits at the last reading of the matrix."""
        self.latest: tuple[ContainerWindow, CpuReading] | None = None
        """The containers and the reading of the last evaluation."""
        self._shares_keys: tuple[str, ...] = ()
        """Containers of `shares`."""
        self._attribution: Attribution | None = None
        self.behind_ksoftirqd: Floats = np.zeros(0)
        """[containers of the last window]: seconds per second waited for a CPU on which the kernel's softirq thread
        ran; 0 without a probe."""

    def evidence(self, window: ContainerWindow) -> ResourceEvidence | None:
        """See `EvidenceSource`; None before two readings of schedule latency."""
        self.behind_ksoftirqd = np.zeros(len(window.keys))
        latest = self._advisor.sched_latency.latest
        if latest is None:
            return None
        self._window.resize(window.seconds)
        self._culprits.resize(window.seconds)
        self._window.push(latest)
        sums = self._window.sums()
        if sums is None:
            return None
        reading = CpuReading(
            *sums,
            rows=self._rows_of(window, latest),
            ran=window.ran,
            throttled_periods=window.throttled_periods,
            pressure=window.pressure.get("cpu"),
            steal=self._ticks.steal(window.picture, window.ran, window.seconds),
        )
        self.latest = window, reading
        if self._shares_keys is not window.keys:
            self.shares = self.shares.moved(self._shares_keys, window.keys)
            self._shares_keys = window.keys
        attribution = self._attribute(window, reading) if reading.probed else None
        if self.shares.ksoftirqd.any():
            self.behind_ksoftirqd = reading.waited * self.shares.ksoftirqd
        return cpu_evidence(reading, self.shares, attribution, window.largest_users)

    def _attribute(self, window: ContainerWindow, reading: CpuReading) -> Attribution | None:
        """Updates `shares`; the attribution of the window while others may delay a container noticeably."""
        self.shares = self.shares.capped(reading.waited, reading.steal)
        suspicious = self._suspicious(window, reading)
        self._cadence.suspect(suspicious)
        if self._culprits.due(reading.latency.time_ns, self._cadence.matrix_interval(window.seconds)):
            matrix = self._advisor.sched_latency.read_matrix()
            if matrix is not None:
                self._culprits.push(matrix)
                attribution = self._current_attribution(reading.rows)
                if attribution is not None:
                    attribution = attribution.without_hypervisor(reading.steal, reading.waited)
                    self.shares = attribution.shares(reading.waited)
        return self._current_attribution(reading.rows) if suspicious else None

    def _suspicious(self, window: ContainerWindow, reading: CpuReading) -> bool:
        """Whether others may have delayed a container noticeably, by CPU use or by packets."""
        strategy, waited = window.strategy, reading.waited
        victims = eligible(window.subjects, strategy)
        thresholds = self._alarm_threshold(window.subjects, self.resource, strategy)
        noticeable = np.maximum(noticeable_cpu_loss(strategy), NOTICEABLE_RATIO * thresholds)
        if (possible_loss(waited, self.shares, reading.ran)[victims] >= noticeable[victims]).any():
            return True
        behind = noticeably_behind_packets(waited, reading.ran, self._packet_seconds(), strategy)
        return bool(behind[victims].any())

    def _current_attribution(self, rows: ContainerRows) -> Attribution | None:
        """The attribution of the last reading of the matrix, kept while matrix and rows are the same objects."""
        pushed = self._culprits.pushed()
        if pushed is None:
            return None
        matrix, seconds = pushed
        known = self._attribution
        if known is None or known.matrix is not matrix or known.rows is not rows:
            known = self._attribution = Attribution.of(matrix, seconds, rows, self._advisor.index.owner)
        return known

    def _rows_of(self, window: ContainerWindow, latest: SchedLatencySnapshot) -> ContainerRows:
        """Cgroup id -> container, rebuilt when containers change and every `ROWS_SECONDS`."""
        known = self._rows
        if known is not None and known[1] is window.subjects and window.now - known[2] < ROWS_SECONDS:
            return known[0]
        ids = latest.keys[latest.keys > 0].tolist()
        rows = []
        for cgroup_id in ids:
            subject = self._advisor.index.owner(cgroup_id).subject
            rows.append(-1 if subject is None else window.row_of.get(subject.key, -1))
        mapped = ContainerRows(np.array(ids, dtype=np.int64), np.array(rows, dtype=np.intp), len(window.keys))
        self._rows = (mapped, window.subjects, window.now)
        return mapped
