"""Evidence sources for memory, disks, the network and the cache, over the windows that collectors keep. Pure.

Each source takes a collector's figures by subject key and gives the two symptoms of `model`: the delay caused by others
and the delay caused by the container itself, by the collector's own culprits. A collector with an empty window measured
no delays, which is evidence as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from koordlet.interference.cpu import lost_share
from koordlet.interference.evidence import ContainerWindow
from koordlet.interference.model import Floats, ResourceEvidence, WaitResource
from koordlet.metricsadvisor.stalls.attribution import CulpritTime, identity
from koordlet.metricsadvisor.stalls.blockio import SubjectBlockIO
from koordlet.metricsadvisor.stalls.memstall import SubjectMemStall
from koordlet.metricsadvisor.stalls.netstall import DeferredSoftirqs, SubjectNetStall
from koordlet.statesinformer.pods.cgroupindex import Owner
from koordlet.statesinformer.pods.model import Subject

NEAR_LIMIT_RATIO = 0.97
"""Memory use as a fraction of the limit from which on a container counts as being at its limit, without a probe."""
CONSEQUENCES_OF_RECLAIM = ("refault", "swapin", "other")
"""Kinds of memory stall that follow from an earlier reclaim, whatever caused it."""
SOFTIRQS = Owner("kernel", "network softirqs")


class CulpritTotals(NamedTuple):
    """Who caused some waiting. Made once for a list of culprits that many subjects share."""

    total: float
    """Seconds."""
    idle: float
    """Seconds without a culprit: the disk was idle, or the culprit is unknown."""
    by_subject: Mapping[str, float]
    """Seconds by the key of the subject that caused them."""

    @classmethod
    def of(cls, culprit_times: Sequence[CulpritTime]) -> CulpritTotals:
        total, idle, by_subject = 0.0, 0.0, dict[str, float]()
        for owner, seconds in ((item.owner, item.seconds) for item in culprit_times):
            total += seconds
            if owner.subject is not None:
                by_subject[owner.subject.key] = by_subject.get(owner.subject.key, 0.0) + seconds
            elif owner.kind in ("idle", "unknown"):
                idle += seconds
        return cls(total, idle, by_subject)

    def own(self, subject: Subject) -> float | None:
        """Fraction that the subject caused itself; None without any waiting."""
        return self.by_subject.get(subject.key, 0.0) / self.total if self.total > 0 else None

    def split(self, subject: Subject) -> tuple[float, float]:
        """(fraction that the subject caused itself, fraction caused by others); an idle disk is neither."""
        own = self.own(subject)
        return (0.0, 0.0) if own is None else (own, max(1.0 - own - self.idle / self.total, 0.0))


class MemorySplit(NamedTuple):
    """One container's memory stalls by cause, in seconds per second."""

    others: float
    limit: float
    """Self-inflicted: at its own limit."""
    shared: float
    """Self-inflicted: its part of the pressure on shared memory, the node's or that below a limit above its own."""


def split_memory(subject: Subject, stall: SubjectMemStall) -> MemorySplit:
    """Stalls at the container's own limit are self-inflicted, and so is its share of the pressure on the node.

    Waiting for evicted pages follows from the reclaim that evicted them, and is divided like that reclaim. Compaction
    has no culprit.
    """
    seconds = dict(stall.seconds)
    own = seconds.pop("own_limit", 0.0)
    throttled = seconds.pop("throttle", 0.0)
    shared = seconds.pop("direct", 0.0) + seconds.pop("ancestor", 0.0)
    share = CulpritTotals.of(stall.culprits).own(subject)
    # `culprits` covers all reclaim, including that at the own limit; the rest of the own share belongs to `shared`.
    own_of_shared = 0.0
    if share is not None and shared > 0:
        own_of_shared = min(max(share * (own + shared) - own, 0.0), shared)
    reclaim = own + shared
    consequences = sum(seconds.pop(kind, 0.0) for kind in CONSEQUENCES_OF_RECLAIM)
    at_limit, pressed = (own / reclaim, own_of_shared / reclaim) if reclaim > 0 else (0.0, 0.0)
    return MemorySplit(
        others=shared - own_of_shared + consequences * (1.0 - at_limit - pressed) + sum(seconds.values()),
        limit=own + throttled + consequences * at_limit,
        shared=own_of_shared + consequences * pressed,
    )


class MemorySource:
    """`stalls` is `MemStallCollector.figures` (None without a reading), `origin` the name of its source."""

    resource = WaitResource.MEMORY

    def __init__(self, stalls: Callable[[], Mapping[str, SubjectMemStall] | None], origin: Callable[[], str]) -> None:
        self._stalls = stalls
        self._origin = origin

    def evidence(self, window: ContainerWindow) -> ResourceEvidence | None:
        """See `EvidenceSource`."""
        stalls = self._stalls()
        if stalls is None:
            return None
        origin, size = self._origin(), len(window.keys)
        (others, limit, shared), p99 = np.zeros((3, size)), np.full(size, np.nan)
        for key, stall in stalls.items():
            row = window.row_of.get(key)
            if row is None:
                continue
            subject = window.subjects[row]
            others[row], limit[row], shared[row] = split_memory(subject, stall)
            if stall.p99 is not None:
                p99[row] = stall.p99
        if origin != "bpf":  # one sum: a container at its limit is taken to be delayed by its limit
            at_limit = window.memory_usage_ratio >= NEAR_LIMIT_RATIO
            others, limit = np.where(at_limit, 0.0, others), np.where(at_limit, others + limit, limit)
        own = limit + shared
        return ResourceEvidence(
            source=origin,
            others=lost_share(others, window.ran + own),
            own=lost_share(own, window.ran + others),
            parts={"limit": limit, "shared": shared},
            latency=p99,
            pressure=window.pressure.get("memory"),
            culprits=lambda row: _culprits_of(stalls, window, row),
            named=origin == "bpf",
        )


class IoSource:
    """`stalls` is `BlockIOCollector.figures`; None without a probe.

    The wanted time is the whole time of the container's requests: waiting behind others and behind itself, and being
    served. Throttling by its own limit is self-inflicted.
    """

    resource = WaitResource.IO

    def __init__(self, stalls: Callable[[], Mapping[str, SubjectBlockIO] | None]) -> None:
        self._stalls = stalls

    def evidence(self, window: ContainerWindow) -> ResourceEvidence | None:
        """See `EvidenceSource`."""
        stalls = self._stalls()
        if stalls is None:
            return None
        size = len(window.keys)
        others, own_requests, throttled, served = (np.zeros(size) for _ in range(4))
        p99 = np.full(size, np.nan)
        for key, stall in stalls.items():
            row = window.row_of.get(key)
            if row is None:
                continue
            subject = window.subjects[row]
            own_part, others_part = CulpritTotals.of(stall.culprits).split(subject)
            others[row], own_requests[row] = stall.wait * others_part, stall.wait * own_part
            throttled[row], served[row] = stall.throttled, stall.device
            if stall.queue_p99 is not None:
                p99[row] = stall.queue_p99
        progress = window.ran + served
        return ResourceEvidence(
            source="bpf",
            others=lost_share(others, progress + own_requests + throttled),
            own=lost_share(throttled, progress + own_requests + others),
            parts={"throttle": throttled},
            latency=p99,
            pressure=window.pressure.get("io"),
            culprits=lambda row: _culprits_of(stalls, window, row),
            named=True,
        )


class NetworkSource:
    """CPU time that packets of others cost a container. `stalls` is `NetStallCollector.figures` (None without a probe),
    `deferred` its `deferred`, `behind_ksoftirqd` is `CpuSource.behind_ksoftirqd`: the CPU's source comes first.

    The kernel processes packets on top of the task that has the CPU, and defers what is too much for that to a thread
    of its own (ksoftirqd), which competes for the CPU like any task. The kernel decides case by case how to divide the
    work. So the time taken from a container's tasks and their waiting for that thread are one loss. Of the waiting, at
    most the seconds that the thread worked for the network count, because it serves other softirqs too; and not the
    seconds that it worked for the container itself, whose own packets are work and not a delay.

    Interrupt time is part of the time that a task ran. (Kernels that account it separately, CONFIG_IRQ_TIME_ACCOUNTING,
    are rare; there the loss is overstated: s of s + r appears as s of r.)
    """

    resource = WaitResource.NETWORK

    def __init__(
        self,
        stalls: Callable[[], Mapping[str, SubjectNetStall] | None],
        deferred: Callable[[], DeferredSoftirqs],
        behind_ksoftirqd: Callable[[], Floats],
    ) -> None:
        self._stalls = stalls
        self._deferred = deferred
        self._behind_ksoftirqd = behind_ksoftirqd

    def evidence(self, window: ContainerWindow) -> ResourceEvidence | None:
        """See `EvidenceSource`."""
        stalls = self._stalls()
        if stalls is None:
            return None
        deferred, size = self._deferred(), len(window.keys)
        behind = np.minimum(self._behind_ksoftirqd(), deferred.seconds)
        behind_others = behind.copy()
        receivers_shares = CulpritTotals.of(deferred.receivers)
        for row in np.flatnonzero(behind).tolist():
            behind_others[row] *= receivers_shares.split(window.subjects[row])[1]
        taken, p99 = np.zeros(size), np.full(size, np.nan)
        for key, stall in stalls.items():
            place = window.row_of.get(key)
            if place is not None:
                taken[place] = stall.softirq * CulpritTotals.of(stall.culprits).split(window.subjects[place])[1]
                p99[place] = np.nan if stall.softirq_p99 is None else stall.softirq_p99

        def culprits(row: int) -> Sequence[CulpritTime]:
            stall = stalls.get(window.keys[row])
            parts = [(deferred.receivers, float(behind[row]))]
            if stall is not None:
                parts.append((stall.culprits, stall.softirq))
            return receivers(parts)

        return ResourceEvidence(
            source="bpf",
            others=lost_share(taken + behind_others, np.maximum(window.ran - taken, 0.0)),
            own=np.zeros(size),
            latency=p99,
            culprits=culprits,
            named=True,
        )


class CacheSource:
    """`cycles` is `CpiCollector.window`: cycles per instruction, compared only with the container's usual value. The
    culprits cannot be measured; the containers that used most CPU meanwhile are guessed."""

    resource = WaitResource.CACHE

    def __init__(self, cycles: Callable[[], Mapping[str, float]]) -> None:
        self._cycles = cycles

    def evidence(self, window: ContainerWindow) -> ResourceEvidence | None:
        """See `EvidenceSource`."""
        cycles = self._cycles()
        if not cycles:
            return None
        cpi = np.array([cycles.get(key, np.nan) for key in window.keys])
        unknown = np.full(len(cpi), np.nan)
        return ResourceEvidence(source="counters", others=cpi, own=unknown, culprits=window.largest_users)


def receivers(parts: Sequence[tuple[Sequence[CulpritTime], float]]) -> list[CulpritTime]:
    """Culprits of several parts as one list, longest first; each part's seconds per second are divided among its
    culprits. Softirq work before the first packet, or for a packet without an owner, belongs to the kernel."""
    merged: dict[str, CulpritTime] = {}
    for culprit_times, seconds in parts:
        total = sum(item.seconds for item in culprit_times)
        for item in culprit_times if total > 0 else ():
            owner = SOFTIRQS if item.owner.kind == "kernel" else item.owner
            key = identity(owner)
            before = merged.get(key, CulpritTime(owner, 0.0, 0))
            merged[key] = CulpritTime(owner, before.seconds + item.seconds / total * seconds, before.count + item.count)
    return sorted((item for item in merged.values() if item.seconds > 0), key=lambda item: -item.seconds)


def _culprits_of(
    stalls: Mapping[str, SubjectMemStall] | Mapping[str, SubjectBlockIO], window: ContainerWindow, row: int
) -> Sequence[CulpritTime]:
    stall = stalls.get(window.keys[row])
    return () if stall is None else stall.culprits
