"""LoadAwareScheduling in whole cycles: remembered answers follow metrics, reservations and time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from control.scheduler.cycle.failures import FitError
from control.scheduler.plugins.loadaware import LoadAwareScheduling
from tests.control.scheduler.build import Cluster, node, pod
from tests.control.scheduler.loadreports import NOW, metric
from tests.control.scheduler.toys import cycle_of
from tests.fakeclock import FakeClock

NAME = "LoadAwareScheduling"
POINTS: Mapping[str, Any] = dict.fromkeys(("preFilter", "filter", "score", "reserve"), (NAME,))


def world() -> tuple[Any, LoadAwareScheduling, FakeClock]:
    cluster = Cluster(*(node(name, "10", "100Gi") for name in ("a", "b", "c")))
    clock = FakeClock(NOW)
    cluster.use(clock=clock)
    cycle = cycle_of(cluster, POINTS, {NAME: LoadAwareScheduling})
    plugin = cycle.framework.plugins[NAME]
    assert isinstance(plugin, LoadAwareScheduling)
    for name in ("a", "b", "c"):
        plugin.set_metric(metric(name, "1", "1Gi"))

    def place() -> str:
        return cycle.place(cluster.info(pod(cpu="1", memory="1Gi"))).node

    return place, plugin, clock


def test_equal_pods_spread_over_the_remaining_nodes() -> None:
    place, _, _ = world()
    assert sorted(place() for _ in range(9)) == ["a"] * 3 + ["b"] * 3 + ["c"] * 3


def test_a_metric_moves_the_next_pod() -> None:
    place, plugin, _ = world()
    place()
    plugin.set_metric(metric("a", "5", "1Gi"))
    plugin.set_metric(metric("b", "7", "1Gi"))
    assert {place(), place()} == {"c"}
    plugin.set_metric(metric("c", "6", "1Gi"))
    plugin.set_metric(metric("b", "1", "1Gi"))
    assert place() == "b"


def test_reservations_alone_fill_nodes_up_to_the_threshold() -> None:
    place, _, _ = world()
    placed = 0
    with pytest.raises(FitError) as failure:
        while placed < 100:
            place()
            placed += 1
    assert placed == 18  # 1 of 10 cores is used; six pods of 0.85 make 61 percent, seven would make 70 of 65
    assert failure.value.text() == "0/3 nodes are available: 3 node(s) cpu usage exceed threshold."


def test_time_alone_closes_nodes_and_a_report_opens_them() -> None:
    place, plugin, clock = world()
    place()
    clock.jump(180)
    with pytest.raises(FitError) as failure:
        place()
    assert failure.value.text() == "0/3 nodes are available: 3 node(s) nodeMetric expired."
    plugin.set_metric(metric("b", "1", "1Gi", at=NOW + 180))
    assert place() == "b"
