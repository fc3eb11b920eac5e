"""The network as a tree of domains with nodes as leaves, from node labels (spec 05 §10.2). Pure.

A domain is known by its whole path, so equal names below different parents are different domains (spec 05 §17, D17).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from koordlet.api.core import Node
from koordlet.api.crs.networktopology import (
    CLUSTER_LAYER,
    NODE_LAYER,
    ClusterNetworkTopology,
    NetworkTopologyDetail,
    NetworkTopologyLayer,
    TopologyInfo,
)


@dataclass(eq=False)
class Domain:
    """A leaf is a node, and named like it. `depth`: 0 is the root."""

    layer: str
    name: str
    parent: Domain | None = None
    depth: int = 0
    children: dict[str, Domain] = field(default_factory=dict)

    @property
    def leaf(self) -> bool:
        return self.layer == NODE_LAYER

    def lineage(self) -> Iterator[Domain]:
        """The domain itself, its parent, and so on."""
        one: Domain | None = self
        while one is not None:
            yield one
            one = one.parent

    def walk(self) -> Iterator[Domain]:
        """Depth first, children by name."""
        yield self
        for name in sorted(self.children):
            yield from self.children[name].walk()

    def leaves(self) -> Iterator[Domain]:
        return (one for one in self.walk() if one.leaf)

    def child(self, layer: str, name: str) -> Domain:
        """The child of that name; made when it is new."""
        found = self.children.get(name)
        if found is None:
            found = self.children[name] = Domain(layer, name, self, self.depth + 1)
        return found


def layers(spec: Iterable[NetworkTopologyLayer]) -> list[NetworkTopologyLayer] | None:
    """From the topmost layer below the cluster down to that above nodes; None: one is missing, or in a circle."""
    by_name = {one.topology_layer: one for one in spec}
    node = by_name.get(NODE_LAYER)
    if node is None:
        return None
    found: list[NetworkTopologyLayer] = []
    name = node.parent_topology_layer
    while name and name != CLUSTER_LAYER:
        layer = by_name.get(name)
        if layer is None or layer in found:
            return None
        found.append(layer)
        name = layer.parent_topology_layer
    return found[::-1]


def build(topology: ClusterNetworkTopology | None, nodes: Iterable[Node]) -> Domain | None:
    """The tree; None without a usable description."""
    order = layers(topology.spec.network_topology_spec) if topology is not None else None
    if order is None:
        return None
    root = Domain(CLUSTER_LAYER, "")
    for node in nodes:
        path = _path(order, node.metadata.labels, node.metadata.name)
        if path is not None:
            at = root
            for layer, name in zip(order, path, strict=True):
                at = at.child(layer.topology_layer, name)
            at.child(NODE_LAYER, node.metadata.name)
    return root


def details(root: Domain) -> list[NetworkTopologyDetail]:
    """The status: every domain that is not a node."""
    return [_detail(one) for one in root.walk() if not one.leaf]


def _path(order: list[NetworkTopologyLayer], labels: Mapping[str, str], node: str) -> list[str] | None:
    """The names of the node's domains, topmost first; None: it has no place in the tree."""
    path = []
    for layer in order:
        name = next((labels[key] for key in layer.label_key if labels.get(key)), "")
        if not name and layer is not order[-1]:
            return None
        path.append(name or node)  # directly above nodes one may stand alone
    return path


def _detail(domain: Domain) -> NetworkTopologyDetail:
    inner = [domain.children[name] for name in sorted(domain.children) if not domain.children[name].leaf]
    below = next(iter(domain.children.values()), None)
    return NetworkTopologyDetail(
        topology_info=_info(domain),
        parent_topology_info=_info(domain.parent) if domain.parent is not None else None,
        child_topology_layer=below.layer if below is not None else "",
        child_topology_names=[child.name for child in inner],
        node_num=sum(1 for _ in domain.leaves()),
    )


def _info(domain: Domain) -> TopologyInfo:
    return TopologyInfo(topology_layer=domain.layer, topology_name=domain.name)
