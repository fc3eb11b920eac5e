"""Plugins are timed in every tenth cycle, and evaluations are counted in all cycles (spec 05 §16.2)."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from control.scheduler.cycle.cycle import Cycle
from control.scheduler.cycle.failures import FitError
from control.scheduler.cycle.placement import CycleFailed
from control.scheduler.framework.plugin import CycleState, Plugin, PostFilterResult, PreFilterResult
from control.scheduler.framework.profile import Framework
from control.scheduler.framework.status import SKIP, SUCCESS, PluginStatus, unschedulable
from control.scheduler.framework.timing import SAMPLE_INTERVAL, PluginTimer, SecondsHistogram
from control.scheduler.framework.waitingpods import WaitingPods
from control.scheduler.process.metrics import SchedulerMetrics, exponential
from control.scheduler.state.cache import Cache
from control.scheduler.state.columns import RowArray
from control.scheduler.state.pods import PodInfo
from koordlet.api.core import Pod
from koordlet.app.clock import SYSTEM_CLOCK
from tests.control.scheduler.build import Cluster, node, pod
from tests.control.scheduler.toys import POINTS, TOYS


class Everywhere(Plugin):
    """Works at the points that answer otherwise than with a status."""

    name = "Everywhere"

    def before_pre_filter(self, state: CycleState, pod: PodInfo) -> PluginStatus:
        return SUCCESS

    def pre_filter(self, state: CycleState, pod: PodInfo) -> PreFilterResult:
        return PreFilterResult(SKIP)

    def after_pre_filter(self, state: CycleState, pod: PodInfo, rows: RowArray | None) -> PluginStatus:
        return SUCCESS

    def find_one_node(self, state: CycleState, pod: PodInfo, rows: RowArray | None) -> tuple[PluginStatus, int]:
        return SKIP, -1

    def prefer_nodes(self, state: CycleState, pod: PodInfo, rows: RowArray | None) -> Sequence[int]:
        return ()

    def post_filter(self, state: CycleState, pod: PodInfo, failure: Any) -> PostFilterResult:
        return PostFilterResult(unschedulable("no"))

    def after_post_filter(self, state: CycleState, pod: PodInfo, failure: Any, result: PostFilterResult | None) -> None:
        return None

    def unreserve(self, state: CycleState, pod: PodInfo, row: int) -> None:
        return None

    def resize_pod(self, state: CycleState, pod: PodInfo, row: int) -> PluginStatus:
        return SUCCESS


def measured(cluster: Cluster, registry: CollectorRegistry, points: Mapping[str, Sequence[str]] = POINTS) -> Cycle:
    framework = Framework(cluster.handle, points, {**TOYS, Everywhere.name: Everywhere})
    metrics = SchedulerMetrics.of(registry)
    ticks = itertools.count()
    timer = PluginTimer(framework, metrics.plugins, metrics.points, lambda: float(next(ticks)))
    cycle = Cycle(framework, Cache(cluster.table, cluster.shapes), WaitingPods(SYSTEM_CLOCK), timer=timer)
    metrics.evaluations.add(framework, cycle.evaluations)
    return cycle


def test_the_status_of_every_extension_point_is_observed() -> None:
    registry, cluster = CollectorRegistry(), Cluster(node("a"))
    points = {**POINTS, "preFilter": ("Everywhere",), "postFilter": ("Everywhere",), "reserve": ("Everywhere", "Guard")}
    cycle = measured(cluster, registry, points)
    for more in ({"cpu": "10m"}, {"cpu": "100"}, {"labels": {"reserve": "no"}}):
        for _ in range(SAMPLE_INTERVAL):  # the last of them is measured
            with suppress(FitError, CycleFailed):
                cycle.place(cluster.info(pod(**more)))
    statuses = {
        (sample.labels["extension_point"], sample.labels["status"])
        for family in registry.collect()
        for sample in family.samples
        if sample.name == "scheduler_plugin_execution_duration_seconds_count"
        and sample.labels["plugin"] == "Everywhere"
    }
    assert statuses == {
        ("BeforePreFilter", "Success"),
        ("PreFilter", "Skip"),
        ("AfterPreFilter", "Success"),
        ("FindOneNodePlugin", "Skip"),
        ("PreferNodesPlugin", "Success"),
        ("PostFilter", "Unschedulable"),
        ("AfterPostFilter", "Success"),
        ("Unreserve", "Success"),
        ("ResizePod", "Success"),
    }


def test_every_tenth_cycle_is_measured_without_changing_plugins() -> None:
    registry, cluster = CollectorRegistry(), Cluster(node("a"), node("b"))
    cycle = measured(cluster, registry)
    own = {name: dict(vars(plugin)) for name, plugin in cycle.framework.plugins.items()}
    marks = [cycle.place(cluster.info(pod(cpu="10m"))).state.measured for _ in range(2 * SAMPLE_INTERVAL)]
    assert [at for at, mark in enumerate(marks, 1) if mark] == [SAMPLE_INTERVAL, 2 * SAMPLE_INTERVAL]
    assert {name: set(vars(plugin)) for name, plugin in cycle.framework.plugins.items()} == {
        name: set(attributes) for name, attributes in own.items()
    }
    labels = {"plugin": "Guard", "extension_point": "Reserve", "status": "Success"}
    assert registry.get_sample_value("scheduler_plugin_execution_duration_seconds_count", labels) == 2
    assert registry.get_sample_value("scheduler_plugin_execution_duration_seconds_sum", labels) == 2
    # Fits, Crowd and ByRow score in each of the two, every one for a tick.
    point = {"extension_point": "Score", "status": "Success", "profile": "koord-scheduler"}
    assert registry.get_sample_value("scheduler_framework_extension_point_duration_seconds_count", point) == 2
    assert registry.get_sample_value("scheduler_framework_extension_point_duration_seconds_sum", point) == 6


@pytest.mark.parametrize(
    ("subject", "point", "status"),
    [
        (pod("big", cpu="100"), "Filter", "Unschedulable"),
        (pod("refused", labels={"reserve": "no"}), "Reserve", "Unschedulable"),
        (pod("parked", labels={"permit": "wait"}), "Permit", "Wait"),
    ],
    ids=["filter", "reserve", "permit"],
)
async def test_the_status_of_a_point_is_the_one_that_ended_it(subject: Pod, point: str, status: str) -> None:
    registry, cluster = CollectorRegistry(), Cluster(node("a"))
    cycle = measured(cluster, registry)
    for _ in range(SAMPLE_INTERVAL - 1):
        cycle.place(cluster.info(pod(cpu="10m")))
    with suppress(FitError, CycleFailed):
        cycle.place(cluster.info(subject))
    labels = {"extension_point": point, "status": status, "profile": "koord-scheduler"}
    assert registry.get_sample_value("scheduler_framework_extension_point_duration_seconds_count", labels) == 1


def test_evaluations_are_counted_for_every_attempt() -> None:
    registry, cluster = CollectorRegistry(), Cluster(node("a", cpu="2"), node("b", cpu="2"))
    cycle = measured(cluster, registry)
    for _ in range(4):
        cycle.place(cluster.info(pod(cpu="1")))
    with pytest.raises(FitError):
        cycle.place(cluster.info(pod(cpu="5")))

    def count(plugin: str, point: str) -> float | None:
        labels = {"plugin": plugin, "extension_point": point, "profile": "koord-scheduler"}
        return registry.get_sample_value("scheduler_plugin_evaluation_total", labels)

    assert count("Cordon", "Filter") == 5
    assert count("Crowd", "Score") == 3  # the fourth pod had one node left to go to
    assert count("Guard", "Filter") is None


def test_buckets_include_their_upper_bound() -> None:
    registry = CollectorRegistry()
    histogram = SecondsHistogram(registry, "x", "X.", ("a",), exponential(1, 2, 3))
    for seconds in (0.5, 1, 3, 9):
        histogram.observe(("v",), seconds)
    expected = {"1.0": 2, "2.0": 2, "4.0": 3, "+Inf": 4}
    assert {le: registry.get_sample_value("x_bucket", {"a": "v", "le": le}) for le in expected} == expected
    assert registry.get_sample_value("x_sum", {"a": "v"}) == 13.5
