"""The network as a tree of domains with nodes as leaves, built from node labels (spec 05 §10.2). Pure.

A domain is identified by its full path, so equal names below different parents are different domains (spec 05 §17,
D17).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from koordlet.api.core import Node
from koordlet.api.crs.networktopology import (
    CLUSTER_LAYER,
    NODE_LAYER,
    ClusterNetworkTopology,
    NetworkTopologyLayer,
)


@dataclass(eq=False)
class NetworkDomain:
    """A domain. A leaf is a node and has its name. `depth`: 0 is the root."""

    layer: str
    name: str
    parent: NetworkDomain | None = None
    depth: int = 0
    children: dict[str, NetworkDomain] = field(default_factory=dict)

    @property
    def leaf(self) -> bool:
        return self.layer == NODE_LAYER

    def lineage(self) -> Iterator[NetworkDomain]:
        """The domain and its ancestors, nearest first."""
        domain: NetworkDomain | None = self
        while domain is not None:
            yield domain
            domain = domain.parent

    def walk(self) -> Iterator[NetworkDomain]:
        """Depth first, children by name."""
        yield self
        for name in sorted(self.children):
            yield from self.children[name].walk()

    def leaves(self) -> Iterator[NetworkDomain]:
        return (domain for domain in self.walk() if domain.leaf)

    def child(self, layer: str, name: str) -> NetworkDomain:
        """The child of that name, created if it is missing."""
        domain = self.children.get(name)
        if domain is None:
            domain = self.children[name] = NetworkDomain(layer, name, self, self.depth + 1)
        return domain


def layers(spec: Iterable[NetworkTopologyLayer]) -> list[NetworkTopologyLayer] | None:
    """From the topmost layer below the cluster to the one above nodes; None if a layer is missing or in a cycle."""
    by_name = {layer.topology_layer: layer for layer in spec}
    node = by_name.get(NODE_LAYER)
    if node is None:
        return None
    order: list[NetworkTopologyLayer] = []
    name = node.parent_topology_layer
    while name and name != CLUSTER_LAYER:
        layer = by_name.get(name)
        if layer is None or layer in order:
            return None
        order.append(layer)
        name = layer.parent_topology_layer
    return order[::-1]


def build(topology: ClusterNetworkTopology | None, nodes: Iterable[Node]) -> NetworkDomain | None:
    """The tree; None without a usable topology."""
    order = layers(topology.spec.network_topology_spec) if topology is not None else None
    if order is None:
        return None
    root = NetworkDomain(CLUSTER_LAYER, "")
    for node in nodes:
        path = _path(order, node.metadata.labels, node.metadata.name)
        if path is not None:
            at = root
            for layer, name in zip(order, path, strict=True):
                at = at.child(layer.topology_layer, name)
            at.child(NODE_LAYER, node.metadata.name)
    return root


def _path(order: list[NetworkTopologyLayer], labels: Mapping[str, str], node: str) -> list[str] | None:
    """The names of the node's domains, topmost first; None if a label is missing."""
    path = []
    for layer in order:
        name = next((labels[key] for key in layer.label_key if labels.get(key)), "")
        if not name and layer is not order[-1]:
            return None
        path.append(name or node)  # in the lowest layer a node without the label is a domain of its own
    return path
