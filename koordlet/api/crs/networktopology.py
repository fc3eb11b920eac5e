"""ClusterNetworkTopology (scheduling.koordinator.sh/v1alpha1): layers of the network, from node labels.

Cluster scoped; only the object named `default` is used. The scheduler writes the status (spec 01 §3.12).
"""

from typing import Annotated

import msgspec

from koordlet.api.encoding.base import Struct
from koordlet.api.encoding.fields import Int32, doc
from koordlet.api.meta import ApiObject

DEFAULT_NAME = "default"
NODE_LAYER = "NodeTopologyLayer"
CLUSTER_LAYER = "ClusterTopologyLayer"


class NetworkTopologyLayer(Struct):
    """One layer, and the node labels that name a node's element in it."""

    label_key: Annotated[list[str], doc("Node labels that name the element; the first that is not empty wins.")] = []
    topology_layer: Annotated[str, doc("Name of the layer; NodeTopologyLayer is the leaf.")]
    parent_topology_layer: Annotated[str, doc("Name of the layer above.")] = ""


class ClusterNetworkTopologySpec(Struct):
    """`spec` of a ClusterNetworkTopology."""

    network_topology_spec: Annotated[list[NetworkTopologyLayer], doc("Layers, from the node upwards.")]


class TopologyInfo(Struct):
    """An element of the tree."""

    topology_layer: Annotated[str, doc("Layer of the element.")] = ""
    topology_name: Annotated[str, doc("Name of the element.")] = ""


class NetworkTopologyDetail(Struct):
    """An element of the tree, with its parent and children."""

    topology_info: Annotated[TopologyInfo, doc("The element.")]
    parent_topology_info: Annotated[TopologyInfo | None, doc("The element above.")] = None
    child_topology_layer: Annotated[str, doc("Layer of the elements below.")] = ""
    child_topology_names: Annotated[list[str], doc("Names of the elements below; nodes are not listed.")] = []
    node_num: Annotated[Int32, doc("Number of nodes under the element.")]


class ClusterNetworkTopologyStatus(Struct):
    """`status` of a ClusterNetworkTopology."""

    detail_status: Annotated[list[NetworkTopologyDetail], doc("Elements in depth-first order, children by name.")] = []


class ClusterNetworkTopology(ApiObject, api_version="scheduling.koordinator.sh/v1alpha1"):
    """The network of the cluster as a tree."""

    spec: Annotated[ClusterNetworkTopologySpec, doc("Layers of the network.")]
    status: Annotated[ClusterNetworkTopologyStatus, doc("The tree computed from node labels.")] = msgspec.field(
        default_factory=ClusterNetworkTopologyStatus
    )
