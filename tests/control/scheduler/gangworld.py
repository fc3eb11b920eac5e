"""A small scheduler for gangs: queue, cycles, bindings, and a dict as API server.

Time is virtual. `drive()` schedules until no pod is ready; `check()` holds the cache to the API server's pods.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry

from control.scheduler.config.args import CoschedulingArgs
from control.scheduler.cycle.batch import BatchMetrics, InlineBatch
from control.scheduler.cycle.cycle import Cycle
from control.scheduler.cycle.loop import Loop, Reporter
from control.scheduler.framework.plugin import ClusterEvent, CycleState, EventInterest, Plugin
from control.scheduler.framework.profile import Framework
from control.scheduler.framework.runtime import VictimEvictor
from control.scheduler.framework.status import SUCCESS, PluginStatus, error
from control.scheduler.framework.waitingpods import WaitingPods
from control.scheduler.plugins.coscheduling import Coscheduling
from control.scheduler.plugins.prioritysort import PrioritySort
from control.scheduler.queue.interests import QueueProfile
from control.scheduler.queue.queue import SchedulingQueue
from control.scheduler.state.cache import Cache
from control.scheduler.state.pods import PodInfo
from control.scheduler.state.table import CPU
from koordlet.api.core import Node, Pod
from tests.control.scheduler.build import Cluster, node
from tests.control.scheduler.toys import Fits
from tests.fakeclock import FakeClock

PROFILE = "koord-scheduler"


class Room(Fits):
    """Enough cpu; woken by nodes and by deleted pods."""

    name = "Room"

    def interests(self) -> Sequence[EventInterest]:
        return (EventInterest("Node"), EventInterest("AssignedPod", frozenset({"Delete"})))


class RecordingReporter(Reporter):
    """Records the last failure message of each pod."""

    def __init__(self) -> None:
        self.messages: dict[str, str] = {}
        self.nominated: dict[str, str] = {}
        """The last nomination of each pod, "" included."""
        self.cycles = 0

    def attempt(self, profile: str, result: str, seconds: float) -> None:
        self.cycles += 1

    def failed(self, pod: PodInfo, status: PluginStatus, message: str, nominated: str | None) -> None:
        self.messages[pod.name] = message
        if nominated is not None:
            self.nominated[pod.name] = nominated


class GangWorld:
    """See the module text. `refused`: names of pods that the API server refuses to bind."""

    def __init__(
        self,
        *nodes: Node,
        extra: Sequence[type[Plugin]] = (),
        post: Sequence[type[Plugin]] = (),
        at: Mapping[str, Sequence[type[Plugin]]] | None = None,
        evictor: VictimEvictor | None = None,
        batch: bool = False,
        **args: Any,
    ) -> None:
        """`extra`: further filters; `post`: plugins that make room, after gangs; `at`: more, by point; `args`:
        Coscheduling's."""
        self.clock = FakeClock()
        self.registry = CollectorRegistry()
        self.cluster = cluster = Cluster(*nodes)
        self.pods: dict[str, Pod] = {}
        self.refused: set[str] = set()
        self.bound_with: dict[str, dict[str, str]] = {}
        """By name: annotations at binding."""
        cluster.use(clock=self.clock, rng=random.Random(1))
        self.waiting = WaitingPods(self.clock)
        cluster.use(waiting=self.waiting)
        world = self

        class Server(Plugin):
            name = "Server"

            async def apply_patch(self, state: CycleState, pod: PodInfo, original: Pod, changed: Pod) -> PluginStatus:
                world.bound_with[changed.metadata.name] = dict(changed.metadata.annotations)
                return SUCCESS

            async def bind(self, state: CycleState, pod: PodInfo, node: str) -> PluginStatus:
                return world.bind(pod, node)

        gang = "Coscheduling"
        extra_names = [kind.name for kind in extra]
        points = {
            "preEnqueue": (gang,),
            "queueSort": ("PrioritySort",),
            "preFilter": (gang,),
            "filter": ("Room", *extra_names),
            "postFilter": (gang, *(kind.name for kind in post)),
            "score": ("Room",),
            "reserve": (gang,),
            "permit": (gang,),
            "preBind": (gang, "Server"),
            "bind": ("Server",),
            "postBind": (gang,),
        }
        more = [kind for kinds in (at or {}).values() for kind in kinds]
        for point, kinds in (at or {}).items():
            points[point] = (*points[point], *(kind.name for kind in kinds))
        registry = {kind.name: kind for kind in (Coscheduling, PrioritySort, Room, Server, *extra, *post, *more)}  # type: ignore[attr-defined]
        configured = {gang: CoschedulingArgs(**args)}
        self.framework = framework = Framework(cluster.handle, points, registry, args=configured)  # type: ignore[arg-type]
        coscheduling = framework.plugins[gang]
        assert isinstance(coscheduling, Coscheduling)
        self.gangs: Coscheduling = coscheduling
        assert framework.sort is not None
        profile = QueueProfile.of(framework.sort, framework.pre_enqueue, framework.plugins.values())
        self.queue = SchedulingQueue({PROFILE: profile}, self.clock.monotonic)
        self.cache = Cache(cluster.table, cluster.shapes)
        self.reporter = RecordingReporter()
        services: dict[str, Any] = {"queue": self.queue, "evictor": evictor}
        if batch:
            services["batch"] = InlineBatch(BatchMetrics.of(self.registry))
        self.loop = Loop(
            {PROFILE: Cycle(framework, self.cache, self.waiting, **services)},
            self.cache,
            self.queue,
            clock=self.clock,
            reporter=self.reporter,
            current=lambda info: self.pods.get(info.key),
        )

    # The API server

    def create(self, *pods: Pod) -> None:
        for pod in pods:
            self.pods[pod.metadata.key] = pod
            self.queue.add(self.cluster.info(pod))
            self.gangs.events.pod_added(pod)

    def restore(self, pods: Iterable[Pod]) -> None:
        """Start with the pods that another scheduler left, in some order, bound or not."""
        for pod in pods:
            if pod.spec.node_name:
                self.pods[pod.metadata.key] = pod
                self.cache.set_pod(pod)
                self.gangs.events.pod_added(pod)
            else:
                self.create(pod)

    def bind(self, pod: PodInfo, node: str) -> PluginStatus:
        old = self.pods.get(pod.key)
        if pod.name in self.refused:
            return error("the server is unwell")
        if old is None or old.metadata.uid != pod.uid:
            return error("not found")
        assert not old.spec.node_name, f"{pod.key} is bound twice"
        new = msgspec.structs.replace(old, spec=msgspec.structs.replace(old.spec, node_name=node))
        self.pods[pod.key] = new
        self.cache.set_pod(new)
        self.gangs.events.pod_updated(old, new)
        return SUCCESS

    def delete(self, key: str) -> None:
        old = self.pods.pop(key)
        uid = old.metadata.uid
        known = self.cache.pods.get(uid)
        if old.spec.node_name:
            self.cache.remove_pod(uid)
            self.queue.move(ClusterEvent("AssignedPod", "Delete"), known, None)
        else:
            info = self.queue.pending(key)
            if info is not None:
                self.queue.delete(info)
            self.waiting.reject(uid, "", "pod is deleted")
        self.gangs.events.pod_deleted(old)

    def add_node(self, name: str, cpu: str, labels: Mapping[str, str] | None = None) -> None:
        self.cluster.table.set_node(node(name, cpu=cpu, labels=dict(labels or {})))
        self.queue.move(ClusterEvent("Node", "Add"))

    def lose_node(self, name: str) -> None:
        """Remove the node and its pods."""
        self.cluster.table.remove_node(name)
        for key, pod in list(self.pods.items()):
            if pod.spec.node_name == name:
                self.delete(key)

    # Time

    async def drive(self) -> None:
        """Schedule until no pod is ready and all bindings that can end have ended."""
        await self.clock.settle()
        while run := self.queue.pop_run(64):
            self.loop.work(run)
            await self.clock.settle()

    async def pass_time(self, seconds: float) -> None:
        for _ in range(int(seconds)):
            await self.clock.advance(1)
            self.queue.flush_backoff()
            await self.drive()

    async def stop(self) -> None:
        await self.loop.binders[PROFILE].stop()

    # Looking

    def bound(self, gang: str = "") -> list[str]:
        """Names of bound pods, of one gang or all."""
        label = "gang.scheduling.koordinator.sh/name"
        return sorted(
            pod.metadata.name
            for pod in self.pods.values()
            if pod.spec.node_name and (not gang or pod.metadata.annotations.get(label) == gang)
        )

    def parked(self) -> list[str]:
        return sorted(pod.name for pod in self.waiting.waiting_pods())

    def check(self) -> None:
        """Exactly the bound pods and the pods that are being bound are counted."""
        bound = {pod.metadata.uid for pod in self.pods.values() if pod.spec.node_name}
        counted = {uid for uid, info in self.cache.pods.items() if not info.assumed}
        assert counted == bound
        assert self.cache.assumed == {pod.uid for pod in self.waiting.waiting_pods()}
        table = self.cluster.table
        for row, pods in enumerate(table.pods):
            assert table.requested[CPU, row] == sum(pod.requests.get("cpu", 0) for pod in pods.values())
            if table.valid[row]:
                assert table.requested[CPU, row] <= table.allocatable[CPU, row]
        for gang in self.gangs.gangs.gangs.values():
            places = [gang.pending, set(gang.waiting), gang.bound]
            assert set().union(*places) == set(gang.children)
            assert sum(map(len, places)) == len(gang.children)
            live = {key for key in gang.children if not gang.children[key].spec.node_name}
            assert gang.pending | set(gang.waiting) == live
