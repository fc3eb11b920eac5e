"""Evidence about the CPU: a short window over the schedule-latency source's totals, summed by container. Pure.

With a probe there are three separate figures: waiting for a CPU that others held, waiting behind own threads (in the
culprit matrix the victim itself is the runner), and waiting for the container's own quota. `schedstat` and cpu.pressure
give only their sum: there, a container that was throttled in more than a tenth of its quota periods is taken to wait
for its quota.

The matrix is read now and then, and more often while others may delay a container noticeably. Between two readings the
waiting is divided as at the last reading (`WaitShares`); waiting beyond the amount of the last reading counts as caused
by others when deciding whether to read the matrix again (`possible_loss`).

Where a hypervisor takes CPUs away, its part of the waiting is a fourth figure (`hypervisor`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from koordlet.interference.attribution import MIN_WANTED_CORES, Attribution, WaitShares, wanted_time
from koordlet.interference.hypervisor import Steal
from koordlet.interference.model import Floats, ResourceEvidence, ratio
from koordlet.interference.rows import ContainerRows
from koordlet.metricsadvisor.stalls.attribution import CulpritTime
from koordlet.metricsadvisor.stalls.window import JITTER_RATIO
from koordlet.probes.columns import sum_by
from koordlet.probes.histogram import quantiles
from koordlet.probes.schedlatency.snapshot import SchedLatencySnapshot, diff

PROBES = ("bpf", "bcc")
THROTTLED_PERIODS = 0.1
"""Fraction of quota periods with throttling from which on all waiting counts as waiting for the quota, without a
probe."""
CulpritsOf = Callable[[int], Sequence[CulpritTime]]
"""Row of a container -> culprits of its waiting."""


def lost_share(delayed: Floats, rest: Floats) -> Floats:
    """Fraction of the wanted time that was lost, 0..1. `rest`: all other wanted time, in seconds per second as well.

    This is time of tasks, not wall time: while ten own tasks wait because another container has the CPU for a moment,
    ten tasks wait for it, but otherwise they would have waited for each other, and that is in `rest`.
    """
    share: Floats = delayed / (delayed + np.nan_to_num(rest) + MIN_WANTED_CORES)
    return share


class CpuWindow:
    """Schedule-latency snapshots of the last seconds, and one older snapshot."""

    def __init__(self, seconds: float = 3.0) -> None:
        self._seconds = seconds
        self._snapshots: deque[SchedLatencySnapshot] = deque()

    def resize(self, seconds: float) -> None:
        """Set the length; it applies from the next snapshot on."""
        self._seconds = seconds

    def push(self, snapshot: SchedLatencySnapshot) -> None:
        """Add a snapshot; one that was already added is ignored, one from another source restarts the window."""
        snapshots = self._snapshots
        if snapshots and snapshots[-1].source != snapshot.source:
            snapshots.clear()
        if snapshots and snapshots[-1].time_ns >= snapshot.time_ns:
            return
        snapshots.append(snapshot)
        shortest_ns = self._seconds * (1.0 - JITTER_RATIO) * 1e9
        while len(snapshots) > 2 and snapshot.time_ns - snapshots[1].time_ns >= shortest_ns:
            snapshots.popleft()

    def sums(self) -> tuple[SchedLatencySnapshot, float] | None:
        """Difference over the window, without culprits, and the window's seconds; None before two snapshots."""
        if len(self._snapshots) < 2:
            return None
        old, new = self._snapshots[0], self._snapshots[-1]
        return diff(old, new), (new.time_ns - old.time_ns) / 1e9


@dataclass(frozen=True)
class CpuReading:
    """The containers' CPU time over the window, without culprits."""

    latency: SchedLatencySnapshot
    """Difference over the window."""
    seconds: float
    rows: ContainerRows
    ran: Floats
    """Cores used."""
    throttled_periods: Floats
    """Fraction of quota periods with throttling."""
    pressure: Floats | None = None
    steal: Steal | None = None
    """None while a hypervisor takes almost nothing."""

    @property
    def probed(self) -> bool:
        """Whether a probe is the source, so that there is a culprit matrix."""
        return self.latency.source in PROBES

    @cached_property
    def key_rows(self) -> NDArray[np.intp]:
        """Row of each key of the snapshot."""
        return self.rows.of(self.latency.keys)

    @cached_property
    def waited(self) -> Floats:
        """Seconds per second spent waiting for a CPU, throttling excluded."""
        return self.rows.sum(self.key_rows, self.latency.sum_ns) / 1e9 / self.seconds

    @cached_property
    def throttled(self) -> Floats:
        """Seconds per second spent waiting for the quota."""
        return self.rows.sum(self.key_rows, self.latency.throttled_ns) / 1e9 / self.seconds


def possible_loss(waited: Floats, shares: WaitShares, ran: Floats) -> Floats:
    """[containers]: upper bound of the share of their time that others took, given the last reading of the matrix."""
    explained = np.minimum(waited, shares.waited)
    return lost_share(explained * shares.others + (waited - explained), ran)


def cpu_evidence(
    reading: CpuReading, shares: WaitShares, attribution: Attribution | None, guess: CulpritsOf
) -> ResourceEvidence:
    """Symptoms of all containers. With a probe, `shares` divides the waiting and `attribution` names culprits (no
    culprits without it); without a probe, both are ignored and `guess` names culprits."""
    if reading.probed:
        waited, quota = reading.waited, reading.throttled
        culprits: CulpritsOf = _no_culprits
        if attribution is not None:
            culprits = attribution.without_hypervisor(reading.steal, waited).top
    else:
        throttled = np.nan_to_num(reading.throttled_periods) > THROTTLED_PERIODS
        quota = np.where(throttled, reading.waited, 0.0)
        waited = np.where(throttled, 0.0, reading.waited)
        shares, culprits = _unprobed_shares(waited, reading), guess
    ran = reading.ran
    threads, others, taken = waited * shares.own, waited * shares.others, waited * shares.hypervisor
    own = threads + quota  # all causes are fractions of the same whole: the wanted time
    return ResourceEvidence(
        source=reading.latency.source,
        others=lost_share(others, ran + own + taken),
        own=lost_share(own, ran + others + taken),
        hypervisor=lost_share(taken, ran + own + others),
        parts={"quota": quota, "threads": threads},
        latency=_p99(reading),
        pressure=reading.pressure,
        culprits=culprits,
        named=reading.probed and attribution is not None,
    )


def _unprobed_shares(waited: Floats, reading: CpuReading) -> WaitShares:
    """Without a matrix, everything that runs beside a container on the node is one runner that it waits for."""
    shares, steal = WaitShares.none(len(waited)), reading.steal
    if steal is None:
        return shares
    runner_cores = np.maximum(steal.busy - reading.ran, 0.0)[:, None]
    taken = steal.taken(waited[:, None], wanted_time(waited, reading.ran), runner_cores)[:, 0]
    return replace(shares, hypervisor=ratio(taken, waited))


def _no_culprits(_: int) -> Sequence[CulpritTime]:
    return ()


def _p99(reading: CpuReading) -> Floats | None:
    if not reading.probed:
        return None
    known = reading.key_rows >= 0
    return quantiles(sum_by(reading.key_rows[known], reading.latency.hist[known], reading.rows.count), 0.99) / 1e9
