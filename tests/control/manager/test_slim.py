"""Slimmed cached objects are smaller and equal."""

from __future__ import annotations

from typing import Any

from control.manager.caches import KINDS
from control.slim import EMPTY_LIST, EMPTY_MAP, slimmed
from koordlet.api.core import Node, Pod
from koordlet.api.crs.nodemetric import NodeMetric
from koordlet.api.encoding.wire import convert, encode

POD: dict[str, Any] = {
    "metadata": {"name": "a", "namespace": "demo", "labels": {"app": "x"}, "annotations": {"long": "y" * 500}},
    "spec": {
        "nodeName": "n1",
        "containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}, {"name": "d"}],
        "tolerations": [{"key": "k", "operator": "Exists"}],
    },
    "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
}
METRIC: dict[str, Any] = {
    "metadata": {"name": "n1"},
    "status": {
        "updateTime": "2026-01-01T00:00:00Z",
        "nodeMetric": {"nodeUsage": {"resources": {"cpu": "1"}}, "aggregatedNodeUsages": [{"duration": "5m"}]},
        "podsMetric": [{"name": "a", "namespace": "demo", "podUsage": {"resources": {"cpu": "1"}}}],
    },
}


def test_slimmed_objects_are_equal() -> None:
    for kind, body in ((Pod, POD), (Node, {"metadata": {"name": "n1", "labels": {"a": "b"}}}), (NodeMetric, METRIC)):
        assert encode(slimmed(convert(body, kind))) == encode(convert(body, kind))


def test_empty_containers_and_repeated_texts_are_shared() -> None:
    pod, other = (slimmed(convert(POD, Pod)) for _ in range(2))
    assert pod.spec.volumes is other.spec.volumes is EMPTY_LIST
    assert pod.spec.containers[1].resources.limits is EMPTY_MAP
    assert pod.metadata.namespace is other.metadata.namespace
    assert next(iter(pod.metadata.labels)) is next(iter(other.metadata.labels))


def test_a_cached_report_keeps_nodes_and_pods_but_no_windows() -> None:
    kept = KINDS[NodeMetric].trim(convert(METRIC, NodeMetric))
    assert kept.status.node_metric.aggregated_node_usages == []
    assert kept.status.node_metric.node_usage.resources
    assert [pod.name for pod in kept.status.pods_metric] == ["a"]
    assert KINDS[NodeMetric].trim(NodeMetric()).status.node_metric is None
