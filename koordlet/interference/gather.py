"""Evidence from the collectors: one `Evidence` a second for all containers and host applications.

Reads only what collectors already hold, and the schedule-latency probe's matrix now and then, often while somebody
may be hurt. Every resource is
optional: a collector that is not there, or has nothing yet, leaves its resource out, and the others are judged.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from koordlet.api.sloconfig.interference import InterferenceStrategy, InterferenceThresholds
from koordlet.interference.cpu import (
    PROBES,
    CpuWindow,
    Names,
    Rows,
    Shares,
    bounded,
    cpu_evidence,
    lost_share,
    shares_of,
    suspicious,
    waiting,
)
from koordlet.interference.detector import eligible
from koordlet.interference.hypervisor import Stolen
from koordlet.interference.model import Evidence, Floats, Resource, ResourceEvidence
from koordlet.metricsadvisor.advisor import MetricsAdvisor
from koordlet.metricsadvisor.stalls.culprits import CulpritWindow
from koordlet.metricsadvisor.stalls.latency import Blame, Matrix
from koordlet.metricsadvisor.usage.picture import Picture
from koordlet.probes.schedlatency.snapshot import SchedLatencySnapshot
from koordlet.statesinformer.pods.cgroupindex import owner_of
from koordlet.statesinformer.pods.model import Subject, SubjectKind, Workloads

KINDS = (SubjectKind.CONTAINER, SubjectKind.HOST_APP)
ROWS_SECONDS = 5.0
"""How long the map from cgroup ids to containers is trusted while nothing is known to have changed."""

GUESSES = 5
MEMORY = 1.5
"""Windows back that steal counts: a matrix may be half a window old."""
TAKEN = 0.01
"""Cores: a hypervisor that takes less can cost nobody as much as is noticed, so no work goes into telling it apart."""
READINGS = 2
"""Of the matrix in a window while somebody may be hurt."""
SHARES_SECONDS = 15.0
"""Between two readings of the matrix while nobody is: whose doing the waiting is changes slowly then."""
NOTICED = 0.5
"""Part of the least loss that can be an alarm, from which on it is worth knowing who had the CPU."""

Source = Callable[["Frame"], "ResourceEvidence | None"]
"""Evidence about one resource for a frame's containers."""


class Frame:
    """The containers of one moment and where they stand in the advisor's picture."""

    def __init__(self, picture: Picture, window: float, before: Frame | None) -> None:
        self.all: tuple[Subject, ...] = picture.workloads.subjects
        self.picture, self.window = picture, window
        cores: Iterable[Floats] = ()
        if before is not None and before.all is self.all:
            self.index: NDArray[np.intp] = before.index
            self.subjects: tuple[Subject, ...] = before.subjects
            self.keys: tuple[str, ...] = before.keys
            cores = before.cores
        else:
            self.index = np.array([i for i, one in enumerate(self.all) if one.kind in KINDS], dtype=np.intp)
            self.subjects = tuple(self.all[i] for i in self.index.tolist())
            self.keys = tuple(subject.key for subject in self.subjects)
        self.cores: deque[Floats] = deque(cores, maxlen=max(round(window), 1))
        """Cores used at the last ticks."""
        if before is None or before.picture is not picture:
            self.cores.append(picture.use.cores[self.index])
        self.pressure: Mapping[str, Floats] = {}
        """Share of time stalled (PSI some) by resource: cpu, memory, io; absent without pressure."""
        self.behind_softirqs: Floats = np.zeros(len(self.keys))
        """Seconds a second waited for a CPU on which the kernel's thread worked off softirqs, where a probe tells."""
        self.stolen: Stolen | None = None
        """What a hypervisor took of the CPUs of late; None where it took nothing."""

    def column(self, values: Floats) -> Floats:
        """A column of the picture for these containers."""
        return values[self.index]

    @property
    def memory_full(self) -> Floats:
        """Memory with page cache over the container's limit; NaN without a limit."""
        used = self.column(self.picture.use.memory_with_page_cache)
        limits = np.array([_memory_limit(self.picture.workloads, subject) for subject in self.subjects])
        full: Floats = used / limits
        return full

    def users(self, row: int) -> list[Blame]:
        """The other containers by CPU used: a guess at who is to blame where nothing tells."""
        ran = self.ran
        order = np.argsort(-ran, kind="stable")[: GUESSES + 1].tolist()
        return [Blame(owner_of(self.subjects[i]), float(ran[i]), 0) for i in order if i != row and ran[i] > 0]

    def by_key(self, values: Mapping[str, float]) -> Floats | None:
        """Figures by subject key as a column; None if there are none."""
        return np.array([values.get(key, np.nan) for key in self.keys]) if values else None

    @cached_property
    def ran(self) -> Floats:
        """Cores used, mean of the window."""
        stack = np.array(self.cores)
        known = ~np.isnan(stack)
        total: Floats = np.where(known, stack, 0.0).sum(axis=0) / np.maximum(known.sum(axis=0), 1)
        return total


def worth_asking(strategy: InterferenceStrategy) -> float:
    """Share of time lost from which on the matrix is read often; 0: always, since any loss can be an alarm."""
    cpu = strategy.cpu or InterferenceThresholds()
    return NOTICED * min(cpu.lost_percent or 100, cpu.min_lost_percent or 0) / 100


def behind_packets(waited: Floats, ran: Floats, late: float, strategy: InterferenceStrategy) -> NDArray[np.bool_]:
    """[containers], true where the kernel's thread, which worked off packets for `late` seconds a second, may have kept
    them waiting for a noticeable part of their time."""
    network = strategy.network or InterferenceThresholds()
    least = NOTICED * min(network.lost_percent or 100, network.min_lost_percent or 0) / 100
    found: NDArray[np.bool_] = (late > 0) & (lost_share(np.minimum(waited, late), ran) >= least)
    return found


def _memory_limit(workloads: Workloads, subject: Subject) -> float:
    """Bytes; NaN where the pod says nothing."""
    meta = workloads.pods.get(subject.pod_uid)
    if meta is None or meta.pod is None:
        return np.nan
    for container in (*meta.pod.spec.containers, *meta.pod.spec.init_containers):
        if container.name == subject.name:
            limit = container.resources.limits.get("memory")
            return np.nan if limit is None else float(limit)
    return np.nan


class NodeTicks:
    """The node's CPU seconds over `MEMORY` windows."""

    def __init__(self) -> None:
        self._ring: deque[tuple[float, float, float]] = deque()

    def stolen(self, picture: Picture, ran: Floats, window: float) -> Stolen | None:
        """None while a hypervisor takes less than `TAKEN`, and before two pictures."""
        node, ring = picture.node, self._ring
        if node is None:
            return None
        if ring and (ring[-1][1] > node.busy_seconds or ring[-1][2] > node.stolen_seconds):  # ran back
            ring.clear()
        if not ring or ring[-1][0] < picture.at:
            ring.append((picture.at, node.busy_seconds, node.stolen_seconds))
        while len(ring) > 2 and picture.at - ring[1][0] >= MEMORY * window:
            ring.popleft()
        (begin, busy, stolen), (end, busy_now, stolen_now) = ring[0], ring[-1]
        if end <= begin or stolen_now - stolen < TAKEN * (end - begin):
            return None
        return Stolen((stolen_now - stolen) / (end - begin), (busy_now - busy) / (end - begin), ran)


class Gatherer:
    """Asks the advisor, and whatever `sources` were given, for one window."""

    def __init__(self, advisor: MetricsAdvisor, sources: Mapping[Resource, Source]) -> None:
        self._advisor = advisor
        self._sources = sources
        self._cpu, self._culprits = CpuWindow(), CulpritWindow(0.0)
        self._names, self._ticks = Names(), NodeTicks()
        self._shares: tuple[tuple[str, ...], Shares] = ((), Shares.none(0))
        self._frame: Frame | None = None
        self._rows: tuple[Rows, tuple[Subject, ...], float] | None = None
        self.put_off: Callable[[], float] = lambda: 0.0
        """Seconds a second that the kernel's thread worked off packets of late."""
        self.alarm_at: Callable[[tuple[Subject, ...], InterferenceStrategy], Floats] | None = None
        """Share of CPU time lost from which on each of these containers is in trouble, where that is known."""
        self.noticed = False
        """Whether somebody may have lost CPU worth looking into, as of the last evidence."""

    def gather(self, now: float, strategy: InterferenceStrategy) -> Evidence | None:
        """The evidence of the strategy's window that ends now; None before the first picture."""
        picture = self._advisor.picture
        if picture is None:
            return None
        window = float(strategy.window_seconds or 1)
        frame = self._frame = Frame(picture, window, self._frame)
        frame.pressure = {
            resource: column
            for resource in ("cpu", "memory", "io")
            if (column := frame.by_key(self._advisor.stalls.get((resource, "some"), {}))) is not None
        }
        found: dict[Resource, ResourceEvidence] = {}
        cpu = self._cpu_evidence(frame, now, strategy)
        if cpu is not None:
            found[Resource.CPU] = cpu
        for resource, source in self._sources.items():
            evidence = source(frame)
            if evidence is not None:
                found[resource] = evidence
        return Evidence(frame.subjects, window, found, now)

    def _cpu_evidence(self, frame: Frame, now: float, strategy: InterferenceStrategy) -> ResourceEvidence | None:
        latest = self._advisor.latency_window.latest
        if latest is None:
            return None
        self._cpu.seconds = self._culprits.seconds = frame.window
        self._cpu.push(latest)
        sums = self._cpu.sums()
        if sums is None:
            return None
        rows, ran = self._rows_of(frame, now), frame.ran
        frame.stolen = self._ticks.stolen(frame.picture, ran, frame.window)
        matrix, shares = self._whose_doing(frame, sums, rows, strategy)
        if shares.softirqs.any():
            frame.behind_softirqs = waiting(*sums, rows) * shares.softirqs
        return cpu_evidence(
            sums,
            matrix,
            shares,
            rows,
            ran,
            self._advisor.index.owner,
            throttled_periods=frame.column(frame.picture.use.throttled),
            pressure=frame.pressure.get("cpu"),
            guess=frame.users,
            naming=self._names,
            stolen=frame.stolen,
        )

    def _whose_doing(
        self, frame: Frame, sums: tuple[SchedLatencySnapshot, float], rows: Rows, strategy: InterferenceStrategy
    ) -> tuple[tuple[Matrix, float] | None, Shares]:
        """The matrix of the window while somebody may be hurt, and whose doing waiting is as far as is known."""
        keys, shares = self._shares
        if keys is not frame.keys:
            keys, shares = frame.keys, shares.moved(keys, frame.keys)
        matrix = None
        if sums[0].source in PROBES:
            waited = waiting(*sums, rows)
            shares = bounded(shares, waited, frame.stolen)
            judged = eligible(frame.subjects, strategy)
            least: Floats | float = worth_asking(strategy)
            if self.alarm_at is not None:
                least = np.maximum(least, NOTICED * self.alarm_at(frame.subjects, strategy))[judged]
            noticed = bool((suspicious(waited, shares, frame.ran)[judged] >= least).any())
            noticed |= bool(behind_packets(waited, frame.ran, self.put_off(), strategy)[judged].any())
            self.noticed = noticed
            if self._culprits.due(sums[0].time_ns, frame.window / READINGS if noticed else SHARES_SECONDS):
                charges = self._advisor.charges()
                if charges is not None:
                    self._culprits.push(charges)
                    seen = self._culprits.pushed()
                    if seen is not None:
                        shares = shares_of(seen[0], rows, waited, frame.ran, frame.stolen)
            matrix = self._culprits.pushed() if noticed else None
        self._shares = (keys, shares)
        return matrix, shares

    def _rows_of(self, frame: Frame, now: float) -> Rows:
        """Cgroup id -> container, made anew when containers change and now and then."""
        latest = self._advisor.latency_window.latest
        known = self._rows
        if known is not None and known[1] is frame.subjects and now - known[2] < ROWS_SECONDS:
            return known[0]
        number = {key: row for row, key in enumerate(frame.keys)}
        ids = [] if latest is None else latest.keys[latest.keys > 0].tolist()
        rows = []
        for cgroup_id in ids:
            subject = self._advisor.index.owner(cgroup_id).subject
            rows.append(-1 if subject is None else number.get(subject.key, -1))
        made = Rows(np.array(ids, dtype=np.int64), np.array(rows, dtype=np.intp), len(frame.keys))
        self._rows = (made, frame.subjects, now)
        return made
