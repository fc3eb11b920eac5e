"""Small plugins for tests of the cycle, and a cycle over them."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from control.scheduler.cycle.cycle import Cycle
from control.scheduler.framework.plugin import CycleState, Plugin, Reads, default_normalize
from control.scheduler.framework.profile import Framework
from control.scheduler.framework.runtime import EmptyQueue
from control.scheduler.framework.status import SUCCESS, Code, PluginStatus, unschedulable, wait
from control.scheduler.framework.waitingpods import WaitingPods
from control.scheduler.queue import QueueProfile, SchedulingQueue
from control.scheduler.state.cache import Cache
from control.scheduler.state.columns import IntArray, Mask, Reasons16, RowArray, Rows
from control.scheduler.state.pods import PodInfo
from control.scheduler.state.table import CPU, selected
from koordlet.app.clock import SYSTEM_CLOCK
from tests.control.scheduler.build import Cluster


class Fits(Plugin):
    """Enough cpu."""

    name = "Fits"
    reads = Reads.PODS

    def filter(self, state: CycleState, pod: PodInfo, rows: Rows) -> Reasons16:
        free = self.table.allocatable[CPU][rows] - self.table.requested[CPU][rows]
        lacking: Mask = free < pod.requests.get("cpu", 0)
        return lacking[: _length(rows, self.table.size)].astype(np.int16) * self.reasons.number(
            Code.UNSCHEDULABLE, "Insufficient cpu"
        )

    def score(self, state: CycleState, pod: PodInfo, rows: Rows) -> IntArray:
        allocatable = self.table.allocatable[CPU][rows]
        free = allocatable - self.table.requested[CPU][rows] - pod.requests.get("cpu", 0)
        scores: IntArray = np.clip(free * 100 // np.maximum(allocatable, 1), 0, 100)
        return scores


class Cordon(Plugin):
    """No unschedulable nodes."""

    name = "Cordon"
    reads = Reads.NODE

    def filter(self, state: CycleState, pod: PodInfo, rows: Rows) -> Reasons16:
        answer: Reasons16 = self.table.unschedulable[rows].astype(np.int16)
        return answer * self.reasons.number(Code.UNRESOLVABLE, "node(s) were unschedulable")


class Crowd(Plugin):
    """Prefers nodes with few pods; a node has at most three more than the emptiest one."""

    name = "Crowd"
    reads = Reads.CLUSTER

    def filter(self, state: CycleState, pod: PodInfo, rows: Rows) -> Reasons16:
        counts = self._counts()
        fewest = min((counts[row] for row in np.flatnonzero(self.table.valid)), default=0)
        answer: Reasons16 = (counts[rows] > fewest + 3).astype(np.int16)
        return answer * self.reasons.number(Code.UNSCHEDULABLE, "node(s) were crowded")

    def score(self, state: CycleState, pod: PodInfo, rows: Rows) -> IntArray:
        counts: IntArray = self._counts()[rows]
        return counts

    def normalize(self, state: CycleState, pod: PodInfo, rows: RowArray, scores: IntArray) -> IntArray:
        return default_normalize(scores, reverse=True)

    def _counts(self) -> IntArray:
        return np.array([len(pods) for pods in self.table.pods], np.int64)


class ByRow(Plugin):
    """A plugin that evaluates one node at a time: rejects row numbers divisible by the pod's label."""

    name = "ByRow"
    reads = Reads.PODS

    def filter_row(self, state: CycleState, pod: PodInfo, row: int) -> int:
        divisor = int(pod.shape.labels.get("divisor", "0"))
        if divisor and row % divisor == 0:
            return self.reasons.number(Code.UNSCHEDULABLE, "node(s) were divisible")
        return 0

    def score_row(self, state: CycleState, pod: PodInfo, row: int) -> int:
        return (row * 7 + len(self.table.pods[row])) % 100


class Guard(Plugin):
    """Rejects or delays pods at Reserve and Permit by their labels, and records the reserved pods."""

    name = "Guard"

    def __init__(self, args: Any, handle: Any) -> None:
        super().__init__(args, handle)
        self.reserved: set[str] = set()

    def reserve(self, state: CycleState, pod: PodInfo, row: int) -> PluginStatus:
        if pod.shape.labels.get("reserve") == "no":
            return unschedulable("not reserved")
        self.reserved.add(pod.uid)
        return SUCCESS

    def unreserve(self, state: CycleState, pod: PodInfo, row: int) -> None:
        self.reserved.discard(pod.uid)

    def permit(self, state: CycleState, pod: PodInfo, row: int) -> PluginStatus:
        match pod.shape.labels.get("permit"):
            case "no":
                return unschedulable("not permitted")
            case "wait":
                return wait(30)
        return SUCCESS


TOYS: Mapping[str, type[Plugin]] = {p.name: p for p in (Fits, Cordon, Crowd, ByRow, Guard)}
POINTS: Mapping[str, Sequence[str]] = {
    "filter": ("Cordon", "Fits", "Crowd", "ByRow"),
    "score": ("Fits", "Crowd", "ByRow"),
    "reserve": ("Guard",),
    "permit": ("Guard",),
}


def cycle_of(
    cluster: Cluster,
    points: Mapping[str, Sequence[str]] = POINTS,
    registry: Mapping[str, type[Plugin]] = TOYS,
    *,
    seed: int = 1,
    **more: Any,
) -> Cycle:
    return cycle_over(cluster, framework_of(cluster, points, registry, seed=seed, **more))


def framework_of(
    cluster: Cluster,
    points: Mapping[str, Sequence[str]] = POINTS,
    registry: Mapping[str, type[Plugin]] = TOYS,
    *,
    seed: int = 1,
    **more: Any,
) -> Framework:
    cluster.use(rng=random.Random(seed), waiting=WaitingPods(SYSTEM_CLOCK))
    return Framework(cluster.handle, points, registry, **more)


def cycle_over(cluster: Cluster, framework: Framework, **services: Any) -> Cycle:
    waiting = cluster.handle.waiting
    assert isinstance(waiting, WaitingPods)
    return Cycle(framework, Cache(cluster.table, cluster.shapes), waiting, **(cluster.cycle_services | services))


def evaluated(
    cycle: Cycle, state: CycleState, pod: PodInfo, rows: RowArray | None = None
) -> tuple[RowArray, Callable[[], IntArray]]:
    """The feasible rows among `rows`, and a function that returns their totals, as the cycle computes both."""
    calls, cached = cycle.framework, cycle._equivalence.of(pod)
    cached.filter(calls, state, pod, rows)
    feasible = cycle._feasibility.rows(calls, state, pod, cached, rows)
    return feasible, lambda: cycle._scoring.totals(calls, state, pod, cached, feasible)


def queue_with(node: str, *nominated: PodInfo) -> EmptyQueue:
    """A queue that has only pods nominated to a node."""
    queue = EmptyQueue()
    for pod in nominated:
        queue.nominations.set(pod, node)
    return queue


def queue_of(framework: Framework, now: Callable[[], float] = lambda: 0.0) -> SchedulingQueue:
    assert framework.sort is not None
    profile = QueueProfile.of(framework.sort, framework.pre_enqueue, framework.plugins.values())
    return SchedulingQueue({framework.name: profile}, now)


def _length(rows: Rows, size: int) -> int:
    return len(selected(rows, size))
