"""When NodeResourceTopology is written, and exactly what."""

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from koordlet.api import names
from koordlet.api.core import Node
from koordlet.api.crs.topology import CostInfo, NodeResourceTopology, ResourceInfo, Zone
from koordlet.api.encoding.quantity import Quantity
from koordlet.api.meta import ObjectMeta
from koordlet.statesinformer.nrt.patch import new_object, patch_for
from koordlet.statesinformer.nrt.pools import SharePools
from koordlet.statesinformer.nrt.status import TopologyStatus

GPU = "koordinator.sh/gpu"
KEYS = (names.ANNOTATION_CPU_TOPOLOGY, names.ANNOTATION_CPU_SHARED_POOLS)
NODE = Node(metadata=ObjectMeta(name="n", uid="node-uid"))


def resource(name: str, capacity: str, allocatable: str | None = None) -> ResourceInfo:
    left = Quantity(allocatable or capacity)
    return ResourceInfo(name=name, capacity=Quantity(capacity), allocatable=left, available=left)


def zone(number: int, *resources: ResourceInfo) -> Zone:
    ours = resources or (resource("cpu", "4", "3500m"), resource("memory", "1Gi"))
    return Zone(name=f"node-{number}", type="Node", resources=list(ours))


def status(zones: int = 2, policy: str = "None", label: str = "", **annotations: Any) -> TopologyStatus:
    texts = {key: json.dumps({"a": 1, "b": 2}) for key in KEYS} | annotations
    return TopologyStatus(texts, label, policy, tuple(zone(i) for i in range(zones)), SharePools([], []))


def stored(like: TopologyStatus | None = None) -> NodeResourceTopology:
    topology = copy.deepcopy(new_object(NODE, like or status()))
    topology.metadata.resource_version = "7"
    return topology


def test_the_object_belongs_to_the_node() -> None:
    created = new_object(NODE, status(label="true"))
    (owner,) = created.metadata.owner_references
    assert (owner.kind, owner.name, owner.uid, owner.controller, owner.block_owner_deletion) == (
        "Node", "n", "node-uid", True, True,
    )  # fmt: skip
    assert created.metadata.labels == {
        names.LABEL_MANAGED_BY: "Koordinator",
        names.LABEL_ENABLE_NUMA_RESERVATION: "true",
    }


def test_nothing_to_write() -> None:
    assert patch_for(stored(), status()) == {}


KEY = KEYS[0]


def _annotate(topology: NodeResourceTopology, text: str) -> None:
    topology.metadata.annotations[KEY] = text


SAME = {
    "annotations in another order": lambda topology: _annotate(topology, '{"b": 2, "a": 1}'),
    "another annotation": lambda topology: topology.metadata.annotations.update({"whose": "not ours"}),
    "another label": lambda topology: topology.metadata.labels.update({"whose": "not ours"}),
    "a device in a zone": lambda topology: topology.zones[0].resources.append(resource(GPU, "100", "50")),
    "costs of a zone": lambda topology: topology.zones[0].costs.append(CostInfo(name="node-1", value=20)),
    "resources in another order": lambda topology: topology.zones[0].resources.reverse(),
    "an amount in another form": lambda topology: topology.zones[0].resources.__setitem__(
        0, resource("cpu", "4000m", "3.5")
    ),
}


@pytest.mark.parametrize("change", SAME.values(), ids=SAME)
def test_differences_that_cause_no_write(change: Callable[..., Any]) -> None:
    topology = stored()
    change(topology)
    assert patch_for(topology, status()) == {}


ZONES = "zones"
DIFFERENT = {
    "an annotation": (lambda topology: _annotate(topology, '{"a":2}'), {"annotations"}),
    "an annotation that is no JSON": (lambda topology: _annotate(topology, "{"), {"annotations"}),
    "an annotation missing": (lambda topology: topology.metadata.annotations.pop(KEY), {"annotations"}),
    "managed-by": (lambda topology: topology.metadata.labels.pop(names.LABEL_MANAGED_BY), {"labels"}),
    "a label too many": (
        lambda topology: topology.metadata.labels.update({names.LABEL_ENABLE_NUMA_RESERVATION: "true"}), {"labels"},
    ),
    "the policy": (lambda topology: topology.topology_policies.append("None"), {"topologyPolicies"}),
    "a zone too many": (lambda topology: topology.zones.append(zone(2)), {ZONES}),
    "a zone missing": (lambda topology: topology.zones.pop(), {ZONES}),
    "zones in another order": (lambda topology: topology.zones.reverse(), {ZONES}),
    "the type of a zone": (lambda topology: setattr(topology.zones[0], "type", "Socket"), {ZONES}),
    "capacity, as the original lost it": (
        lambda topology: topology.zones[0].resources.__setitem__(0, resource("cpu", "3500m")), {ZONES},
    ),
    "a resource missing": (lambda topology: topology.zones[0].resources.pop(), {ZONES}),
    "a resource of ours too many": (
        lambda topology: topology.zones[0].resources.append(resource("hugepages-2Mi", "0")), {ZONES},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("change", "parts"), DIFFERENT.values(), ids=DIFFERENT)
def test_differences_that_are_written(change: Callable[..., Any], parts: set[str]) -> None:
    topology = stored()
    change(topology)
    patch = patch_for(topology, status())
    assert patch["metadata"].pop("resourceVersion") == "7"
    assert {*patch["metadata"], *patch} - {"metadata"} == parts
    if "annotations" in parts:
        assert patch["metadata"]["annotations"] == {KEY: status().annotations[KEY]}


def test_an_absent_label_is_removed() -> None:
    patch = patch_for(stored(status(label="true")), status())
    assert patch["metadata"]["labels"] == {names.LABEL_ENABLE_NUMA_RESERVATION: None}


def test_other_resources_of_a_zone_are_kept() -> None:
    topology = stored()
    topology.zones[0].resources = [resource(GPU, "100", "50"), resource("cpu", "1")]
    topology.zones[0].costs = [CostInfo(name="node-1", value=20)]
    topology.zones.append(zone(9, resource(GPU, "1")))
    first, second = patch_for(topology, status())["zones"]
    assert [zone_resource["name"] for zone_resource in first["resources"]] == ["cpu", GPU, "memory"]
    assert first["resources"][1] == {"name": GPU, "capacity": "100", "allocatable": "50", "available": "50"}
    assert first["resources"][0] == {"name": "cpu", "capacity": "4", "allocatable": "3500m", "available": "3500m"}
    assert first["costs"] == [{"name": "node-1", "value": 20}]
    assert second["name"] == "node-1"
