"""An object of another kind is scheduled like a pod: counted, queued, bound and reported in its own way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry

from control.scheduler.cycle.cycle import Cycle
from control.scheduler.cycle.loop import Loop
from control.scheduler.cycle.monitor import AttemptMonitor
from control.scheduler.cycle.reporter import UserReporter
from control.scheduler.framework.plugin import CycleState, Plugin
from control.scheduler.framework.status import SKIP, SUCCESS, PluginStatus
from control.scheduler.framework.victimpolicy import VictimPolicy
from control.scheduler.plugins.defaultbinder import DefaultBinder
from control.scheduler.plugins.defaultprebind import DefaultPreBind
from control.scheduler.plugins.noderesourcesfit import NodeResourcesFit
from control.scheduler.plugins.prioritysort import PrioritySort
from control.scheduler.process.metrics import SchedulerMetrics
from control.scheduler.queue import SchedulingQueue
from control.scheduler.state.cache import Cache
from control.scheduler.state.eventhandlers import ClusterEventHandlers
from control.scheduler.state.pods import POD, PodInfo
from control.scheduler.state.subjects import FailedAttempt, Subjects
from koordlet.api.core import Node, Pod
from tests.control.scheduler.build import Cluster, node, pod
from tests.control.scheduler.toys import cycle_over, framework_of, queue_of
from tests.fakeclock import FakeClock
from tests.waiting import until

KIND = "Claim"


class Claim(msgspec.Struct):
    """An object that gets a node; `template` is its pod."""

    template: Pod
    node: str = ""


def as_pod(claim: Claim) -> Pod:
    return msgspec.structs.replace(
        claim.template, spec=msgspec.structs.replace(claim.template.spec, node_name=claim.node)
    )


class Claims(Plugin):
    """Sends what concerns claims, and leaves pods to the default plugins."""

    name = "Claims"

    def __init__(self, args: Any, handle: Any) -> None:
        super().__init__(args, handle)
        self.done: list[tuple[str, ...]] = []
        handle.subjects.add(KIND, self)
        handle.follow(Claim, as_pod, KIND)
        self.known: dict[str, Claim] = {}

    async def pre_bind(self, state: CycleState, pod: PodInfo, row: int, changed: Pod) -> PluginStatus:
        changed.metadata.annotations["seen"] = "yes"
        return SUCCESS

    async def apply_patch(self, state: CycleState, pod: PodInfo, original: Pod, changed: Pod) -> PluginStatus:
        if pod.subject != KIND:
            return SKIP
        self.done.append(("patch", pod.key))
        return SUCCESS

    async def bind(self, state: CycleState, pod: PodInfo, node: str) -> PluginStatus:
        if pod.subject != KIND:
            return SKIP
        self.done.append(("bind", pod.key, node))
        return SUCCESS

    def current(self, info: PodInfo) -> Pod | None:
        claim = self.known.get(info.name)
        return None if claim is None else as_pod(claim)

    def event_object(self, info: PodInfo) -> str:
        return f"claim {info.name}"

    async def report(self, info: PodInfo, failed: FailedAttempt) -> None:
        self.done.append(("failed", info.key, failed.reason, failed.message))


class Informers:
    """Informers that deliver what a test emits."""

    def __init__(self) -> None:
        self.handlers: dict[type[Any], list[tuple[Callable[..., Any], ...]]] = {Pod: [], Node: [], Claim: []}

    def informer(self, kind: type[Any]) -> Any:
        self.kind = kind
        return self

    def add_handler(self, *handlers: Callable[..., Any]) -> None:
        self.handlers[self.kind].append(handlers)

    def __iter__(self) -> Any:
        return iter({Pod: self, Node: self}.items())

    def emit(self, kind: type[Any], action: int, *objects: Any) -> None:
        for handlers in self.handlers[kind]:
            handlers[action](*objects)


class Recorder:
    """Notes what Events are about."""

    def __init__(self) -> None:
        self.events: list[tuple[Any, str]] = []

    def normal(self, about: Any, reason: str, message: str, action: str = "") -> None:
        self.events.append((about, reason))

    def warning(self, about: Any, reason: str, message: str, action: str = "") -> None:
        self.events.append((about, reason))


class Scene:
    """A scheduler of claims and pods over one node."""

    def __init__(self) -> None:
        self.cluster = cluster = Cluster(node("a", cpu="4"))
        self.informers, self.subjects, self.events = Informers(), Subjects(), Recorder()
        self.cache = Cache(cluster.table, cluster.shapes)
        objects: Any = self.informers
        self.handlers = ClusterEventHandlers(objects, self.cache)
        cluster.use(subjects=self.subjects, follow=self.handlers.follow)
        points = {
            "queueSort": ("PrioritySort",),
            "filter": ("NodeResourcesFit",),
            "preBind": ("Claims", "DefaultPreBind"),
            "bind": ("Claims", "DefaultBinder"),
        }
        plugins = {
            plugin.name: plugin for plugin in (PrioritySort, NodeResourcesFit, Claims, DefaultPreBind, DefaultBinder)
        }
        framework = framework_of(cluster, points, plugins)
        claims = framework.plugins["Claims"]
        assert isinstance(claims, Claims)
        self.claims = claims
        self.queue: SchedulingQueue = queue_of(framework)
        self.cycle: Cycle = cycle_over(cluster, framework, queue=self.queue)
        self.cycle.cache = self.cache
        monitor = AttemptMonitor(lambda: 0.0, lambda profile: None)
        recorder: Any = self.events
        metrics = SchedulerMetrics.of(CollectorRegistry())
        self.reporter = UserReporter(self.subjects, recorder, metrics, monitor, FakeClock())
        self.loop = Loop(
            {"koord-scheduler": self.cycle},
            self.cache,
            self.queue,
            reporter=self.reporter,
            current=self.subjects.current,
        )
        self.handlers.route(self.queue, {"koord-scheduler": framework}, lambda uid: None)

    def add(self, claim: Claim) -> None:
        self.claims.known[claim.template.metadata.name] = claim
        self.informers.emit(Claim, 0, claim)

    async def work(self) -> None:
        self.loop.work(self.queue.pop_run(1))
        await until(lambda: not len(self.loop.binders["koord-scheduler"]))


async def test_a_subject_is_bound_by_its_plugin_and_counted() -> None:
    scene = Scene()
    claim = Claim(pod("c", cpu="3"))
    scene.add(claim)
    assert scene.queue.pending("Claim/c") is not None
    await scene.work()
    assert scene.claims.done == [("patch", "Claim/c"), ("bind", "Claim/c", "a")]
    assert scene.events.events == [("claim c", "Scheduled")]
    bound = Claim(claim.template, "a")
    scene.informers.emit(Claim, 1, claim, bound)
    (counted,) = scene.cache.pods.values()
    assert (counted.subject, counted.assumed, counted.row) == (KIND, False, 0)
    assert not VictimPolicy().eligible(counted, scene.cluster.info(pod(priority=9)))  # it is no pod to be deleted
    scene.informers.emit(Claim, 2, bound)
    assert scene.cluster.table.requested[:, 0].sum() == 0


async def test_the_failure_of_a_subject_is_reported_to_it() -> None:
    scene = Scene()
    await scene.reporter.start()
    scene.add(Claim(pod("c", cpu="9")))
    await scene.work()
    for _ in range(9):
        await asyncio.sleep(0)
    await scene.reporter.stop()
    text = "0/1 nodes are available: 1 Insufficient cpu."
    assert scene.claims.done == [("failed", "Claim/c", "Unschedulable", text)]
    assert scene.events.events == [("claim c", "FailedScheduling")]
    scene.informers.emit(Claim, 2, scene.claims.known["c"])
    assert not len(scene.queue)


def test_a_pod_cannot_take_the_place_of_a_subject_by_its_name() -> None:
    scene = Scene()
    scene.add(Claim(pod("c", cpu="3")))
    scene.informers.emit(Pod, 0, pod("c"))  # in the namespace of the claim's template
    assert sorted(info.subject for info in scene.queue.pods()) == [KIND, POD]
