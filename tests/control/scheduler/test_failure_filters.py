"""Pluggable handling of failed attempts: who is asked in which order, and what then does not happen (spec 05 §5.6)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from control.scheduler.cycle.loop import Loop
from control.scheduler.framework.plugin import AttemptFailure, Plugin
from control.scheduler.framework.runtime import PluginRuntime
from control.scheduler.framework.timing import SAMPLE_INTERVAL, sampled
from control.scheduler.plugins.noderesourcesfit import NodeResourcesFit
from control.scheduler.plugins.prioritysort import PrioritySort
from control.scheduler.process.metrics import SchedulerMetrics
from control.scheduler.queue import QueueProfile
from control.scheduler.state.pods import PodInfo
from tests.control.scheduler.build import Cluster, node, pod
from tests.control.scheduler.test_loop import Follower, MonitoringReporter
from tests.control.scheduler.toys import cycle_over, framework_of, queue_of


class Recording(Plugin):
    """Notes what it is asked, and answers as it is told."""

    takes = after = False
    broken = False

    def __init__(self, args: Any, handle: Any) -> None:
        super().__init__(args, handle)
        self.calls: list[tuple[str, AttemptFailure]] = []

    def pre_bind(self, *args: Any) -> Any:
        raise NotImplementedError

    def take_over_failure(self, failure: AttemptFailure) -> bool:
        self.calls.append(("take over", failure))
        if self.broken:
            raise ZeroDivisionError
        return self.takes

    def after_failure(self, failure: AttemptFailure) -> bool:
        self.calls.append(("after", failure))
        return self.after


class First(Recording):
    name = "First"


class Second(Recording):
    name = "Second"


class CountingReporter(MonitoringReporter):
    """Counts what users are told."""

    def __init__(self) -> None:
        super().__init__()
        self.told = 0

    def failed(self, *args: Any) -> None:
        super().failed(*args)
        self.told += 1

    def taken_over(self, pod: PodInfo) -> None:
        self.monitor.complete(pod)


class Scene:
    """A pod that fits nowhere, and two plugins with failure filters."""

    def __init__(self) -> None:
        cluster = Cluster(node("n1", cpu="1"))
        points = {"queueSort": ("PrioritySort",), "filter": ("NodeResourcesFit",), "preBind": ("First", "Second")}
        plugins = {plugin.name: plugin for plugin in (PrioritySort, NodeResourcesFit, First, Second)}
        framework = framework_of(cluster, points, plugins)
        self.queue = queue_of(framework)
        cycle = cycle_over(cluster, framework, queue=self.queue)
        self.reporter = CountingReporter()
        self.loop = Loop({"koord-scheduler": cycle}, cycle.cache, self.queue, reporter=self.reporter)
        first, second = framework.plugins["First"], framework.plugins["Second"]
        assert isinstance(first, First) and isinstance(second, Second)
        self.first, self.second = first, second
        self.pod = cluster.info(pod("big", cpu="2"))

    def fail(self) -> None:
        self.queue.add(self.pod)
        self.loop.work(self.queue.pop_run(1))
        assert len(self.reporter.monitor) == 0

    def asked(self, plugin: Recording) -> list[str]:
        return [call for call, _ in plugin.calls]


def test_without_an_answer_the_scheduler_handles_the_failure() -> None:
    scene = Scene()
    scene.fail()
    assert (scene.reporter.told, scene.queue.counts()["unschedulable"]) == (1, 1)
    assert scene.asked(scene.first) == scene.asked(scene.second) == ["take over", "after"]
    (_, failure), _ = scene.first.calls
    assert (failure.pod, failure.rejected_by) == (scene.pod, frozenset({"NodeResourcesFit"}))
    assert "Insufficient cpu" in failure.message


def test_the_first_that_takes_over_ends_the_handling_and_all_are_told_after() -> None:
    scene = Scene()
    scene.first.takes = True
    scene.fail()
    assert scene.reporter.told == 0
    assert sum(scene.queue.counts().values()) == 0
    assert scene.asked(scene.first) == ["take over", "after"]
    assert scene.asked(scene.second) == ["after"]
    scene.queue.requeue(scene.pod, ("NodeResourcesFit",))  # the plugin returns the pod when it wants
    assert scene.queue.counts()["unschedulable"] == 1


def test_a_filter_may_requeue_the_pod_at_once() -> None:
    class Requeuing(First):
        def take_over_failure(self, failure: AttemptFailure) -> bool:
            self.runtime.queue.requeue(failure.pod)
            return True

    scene = Scene()
    plugin = Requeuing(None, scene.first.handle)
    plugin.connect(PluginRuntime(queue=scene.queue))
    framework = scene.loop.cycles["koord-scheduler"].framework
    framework.take_over_failure = (plugin,)
    scene.fail()
    assert (scene.reporter.told, scene.queue.counts()["backoff"]) == (0, 1)


def test_the_first_that_returns_true_after_a_failure_is_the_last() -> None:
    scene = Scene()
    scene.first.after = True
    scene.fail()
    assert scene.asked(scene.second) == ["take over"]


def test_a_broken_filter_loses_no_pod() -> None:
    scene = Scene()
    scene.first.broken = True
    scene.fail()
    assert (scene.reporter.told, scene.queue.counts()["unschedulable"]) == (1, 1)
    assert scene.asked(scene.second) == ["take over", "after"]


@pytest.mark.parametrize("point", ["PreEnqueue", "NextPod"])
def test_calls_outside_cycles_are_sampled(point: str) -> None:
    """One call in ten has its duration in the metric of plugins."""

    class Gate(Follower):
        name = "Gate"

    registry = CollectorRegistry()
    timed = sampled(SchedulerMetrics(registry).plugins.observe)
    cluster = Cluster(node("n1"))
    points = {"queueSort": ("PrioritySort",), "preEnqueue": ("Gate",)}
    framework = framework_of(cluster, points, {"PrioritySort": PrioritySort, "Gate": Gate})
    gate, sort = framework.plugins["Gate"], framework.plugins["PrioritySort"]
    calls: dict[str, Callable[[], object]] = {
        "PreEnqueue": lambda: profile.gates[0][1](info),
        "NextPod": timed(gate, "NextPod", gate.next_pod),
    }
    profile = QueueProfile.of(sort, [gate], [gate], timed)
    info = cluster.info(pod("p"))
    for _ in range(2 * SAMPLE_INTERVAL):
        calls[point]()
    labels = {"plugin": "Gate", "extension_point": point, "status": "Success"}
    assert registry.get_sample_value("scheduler_plugin_execution_duration_seconds_count", labels) == 2
