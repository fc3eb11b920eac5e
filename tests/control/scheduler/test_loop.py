"""The loop between queue and bindings: failed pods are requeued, released nodes wake other pods (spec 05 §3.5-10)."""

from __future__ import annotations

from msgspec.structs import replace
from prometheus_client import CollectorRegistry

from control.boundedpods import TOO_LONG_REASON, bounded
from control.scheduler.cycle.loop import Loop, Reporter
from control.scheduler.cycle.monitor import AttemptMonitor
from control.scheduler.framework.plugin import Plugin
from control.scheduler.framework.status import PluginStatus
from control.scheduler.plugins.noderesourcesfit import NodeResourcesFit
from control.scheduler.plugins.prioritysort import PrioritySort
from control.scheduler.plugins.schedulinggates import SchedulingGates
from control.scheduler.process.metrics import SchedulerMetrics
from control.scheduler.state.pods import PodInfo
from tests.control.scheduler.build import Cluster, node, pod
from tests.control.scheduler.toys import Guard, cycle_over, framework_of, queue_of
from tests.waiting import until

POINTS = {
    "queueSort": ("PrioritySort",),
    "filter": ("NodeResourcesFit",),
    "reserve": ("Guard",),
    "permit": ("Guard",),
}
PLUGINS = {plugin.name: plugin for plugin in (PrioritySort, NodeResourcesFit, Guard)}


class MonitoringReporter(Reporter):
    """Passes attempts to a monitor, as the reporter of a running scheduler does."""

    def __init__(self) -> None:
        self.monitor = AttemptMonitor(lambda: 0.0, lambda profile: None)
        self.reasons: list[str] = []

    def started(self, pod: PodInfo) -> None:
        self.monitor.started(pod)

    def failed(self, pod: PodInfo, status: PluginStatus, message: str, nominated: str | None) -> None:
        self.monitor.complete(pod)
        self.reasons.append(message)

    def abandoned(self, pod: PodInfo) -> None:
        self.monitor.complete(pod)


async def test_the_attempt_of_a_pod_deleted_at_permit_ends() -> None:
    cluster = Cluster(node("n1"))
    framework = framework_of(cluster, POINTS, PLUGINS)
    queue = queue_of(framework)
    cycle = cycle_over(cluster, framework, queue=queue)
    reporter = MonitoringReporter()
    loop = Loop({"koord-scheduler": cycle}, cycle.cache, queue, reporter=reporter, current=lambda key: None)
    held = cluster.info(pod("held", labels={"permit": "wait"}))
    queue.add(held)
    loop.work(queue.pop_run(1))
    assert len(reporter.monitor) == 1
    cycle.waiting.reject(held.uid, "", "removed")  # as the handler of the deletion does
    await until(lambda: not len(loop.binders["koord-scheduler"]))
    assert len(reporter.monitor) == 0


async def test_the_release_of_a_rejected_pod_wakes_a_pod_that_lacked_its_room() -> None:
    cluster = Cluster(node("n1", cpu="1"))
    framework = framework_of(cluster, POINTS, PLUGINS)
    now = [100.0]
    queue = queue_of(framework, lambda: now[0])
    cycle = cycle_over(cluster, framework, queue=queue)
    loop = Loop({"koord-scheduler": cycle}, cycle.cache, queue)

    first, second = cluster.info(pod("first", labels={"permit": "wait"})), cluster.info(pod("second"))
    for info in (first, second):
        queue.add(info)
        loop.work(queue.pop_run(1))
    assert first.assumed
    assert queue.counts()["unschedulable"] == 1  # second lacks the cpu that first holds
    now[0] += 5
    cycle.waiting.reject(first.uid, "Guard", "not after all")
    await until(lambda: not len(loop.binders["koord-scheduler"]))
    assert cycle.cache.pods == {}
    record = queue.record(first.uid)
    assert record is not None
    assert record.rejected_by == {"Guard"}  # and its own release did not wake it
    assert queue.counts() == {"active": 1, "backoff": 0, "unschedulable": 1, "gated": 0}
    assert queue.pop() is second


class Follower(Plugin):
    """Wants one pod to be next."""

    name = "Follower"
    chosen: PodInfo | None = None

    def next_pod(self) -> PodInfo | None:
        chosen, self.chosen = self.chosen, None
        return chosen


async def test_a_pod_that_a_plugin_wants_next_leaves_the_queue_at_once() -> None:
    cluster = Cluster(node("n1"))
    points = {**POINTS, "preEnqueue": ("Follower",)}
    framework = framework_of(cluster, points, {**PLUGINS, "Follower": Follower})
    queue = queue_of(framework)
    cycle = cycle_over(cluster, framework, queue=queue)
    registry = CollectorRegistry()
    metrics = SchedulerMetrics(registry)
    loop = Loop(
        {"koord-scheduler": cycle},
        cycle.cache,
        queue,
        taken=lambda seconds: metrics.next_pod.observe((), seconds),
    )
    first, between, chosen = (cluster.info(pod(name)) for name in ("first", "between", "chosen"))
    for info in (first, between, chosen):
        queue.add(info)
    follower = framework.plugins["Follower"]
    assert isinstance(follower, Follower)
    follower.chosen = chosen
    loop.work(queue.pop_run(1))
    assert [pod.assumed for pod in (first, between, chosen)] == [True, False, True]
    assert registry.get_sample_value("scheduler_next_pod_delete_from_queue_latency_count") == 1
    await until(lambda: not len(loop.binders["koord-scheduler"]))


async def test_a_pod_that_is_too_long_is_rejected_with_a_reason_until_it_is_shorter() -> None:
    cluster = Cluster(node("n1"))
    framework = framework_of(
        cluster, {**POINTS, "preEnqueue": ("SchedulingGates",)}, {**PLUGINS, "SchedulingGates": SchedulingGates}
    )
    queue = queue_of(framework)
    cycle = cycle_over(cluster, framework, queue=queue)
    reporter = MonitoringReporter()
    loop = Loop({"koord-scheduler": cycle}, cycle.cache, queue, reporter=reporter)
    short = pod("long")
    long = bounded(replace(short, metadata=replace(short.metadata, labels={f"l{i}": "" for i in range(20_000)})))
    before, after = cluster.info(long), cluster.info(short)
    queue.add(before)
    loop.work(queue.pop_run(1))
    assert reporter.reasons == [TOO_LONG_REASON]
    assert queue.counts() == {"active": 0, "backoff": 0, "unschedulable": 1, "gated": 0}
    queue.update(before, after)
    assert queue.counts()["unschedulable"] == 0
    queue.activate([after.key])
    loop.work(queue.pop_run(1))
    assert after.assumed
    await until(lambda: not len(loop.binders["koord-scheduler"]))
