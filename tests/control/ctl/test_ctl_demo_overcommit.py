"""The demo's own calculation of overcommitted resources: it must detect wrong or stale amounts of the manager."""

from __future__ import annotations

import pytest

from control.ctl.demo.overcommit import expected, matches_load, reports
from koordlet.api import names
from koordlet.api.core import Container, Node, NodeStatus, Pod, PodSpec, PodStatus, ResourceRequirements
from koordlet.api.crs.nodemetric import NodeMetric, NodeMetricInfo, NodeMetricStatus, PodMetricInfo, ResourceMap
from koordlet.api.encoding.quantity import Quantity
from koordlet.api.meta import ObjectMeta
from koordlet.api.pages.overcommit import OVERCOMMIT, Hold, OvercommitExplanation


def cpu(text: str) -> dict[str, Quantity]:
    return {"cpu": Quantity(text)}


def pod(name: str, request: str, priority: int) -> Pod:
    container = Container(name="c", resources=ResourceRequirements(requests=cpu(request)))
    meta = ObjectMeta(name=name, namespace="demo")
    return Pod(
        metadata=meta, spec=PodSpec(priority=priority, containers=[container]), status=PodStatus(phase="Running")
    )


PODS = [pod("web", "1", 9500), pod("rush", "500m", 9500), pod("burn", "1", 5500)]


def metric(system: str = "500m", **used: str) -> NodeMetric:
    info = NodeMetricInfo(system_usage=ResourceMap(resources=cpu(system)))
    pods = [
        PodMetricInfo(
            namespace="demo",
            name=name,
            pod_usage=ResourceMap(resources=cpu(amount)),
            priority="koord-batch" if name == "burn" else "koord-prod",
        )
        for name, amount in used.items()
    ]
    return NodeMetric(status=NodeMetricStatus(node_metric=info, pods_metric=pods))


def node(batch_cpu: str | None = None, percent: int = 100) -> Node:
    extended = {} if batch_cpu is None else {names.RESOURCE_BATCH_CPU: Quantity(batch_cpu)}
    explanation = OVERCOMMIT.text(OvercommitExplanation(hold={"cpu": Hold(percent=percent)}))
    return Node(
        metadata=ObjectMeta(name="n", annotations={names.ANNOTATION_OVERCOMMIT: explanation}),
        status=NodeStatus(capacity=cpu("2"), allocatable={**cpu("1800m"), **extended}),
    )


@pytest.mark.parametrize(
    ("report", "percent", "milli"),
    [
        (metric(web="200m", rush="100m", burn="1"), 100, 6000 - 500 - 300),
        (metric(web="200m", burn="1"), 100, 6000 - 500 - 200 - 500),
        (metric(web="200m", rush="100m", gone="50m"), 100, 6000 - 500 - 350),
        (metric("100m", web="200m", rush="100m"), 100, 6000 - 200 - 300),
        (metric(web="200m", rush="100m"), 50, 2600),
        (metric("9"), 100, 0),
    ],
    ids=["usage", "not measured yet", "gone", "reserved", "held", "nothing left"],
)
def test_the_formula_matches_the_manager(report: NodeMetric, percent: int, milli: int) -> None:
    assert expected(node(percent=percent), report, PODS) == milli


GI = 1 << 30


@pytest.mark.parametrize(
    ("lent", "good"),
    [("2600Mi", True), ("2400Mi", True), ("2Gi", False), ("4Gi", False), (None, False)],
)
def test_wrong_memory_is_detected(lent: str | None, good: bool) -> None:
    """65 % of 8 Gi minus 2 Gi of the system and 716 Mi of web."""
    memory, report = {"memory": Quantity("8Gi")}, metric(web="200m", rush="100m")
    info = report.status.node_metric
    assert info is not None
    info.system_usage.resources["memory"] = Quantity("2Gi")
    report.status.pods_metric[0].pod_usage.resources["memory"] = Quantity("716Mi")
    here = node("5200")
    here.status.capacity.update(memory)
    here.status.allocatable.update(memory)
    if lent is not None:
        here.status.allocatable[names.RESOURCE_BATCH_MEMORY] = Quantity(lent)
    assert expected(here, report, PODS, "memory") == 8 * GI * 65 // 100 - 2 * GI - (716 << 20)
    assert matches_load(here, report, PODS).ok is good


@pytest.mark.parametrize(
    ("have", "good"), [("5200", True), ("4800", True), ("4600", False), ("6000", False), (None, False)]
)
def test_wrong_cpu_is_detected(have: str | None, good: bool) -> None:
    assert matches_load(node(have), metric(web="200m", rush="100m"), PODS).ok is good


def test_whether_a_pod_is_measured() -> None:
    assert reports(metric(web="1"), "web")
    assert not reports(metric(web="1"), "rush")
