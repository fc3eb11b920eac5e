"""Factories of the objects that the calculation reads: nodes, pods, reports. Amounts are texts (`"20"`, `"20G"`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from control.manager.noderesource.batch import batch_amounts
from control.manager.noderesource.columns import AmountColumns, StrategyColumns, StrategyValues
from control.manager.noderesource.fold import Row, charges, node_row
from control.manager.noderesource.mid import mid_amounts
from control.manager.noderesource.pods import pod_facts
from control.manager.noderesource.report import read_report
from control.manager.noderesource.reserved import node_facts
from control.manager.noderesource.units import ceil_units
from koordlet.api import names
from koordlet.api.core import Container, Node, NodeStatus, Pod, PodSpec, PodStatus, ResourceRequirements
from koordlet.api.crs.nodemetric import (
    HostApplicationMetricInfo,
    NodeMetric,
    NodeMetricInfo,
    NodeMetricStatus,
    PodMetricInfo,
    ReclaimableMetric,
    ResourceMap,
)
from koordlet.api.encoding.quantity import Quantity
from koordlet.api.encoding.wire import Time
from koordlet.api.meta import ObjectMeta
from koordlet.api.sloconfig.colocation import DEFAULT, ColocationStrategy

NOW = 1_800_000_000.0
PRIORITY = {"prod": 9500, "mid": 7500, "batch": 5500, "free": 3500, "none": 100}


def resources(cpu: str | None, memory: str | None) -> dict[str, Quantity]:
    resources = {"cpu": cpu, "memory": memory}
    return {name: Quantity(text) for name, text in resources.items() if text is not None}


def usage(cpu: str | None, memory: str | None) -> ResourceMap:
    return ResourceMap(resources=resources(cpu, memory))


def make_node(
    cpu: str = "100",
    memory: str = "120G",
    *,
    allocatable: tuple[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    name: str = "n1",
    extended: Mapping[str, str] | None = None,
) -> Node:
    more = {key: Quantity(text) for key, text in (extended or {}).items()}
    return Node(
        metadata=ObjectMeta(
            name=name, uid=f"uid-{name}", annotations=dict(annotations or {}), labels=dict(labels or {})
        ),
        status=NodeStatus(
            capacity={**resources(cpu, memory), **more},
            allocatable={**resources(*(allocatable or (cpu, memory))), **more},
        ),
    )


def make_pod(
    name: str,
    *requests: tuple[str, str],
    priority: str = "prod",
    qos: str | None = "LS",
    phase: str = "Running",
    numa: Sequence[int] | None = None,
    node: str = "n1",
) -> Pod:
    annotations = {}
    if numa is not None:
        listed = ",".join(f'{{"node":{zone}}}' for zone in numa)
        annotations[names.ANNOTATION_RESOURCE_STATUS] = f'{{"numaNodeResources":[{listed}]}}'
    return Pod(
        metadata=ObjectMeta(
            name=name,
            namespace="demo",
            uid=f"uid-{name}",
            labels={names.LABEL_QOS_CLASS: qos} if qos else {},
            annotations=annotations,
        ),
        spec=PodSpec(
            node_name=node,
            priority=PRIORITY[priority],
            containers=[
                Container(name=f"c{index}", resources=ResourceRequirements(requests=resources(*request)))
                for index, request in enumerate(requests)
            ],
        ),
        status=PodStatus(phase=phase),
    )


def pod_metric(
    name: str, cpu: str | None, memory: str | None, priority: str = "koord-prod", extensions: Any = None
) -> PodMetricInfo:
    return PodMetricInfo(
        name=name, namespace="demo", pod_usage=usage(cpu, memory), priority=priority, extensions=extensions
    )


def host_app(cpu: str, memory: str, priority: str) -> HostApplicationMetricInfo:
    return HostApplicationMetricInfo(name="app", usage=usage(cpu, memory), priority=priority)


def make_metric(
    *pods: PodMetricInfo,
    system: tuple[str, str] = ("7", "12G"),
    node_usage: tuple[str | None, str | None] = ("50", "50G"),
    host_apps: Sequence[HostApplicationMetricInfo] = (),
    reclaimable: tuple[str, str] | None = None,
    at: float | None = NOW,
    name: str = "n1",
    extensions: Any = None,
) -> NodeMetric:
    return NodeMetric(
        metadata=ObjectMeta(name=name),
        status=NodeMetricStatus(
            update_time=None if at is None else Time.from_unix(at),
            node_metric=NodeMetricInfo(node_usage=usage(*node_usage), system_usage=usage(*system)),
            pods_metric=list(pods),
            host_application_metric=list(host_apps),
            prod_reclaimable_metric=None if reclaimable is None else ReclaimableMetric(resource=usage(*reclaimable)),
            extensions=extensions,
        ),
    )


def strategy(**fields: Any) -> ColocationStrategy:
    """An enabled strategy over the defaults."""
    return msgspec.structs.replace(DEFAULT, enable=True, **fields)


def row_of(node: Node, pods: Sequence[Pod], metric: NodeMetric, *, strict: bool = False) -> Row:
    report = read_report(metric)
    assert report is not None
    facts = [pod_fact for pod_fact in map(pod_facts, pods) if pod_fact is not None]
    return node_row(node_facts(node), facts, report, charges(facts, report, strict=strict))


def batch_of(node: Node, pods: Sequence[Pod], metric: NodeMetric, how: ColocationStrategy, **more: Any) -> list[int]:
    """batch-cpu in milli-cores and batch-memory in bytes."""
    rows, settings = (
        AmountColumns.of([row_of(node, pods, metric, **more)]),
        StrategyColumns.of([StrategyValues.of(how)]),
    )
    return [int(amount) for amount in ceil_units(batch_amounts(rows, settings).amount)[0]]


def mid_of(node: Node, pods: Sequence[Pod], metric: NodeMetric, how: ColocationStrategy) -> list[int]:
    """mid-cpu in milli-cores and mid-memory in bytes."""
    rows, settings = AmountColumns.of([row_of(node, pods, metric)]), StrategyColumns.of([StrategyValues.of(how)])
    return [int(amount) for amount in ceil_units(mid_amounts(rows, settings).amount)[0]]
