"""Writes the network tree into the status of the ClusterNetworkTopology (spec 05 §10.2, 01 §3.12): a service of the
leader with `--enable-network-topology-manager`. Planning does not need it: the tree is built from the node labels.
"""

from __future__ import annotations

from typing import Final

from control.scheduler.plugins.coscheduling.topology import NetworkDomain, build
from koordlet.api.core import Node
from koordlet.api.crs.networktopology import (
    DEFAULT_NAME,
    ClusterNetworkTopology,
    NetworkTopologyDetail,
    TopologyInfo,
)
from koordlet.api.encoding import wire
from koordlet.app.logging import get_logger
from koordlet.app.periodic import Periodic
from koordlet.kube import Client, Conflict, Informer, NotFound

log = get_logger(__name__)

PERIOD_S: Final = 10.0


def details(root: NetworkDomain) -> list[NetworkTopologyDetail]:
    """The domains of the tree depth first, children by name, without nodes."""
    return [_detail(domain) for domain in root.walk() if not domain.leaf]


def _detail(domain: NetworkDomain) -> NetworkTopologyDetail:
    children = sorted(domain.children)
    layer = domain.children[children[0]].layer if children else ""
    parent = domain.parent
    return NetworkTopologyDetail(
        topology_info=_info(domain),
        parent_topology_info=_info(parent) if parent is not None else None,
        child_topology_layer=layer,
        child_topology_names=[name for name in children if not domain.children[name].leaf],
        node_num=sum(1 for _ in domain.leaves()),
    )


def _info(domain: NetworkDomain) -> TopologyInfo:
    return TopologyInfo(topology_layer=domain.layer, topology_name=domain.name)


class TopologyStatusWriter:
    """See the module text. The informers must be complete before the start."""

    def __init__(self, client: Client, topologies: Informer[ClusterNetworkTopology], nodes: Informer[Node]) -> None:
        self.name = "network-topology-status"
        self._client = client
        self._topologies = topologies
        self._nodes = nodes
        self._unusable = ""
        """resourceVersion of the topology that cannot be used, so that it is reported once."""
        self._loop = Periodic(self.name, PERIOD_S, self.write, clock=client.clock, registry=client.registry)

    async def start(self) -> None:
        await self._loop.start()

    async def stop(self) -> None:
        await self._loop.stop()

    async def write(self) -> None:
        """Write the status if it differs. Raises KubeError."""
        topology = self._topologies.get(DEFAULT_NAME)
        if topology is None:
            return
        meta = topology.metadata
        root = build(topology, self._nodes.list())
        if root is None:
            if self._unusable != meta.resource_version:
                self._unusable = meta.resource_version
                log.warning(
                    "ClusterNetworkTopology default: spec.networkTopologySpec has no chain of layers from "
                    "NodeTopologyLayer to the top; gangs with topology requirements stay pending"
                )
            return
        detail_status = details(root)
        if detail_status == topology.status.detail_status:
            return
        status = {"detailStatus": wire.to_builtins(detail_status)}
        body = {"metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version}, "status": status}
        try:
            await self._client.patch(ClusterNetworkTopology, DEFAULT_NAME, body=body, subresource="status")
        except (Conflict, NotFound):
            log.info("ClusterNetworkTopology was changed meanwhile; its status is written in the next period")
