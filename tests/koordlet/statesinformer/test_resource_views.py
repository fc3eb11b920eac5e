"""Batch and mid resources as Prometheus shows them (spec 02 §10): right units, nothing of what is gone."""

from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest

from koordlet.api.core import (
    Container,
    ContainerStatus,
    Node,
    NodeStatus,
    Pod,
    PodSpec,
    PodStatus,
    ResourceRequirements,
)
from koordlet.api.encoding.quantity import Quantity
from koordlet.api.meta import ObjectMeta
from koordlet.prometheus import Registries
from koordlet.statesinformer.pods.informer import describe
from koordlet.statesinformer.pods.model import Workloads
from koordlet.statesinformer.resourceviews import attach_resource_views
from koordlet.system.cgroup.naming import CgroupDriver

BATCH_CPU, BATCH_MEMORY = "kubernetes.io/batch-cpu", "kubernetes.io/batch-memory"
MID_CPU, MID_MEMORY = "kubernetes.io/mid-cpu", "kubernetes.io/mid-memory"


def amounts(texts: dict[str, str]) -> dict[str, Quantity]:
    return {name: Quantity(text) for name, text in texts.items()}


def pod(uid: str, *, requests: dict[str, str], limits: dict[str, str], running: bool = True) -> Any:
    container = Container(
        name="main", resources=ResourceRequirements(requests=amounts(requests), limits=amounts(limits))
    )
    statuses = [ContainerStatus(name="main", container_id=f"containerd://{uid}")] if running else []
    return describe(
        Pod(
            metadata=ObjectMeta(name=f"pod-{uid}", namespace="ns", uid=uid),
            spec=PodSpec(containers=[container]),
            status=PodStatus(qos_class="BestEffort", container_statuses=statuses),
        ),
        CgroupDriver.SYSTEMD,
    )


class Shown:
    """The two registries over states that tests replace."""

    def __init__(self) -> None:
        self.states = SimpleNamespace(node=SimpleNamespace(object=None), workloads=Workloads())
        self.registries = Registries()
        attach_resource_views(self.states, self.registries)  # type: ignore[arg-type]

    def pods(self, *metas: Any) -> None:
        self.states.workloads = Workloads(1, MappingProxyType({meta.uid: meta for meta in metas}))

    def node(self, **allocatable: str) -> None:
        self.registries.node = "n"
        status = NodeStatus(allocatable=amounts({k.replace("_", "-"): v for k, v in allocatable.items()}))
        self.states.node.object = Node(metadata=ObjectMeta(name="n"), status=status)

    def rows(self, name: str) -> dict[tuple[str, ...], float]:
        return {
            tuple(sample.labels.values()): sample.value
            for family in self.registries.external.collect()
            if family.name == f"koordlet_{name}"
            for sample in family.samples
        }


@pytest.fixture
def shown() -> Shown:
    return Shown()


def test_requests_and_limits_have_the_units_of_their_resources(shown: Shown) -> None:
    shown.registries.node = "n"
    shown.pods(
        pod("a", requests={BATCH_CPU: "1500", BATCH_MEMORY: "1Gi", "cpu": "1"}, limits={BATCH_CPU: "2k"}),
        pod("b", requests={MID_CPU: "500"}, limits={MID_MEMORY: "1M"}),
    )
    a, b = (("a", "pod-a", "ns", "containerd://a", "main"), ("b", "pod-b", "ns", "containerd://b", "main"))
    assert shown.rows("container_resource_requests") == {
        ("n", BATCH_CPU, "integer", *a): 1500,
        ("n", BATCH_MEMORY, "byte", *a): 1 << 30,
        ("n", MID_CPU, "integer", *b): 500,
    }
    assert shown.rows("container_resource_limits") == {
        ("n", BATCH_CPU, "integer", *a): 2000,
        ("n", MID_MEMORY, "byte", *b): 1_000_000,
    }


def test_deleted_and_unknown_pods_have_no_series(shown: Shown) -> None:
    shown.registries.node = "n"
    asks = {BATCH_CPU: "1000"}
    shown.pods(pod("a", requests=asks, limits={}), pod("b", requests=asks, limits={}, running=False))
    assert {labels[3] for labels in shown.rows("container_resource_requests")} == {"a"}, "b has no container status"
    shown.pods()
    assert shown.rows("container_resource_requests") == {}


def test_allocatable_of_the_node(shown: Shown) -> None:
    assert shown.rows("node_resource_allocatable") == {}, "no Node was seen"
    shown.node()
    assert shown.rows("node_resource_allocatable") == {}, "nothing is allocatable at all"
    shown.states.node.object.status.allocatable = amounts({"cpu": "8", BATCH_CPU: "6500", MID_MEMORY: "2Gi"})
    assert shown.rows("node_resource_allocatable") == {
        ("n", BATCH_CPU, "integer"): 6500,
        ("n", BATCH_MEMORY, "byte"): 0,
        ("n", MID_CPU, "integer"): 0,
        ("n", MID_MEMORY, "byte"): 2 << 30,
    }


def test_there_are_no_samples_before_the_node_is_known(shown: Shown) -> None:
    shown.pods(pod("a", requests={BATCH_CPU: "1000"}, limits={}))
    assert [family for family in shown.registries.external.collect() if family.samples] == []
