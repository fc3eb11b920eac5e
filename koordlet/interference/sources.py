"""Evidence about memory, disks, the network and the cache, from the windows that collectors keep. Pure.

Each function takes what a collector says of the containers by subject key and gives the two symptoms of `model`: what
others held up and what the container did to itself, by the collector's own account of who was ahead. A collector whose
window is empty says that nobody was held up, which is evidence too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from koordlet.interference.cpu import lost_share
from koordlet.interference.gather import Frame, Source
from koordlet.interference.model import Floats, ResourceEvidence
from koordlet.metricsadvisor.stalls.blockio import SubjectBlockIO
from koordlet.metricsadvisor.stalls.latency import Blame, identity
from koordlet.metricsadvisor.stalls.memstall import SubjectMemStall
from koordlet.metricsadvisor.stalls.netstall import PutOff, SubjectNetStall
from koordlet.statesinformer.pods.cgroupindex import Owner
from koordlet.statesinformer.pods.model import Subject

FULL = 0.97
"""Share of its memory limit from which on a container is taken to press against it, where no probe tells."""
AFTERWARDS = ("refault", "swapin", "other")
"""Kinds of memory stall that follow from an earlier reclaim, whoever caused that."""

NONE_PUT_OFF = PutOff(0.0, ())
SOFTIRQS = Owner("kernel", "network softirqs")


def own_share(subject: Subject, blames: Sequence[Blame]) -> float | None:
    """Part of the blame that is the subject's own; None without any blame."""
    total = sum(one.seconds for one in blames)
    if total <= 0:
        return None
    mine = sum(one.seconds for one in blames if one.owner.subject is not None and one.owner.subject.key == subject.key)
    return mine / total


def _evidence(
    frame: Frame,
    source: str,
    others: Floats,
    own: Floats,
    parts: Mapping[str, Floats],
    latency: Floats | None,
    resource: str,
    blames: Callable[[str], Sequence[Blame]],
) -> ResourceEvidence:
    ran, keys = frame.ran, frame.keys
    return ResourceEvidence(
        source=source,
        others=lost_share(others, ran + own),
        own=lost_share(own, ran + others),
        parts=parts,
        latency=latency,
        pressure=frame.pressure.get(resource),
        culprits=lambda row: blames(keys[row]),
        named=source == "bpf",
    )


class MemorySplit(NamedTuple):
    """One container's memory stalls by whose doing they were, seconds a second."""

    others: float
    limit: float
    """Its own: at its own limit."""
    shared: float
    """Its own: it pressed on what it has in common with others, the node's memory or a limit above its own."""

    @property
    def own(self) -> float:
        return self.limit + self.shared


def split_memory(subject: Subject, stall: SubjectMemStall) -> MemorySplit:
    """At its own limit it is its own doing, and so is its share of the pressure on the node.

    Waiting for pages that were evicted follows the reclaim that evicted them: it is shared out as that was. Compaction
    is nobody's in particular.
    """
    seconds = dict(stall.seconds)
    own = seconds.pop("own_limit", 0.0)
    throttled = seconds.pop("throttle", 0.0)
    shared = seconds.pop("direct", 0.0) + seconds.pop("ancestor", 0.0)
    mine = own_share(subject, stall.culprits)
    # `culprits` covers all reclaim, own limit included: what is left of its own share after that is of the node's.
    if mine is not None and shared > 0:
        mine_of_shared = min(max(mine * (own + shared) - own, 0.0), shared)
    else:
        mine_of_shared = 0.0
    reclaim = own + shared
    after = sum(seconds.pop(kind, 0.0) for kind in AFTERWARDS)
    at_limit, pressed = (own / reclaim, mine_of_shared / reclaim) if reclaim > 0 else (0.0, 0.0)
    return MemorySplit(
        others=shared - mine_of_shared + after * (1.0 - at_limit - pressed) + sum(seconds.values()),
        limit=own + throttled + after * at_limit,
        shared=mine_of_shared + after * pressed,
    )


def memory(window: Callable[[], Mapping[str, SubjectMemStall] | None], source: Callable[[], str]) -> Source:
    """`MemStallCollector.window`; None where there is no collector."""

    def of(frame: Frame) -> ResourceEvidence | None:
        found = window()
        if found is None:
            return None
        name = source()
        (others, limit, shared), p99 = np.zeros((3, len(frame.keys))), np.full(len(frame.keys), np.nan)
        for row, subject in enumerate(frame.subjects):
            stall = found.get(subject.key)
            if stall is None:
                continue
            others[row], limit[row], shared[row] = split_memory(subject, stall)
            if stall.p99 is not None:
                p99[row] = stall.p99
        if name != "bpf":  # one sum: a container that fills its limit is held up by that
            full = frame.memory_full >= FULL
            others, limit = np.where(full, 0.0, others), np.where(full, others + limit, limit)
        return _evidence(
            frame, name, others, limit + shared, {"limit": limit, "shared": shared}, p99, "memory",
            lambda key: found[key].culprits if key in found else (),
        )  # fmt: skip

    return of


def io(window: Callable[[], Mapping[str, SubjectBlockIO] | None]) -> Source:
    """`BlockIOCollector.window`; None where no probe counts.

    What a container wanted is its requests' whole time: waiting behind others and behind itself, and being served. Held
    back by its own limit is its own doing.
    """

    def of(frame: Frame) -> ResourceEvidence | None:
        found = window()
        if found is None:
            return None
        size = len(frame.keys)
        others, threads, throttled, served = (np.zeros(size) for _ in range(4))
        p99 = np.full(size, np.nan)
        for row, subject in enumerate(frame.subjects):
            one = found.get(subject.key)
            if one is None:
                continue
            mine, theirs = _shares(subject, one.culprits)
            others[row], threads[row] = one.wait * theirs, one.wait * mine
            throttled[row], served[row] = one.throttled, one.device
            if one.queue_p99 is not None:
                p99[row] = one.queue_p99
        got_on = frame.ran + served
        return ResourceEvidence(
            source="bpf",
            others=lost_share(others, got_on + threads + throttled),
            own=lost_share(throttled, got_on + threads + others),
            parts={"throttle": throttled},
            latency=p99,
            pressure=frame.pressure.get("io"),
            culprits=lambda row: found[frame.keys[row]].culprits if frame.keys[row] in found else (),
            named=True,
        )

    return of


def network(
    window: Callable[[], Mapping[str, SubjectNetStall] | None], put_off: Callable[[], PutOff] = lambda: NONE_PUT_OFF
) -> Source:
    """`NetStallCollector.window` and `.put_off`: CPU time that packets of others cost it; None where no probe counts.

    The kernel works off packets on the back of whoever has the CPU, and what is too much for that in a thread of its
    own, which takes its turn on the CPU like any task. How it splits is the kernel's choice of the moment: so the time
    stolen from a container's tasks and their waiting for that thread are one loss. Of the waiting at most as much
    counts as the thread worked for the network, because it does the work of other softirqs, too; and not what it
    worked for the container itself, whose own packets are its work and not its trouble.

    What interrupts take is part of what a task ran (kernels that account it apart, CONFIG_IRQ_TIME_ACCOUNTING, are
    rare; there the loss is overstated: s of s + r shows as s of r).
    """

    def of(frame: Frame) -> ResourceEvidence | None:
        found = window()
        if found is None:
            return None
        late = put_off()
        stolen, p99 = np.zeros(len(frame.keys)), np.full(len(frame.keys), np.nan)
        behind = np.minimum(frame.behind_softirqs, late.seconds)
        for row in np.flatnonzero(behind).tolist():
            behind[row] *= _shares(frame.subjects[row], late.receivers)[1]
        for row, subject in enumerate(frame.subjects):
            one = found.get(subject.key)
            if one is not None:
                stolen[row] = one.softirq * _shares(subject, one.culprits)[1]
                p99[row] = np.nan if one.softirq_p99 is None else one.softirq_p99

        def culprits(row: int) -> Sequence[Blame]:
            one = found.get(frame.keys[row])
            parts = [(late.receivers, min(float(frame.behind_softirqs[row]), late.seconds))]
            if one is not None:
                parts.append((one.culprits, one.softirq))
            return receivers(parts)

        return ResourceEvidence(
            source="bpf",
            others=lost_share(stolen + behind, np.maximum(frame.ran - stolen, 0.0)),
            own=np.zeros(len(stolen)),
            latency=p99,
            culprits=culprits,
            named=True,
        )

    return of


def receivers(parts: Sequence[tuple[Sequence[Blame], float]]) -> list[Blame]:
    """Blames of each part, spread over that many seconds a second of it, as one list, longest first. What softirqs did
    before their first packet, or for one that nobody owns, is the kernel's."""
    found: dict[str, Blame] = {}
    for blames, seconds in parts:
        total = sum(one.seconds for one in blames)
        for one in blames if total > 0 else ():
            who = SOFTIRQS if one.owner.kind == "kernel" else one.owner
            before = found.get(identity(who), Blame(who, 0.0, 0))
            more = one.seconds / total * seconds
            found[identity(who)] = Blame(who, before.seconds + more, before.count + one.count)
    return sorted((one for one in found.values() if one.seconds > 0), key=lambda one: -one.seconds)


def _shares(subject: Subject, blames: Sequence[Blame]) -> tuple[float, float]:
    """(its own part, others' part) of the blame; an idle disk is nobody's."""
    total = sum(one.seconds for one in blames)
    if total <= 0:
        return 0.0, 0.0
    mine = own_share(subject, blames) or 0.0
    idle = sum(one.seconds for one in blames if one.owner.kind in ("idle", "unknown")) / total
    return mine, max(1.0 - mine - idle, 0.0)


def cache(window: Callable[[], Mapping[str, float]]) -> Source:
    """`CpiCollector.window`: cycles per instruction, compared only with what is usual for the container. Whose doing it
    is can't be seen; who used most CPU meanwhile is guessed."""

    def of(frame: Frame) -> ResourceEvidence | None:
        found = window()
        if not found:
            return None
        cpi = np.array([found.get(key, np.nan) for key in frame.keys])
        return ResourceEvidence(source="counters", others=cpi, own=np.full(len(cpi), np.nan), culprits=frame.users)

    return of
