"""The status of the ClusterNetworkTopology (spec 05 §10.2, 01 §3.12), written to a real API server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control.scheduler.plugins.coscheduling import topologystatus
from control.scheduler.plugins.coscheduling.topology import build
from control.scheduler.plugins.coscheduling.topologystatus import TopologyStatusWriter, details
from control.standalone.apiserver.server import ApiServer
from koordlet.api.core import Node
from koordlet.api.crs.networktopology import ClusterNetworkTopology, NetworkTopologyDetail
from koordlet.api.encoding import crdgen, wire
from koordlet.kube import Client, ClientConfig, Informer
from tests.control.scheduler.coscheduling.test_gang_topology import BLOCKS, NODES, SPINES, labelled, tree

PLURAL = "clusternetworktopologies"
TOPOLOGIES = f"/apis/scheduling.koordinator.sh/v1alpha1/{PLURAL}"


def rows(status: list[NetworkTopologyDetail]) -> list[tuple[str, str, str, list[str], int]]:
    """(element, parent, layer of the children, children, nodes)"""
    return [
        (
            f"{each.topology_info.topology_layer}/{each.topology_info.topology_name}",
            each.parent_topology_info.topology_name if each.parent_topology_info is not None else "none",
            each.child_topology_layer,
            each.child_topology_names,
            each.node_num,
        )
        for each in status
    ]


def test_the_verified_tree() -> None:
    assert rows(details(tree())) == [
        ("ClusterTopologyLayer/", "none", "Spine", ["s1", "s2"], 8),
        ("Spine/s1", "", "Block", ["b1", "b2"], 4),
        ("Block/b1", "s1", "NodeTopologyLayer", [], 2),
        ("Block/b2", "s1", "NodeTopologyLayer", [], 2),
        ("Spine/s2", "", "Block", ["b3", "b4"], 4),
        ("Block/b3", "s2", "NodeTopologyLayer", [], 2),
        ("Block/b4", "s2", "NodeTopologyLayer", [], 2),
    ]


def test_a_cluster_without_nodes() -> None:
    root = build(SPINES, [])
    assert root is not None
    assert rows(details(root)) == [("ClusterTopologyLayer/", "none", "", [], 0)]


@given(st.dictionaries(st.sampled_from("abcdefgh"), st.sampled_from([*BLOCKS, "x"]), max_size=8))
def test_every_node_counts_once_per_layer(blocks: dict[str, str]) -> None:
    root = build(SPINES, [labelled(name, BLOCKS.get(block, ""), block) for name, block in blocks.items()])
    assert root is not None
    status = details(root)
    inside = [name for name, block in blocks.items() if block in BLOCKS]
    for layer in ("ClusterTopologyLayer", "Spine", "Block"):
        nodes = [each.node_num for each in status if each.topology_info.topology_layer == layer]
        assert sum(nodes) == len(inside)


class Written:
    """A server with a topology and nodes, and a writer."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.topologies = Informer(client, ClusterNetworkTopology)
        self.nodes = Informer(client, Node)
        self.writer = TopologyStatusWriter(client, self.topologies, self.nodes)

    async def start(self, *layers: dict[str, Any]) -> None:
        (definition,) = (each for each in crdgen.documents().values() if each["metadata"]["name"].startswith(PLURAL))
        await self.client.raw("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", body=definition)
        spec = {"networkTopologySpec": list(layers)}
        body = {"apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "ClusterNetworkTopology"}
        await self.client.raw("POST", TOPOLOGIES, body={**body, "metadata": {"name": "default"}, "spec": spec})
        for name, block in NODES.items():
            meta = {"name": name, "labels": {"block": block, "spine": BLOCKS[block]}}
            await self.client.raw("POST", "/api/v1/nodes", body={"metadata": meta})
        for informer in (self.topologies, self.nodes):
            await informer.start()
            await informer.synced.wait()

    async def read(self) -> ClusterNetworkTopology:
        return await self.client.get(ClusterNetworkTopology, "default")

    async def stop(self) -> None:
        for informer in (self.topologies, self.nodes):
            await informer.stop()


@pytest.fixture
async def written(tmp_path: Path) -> AsyncIterator[Written]:
    async with ApiServer(tmp_path / "data") as server, Client(ClientConfig.load(str(server.kubeconfig_path))) as client:
        written = Written(client)
        yield written
        await written.stop()


async def test_the_status_is_written_once(written: Written) -> None:
    await written.start(*wire.to_builtins(SPINES.spec)["networkTopologySpec"])
    await written.writer.write()
    first = await written.read()
    assert rows(first.status.detail_status) == rows(details(tree()))
    await written.writer.write()  # the informer may not have seen the first write; then the API server refuses this one
    assert (await written.read()).metadata.resource_version == first.metadata.resource_version


async def test_layers_without_a_chain_leave_the_status_and_are_reported_once(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    warnings: list[str] = []
    monkeypatch.setattr(topologystatus.log, "warning", warnings.append)
    await written.start({"topologyLayer": "Spine", "parentTopologyLayer": "ClusterTopologyLayer", "labelKey": ["a"]})
    await written.writer.write()
    await written.writer.write()
    assert len(warnings) == 1 and "no chain of layers from NodeTopologyLayer" in warnings[0]
    assert (await written.read()).status.detail_status == []
