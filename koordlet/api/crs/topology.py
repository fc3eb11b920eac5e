"""NodeResourceTopology (topology.node.k8s.io): NUMA zones of one node.

Cluster scoped, named like the node, no `spec`. Both versions are served without conversion; all components use
v1alpha1. `topology_policies` may be missing on input, because an object written as v1alpha2 may lack it; it is always
written (spec 01 §3.11).
"""

from typing import Annotated

from koordlet.api.encoding.base import Struct
from koordlet.api.encoding.fields import doc, written
from koordlet.api.encoding.quantity import Quantity
from koordlet.api.meta import ApiObject


class CostInfo(Struct):
    """The cost of reaching another zone."""

    name: Annotated[str, doc("The other zone.")]
    value: Annotated[int, doc("Cost; smaller is closer.")]


class AttributeInfo(Struct):
    """A named value."""

    name: Annotated[str, doc("Name of the attribute.")]
    value: Annotated[str, doc("Value of the attribute.")]


class ResourceInfo(Struct):
    """One resource of a zone."""

    name: Annotated[str, doc("Name of the resource.")]
    capacity: Annotated[Quantity, doc("Total amount.")]
    allocatable: Annotated[Quantity, doc("Amount that pods can use.")]
    available: Annotated[Quantity, doc("Amount that pods can still use.")]


class Zone(Struct):
    """A zone. Consumers ignore zones whose type is not Node or whose name is not node-<number>."""

    name: Annotated[str, doc("Name of the zone.")]
    type: Annotated[str, doc("Type of the zone.")]
    parent: Annotated[str, doc("Zone that contains this one.")] = ""
    costs: Annotated[list[CostInfo], doc("Costs of reaching other zones.")] = []
    attributes: Annotated[list[AttributeInfo], doc("Attributes of the zone.")] = []
    resources: Annotated[list[ResourceInfo], doc("Resources of the zone.")] = []


class NodeResourceTopology(ApiObject, api_version="topology.node.k8s.io/v1alpha1"):
    """NUMA zones of a node (v1alpha1)."""

    topology_policies: Annotated[list[str], doc("Topology policies of the kubelet.", required=True)] = written(list)
    zones: Annotated[list[Zone], doc("Zones of the node.")]


class NodeResourceTopologyV1Alpha2(ApiObject, api_version="topology.node.k8s.io/v1alpha2", kind="NodeResourceTopology"):
    """NUMA zones of a node (v1alpha2)."""

    topology_policies: Annotated[list[str], doc("Deprecated: topology policies of the kubelet.")] = []
    zones: Annotated[list[Zone], doc("Zones of the node.")]
    attributes: Annotated[list[AttributeInfo], doc("Attributes of the node.")] = []
