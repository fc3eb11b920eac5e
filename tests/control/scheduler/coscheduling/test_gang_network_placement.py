"""Gangs with network topology requirements, in whole cycles (spec 05 §10)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest

from control.scheduler.framework.plugin import ClusterEvent, CycleState
from koordlet.api.core import Pod
from koordlet.api.crs.networktopology import ClusterNetworkTopology
from koordlet.api.encoding import wire
from tests.control.scheduler.build import node, pod
from tests.control.scheduler.gangworld import GangWorld

P = "gang.scheduling.koordinator.sh/"
SELECTOR = "scheduling.koordinator.sh/network-topology-selector"
BLOCKS = {"b1": "s1", "b2": "s1", "b3": "s2", "b4": "s2"}
NODES = {
    "node-8": "b1",
    "node-1": "b1",
    "node-7": "b2",
    "node-2": "b2",
    "node-6": "b3",
    "node-3": "b3",
    "node-5": "b4",
    "node-4": "b4",
}
SPINES: ClusterNetworkTopology = wire.convert(
    {
        "metadata": {"name": "default"},
        "spec": {
            "networkTopologySpec": [
                {"topologyLayer": "Spine", "parentTopologyLayer": "ClusterTopologyLayer", "labelKey": ["spine"]},
                {"topologyLayer": "Block", "parentTopologyLayer": "Spine", "labelKey": ["block"]},
                {"topologyLayer": "NodeTopologyLayer", "parentTopologyLayer": "Block"},
            ]
        },
    },
    ClusterNetworkTopology,
)


@pytest.fixture
async def world() -> AsyncIterator[GangWorld]:
    nodes = [node(name, cpu="16", labels={"block": block, "spine": BLOCKS[block]}) for name, block in NODES.items()]
    gang_world = GangWorld(*nodes, aware_network_topology=True)
    assert gang_world.gangs.network is not None
    gang_world.gangs.network.topology = SPINES
    yield gang_world
    await gang_world.stop()


def member(name: str, minimum: int, strategy: str, index: int | None = None, **more: Any) -> Pod:
    spec = f'{{"gatherStrategy":[{{"layer":"Block","strategy":"{strategy}"}}]}}'
    notes = {"name": "g", "min-available": str(minimum), "network-topology-spec": spec}
    if index is not None:
        notes["network-topology-index"] = str(index)
    return pod(name, "16", annotations={P + key: value for key, value in notes.items()} | more)


def places(world: GangWorld) -> dict[str, str]:
    return {pod.metadata.name: pod.spec.node_name for pod in world.pods.values()}


async def test_the_verified_gang(world: GangWorld) -> None:
    world.create(*(member(f"pod{number}", 4, "PreferGather") for number in (1, 2, 3, 4)))
    await world.drive()
    assert places(world) == {"pod1": "node-1", "pod2": "node-8", "pod3": "node-2", "pod4": "node-7"}
    world.check()


async def test_indexed_members_keep_their_order(world: GangWorld) -> None:
    world.create(*(member(f"pod{number}", 4, "PreferGather", 5 - number) for number in (1, 2, 3, 4)))
    await world.drive()
    assert places(world) == {"pod4": "node-1", "pod3": "node-8", "pod2": "node-2", "pod1": "node-7"}


async def test_a_gang_with_required_gathering_gets_a_free_block(world: GangWorld) -> None:
    world.create(pod("other", "1", spec={"nodeSelector": {}}, on=""))
    await world.drive()
    taken = NODES[places(world)["other"]]
    world.create(*(member(f"pod{number}", 2, "MustGather") for number in (1, 2)))
    await world.drive()
    (used,) = {NODES[places(world)[name]] for name in ("pod1", "pod2")}
    assert used != taken
    world.check()


async def test_a_gang_without_a_block_waits_for_one(world: GangWorld) -> None:
    world.create(*(member(f"pod{number}", 3, "MustGather") for number in (1, 2, 3)))
    await world.drive()
    assert world.bound() == []
    assert world.reporter.messages["pod3"].startswith(
        "0/8 nodes are available: no candidate topology nodes can accommodate job, desiredOfferSlot: 3, "
        "topology topologyNode Block/b1: 2;topology topologyNode Block/b2: 2;"
        "topology topologyNode Block/b3: 2;topology topologyNode Block/b4: 2, "
        "0/8 nodes are available: 8 Insufficient cpu."
    )
    world.check()


async def test_a_gang_whose_plan_failed_is_woken_by_a_node(world: GangWorld) -> None:
    world.create(*(member(f"pod{number}", 3, "MustGather") for number in (1, 2, 3)))
    await world.drive()
    assert world.bound() == []
    world.add_node("node-9", "16", {"block": "b2", "spine": "s1"})
    await world.pass_time(3)
    assert {NODES.get(name, "b2") for name in places(world).values()} == {"b2"}
    world.check()


async def test_a_gang_whose_plan_failed_is_woken_by_released_room(world: GangWorld) -> None:
    world.create(*(pod(f"other{number}", "9") for number in range(8)))
    await world.drive()
    world.create(*(member(f"pod{number}", 2, "MustGather") for number in (1, 2)))
    await world.drive()
    assert len(world.bound()) == 8
    for key in [each.metadata.key for each in world.pods.values() if NODES.get(each.spec.node_name) == "b3"]:
        world.delete(key)
    await world.pass_time(3)
    assert {NODES[node] for name, node in places(world).items() if name.startswith("pod")} == {"b3"}
    world.check()


async def test_a_gang_without_a_tree_is_woken_by_the_layers_and_not_by_their_status(world: GangWorld) -> None:
    network = world.gangs.network
    assert network is not None
    network.topology = None
    world.create(*(member(f"pod{number}", 2, "MustGather") for number in (1, 2)))
    await world.drive()
    cycles = world.reporter.cycles
    world.queue.move(ClusterEvent("ClusterNetworkTopology", "Update"), SPINES, SPINES)
    await world.pass_time(3)
    assert world.reporter.cycles == cycles
    network.topology = SPINES
    world.queue.move(ClusterEvent("ClusterNetworkTopology", "Add"), None, SPINES)
    await world.pass_time(3)
    assert len(world.bound()) == 2


async def test_without_a_tree_nothing_is_planned(world: GangWorld) -> None:
    assert world.gangs.network is not None
    world.gangs.network.topology = None
    world.create(*(member(f"pod{number}", 2, "MustGather") for number in (1, 2)))
    await world.drive()
    assert world.bound() == []
    assert world.reporter.messages["pod2"] == "0/8 nodes are available: no cluster network topology."


def test_pods_with_a_selector_score_high_beside_their_like(world: GangWorld) -> None:
    (like,) = world.cluster.put(pod("like", "1", annotations={SELECTOR: "x"}, on="node-5"))
    plugin, table = world.gangs, world.cluster.table
    info, state = world.cluster.info(pod(annotations={SELECTOR: "x"})), CycleState()
    rows = np.array([table.rows[name] for name in ("node-1", "node-3", "node-4", "node-5")])
    assert plugin.pre_score(state, info, rows).ok
    scores = plugin.normalize(state, info, rows, plugin.score(state, info, rows))
    assert scores.tolist() == [0, 34, 67, 100]
    assert plugin.pre_score(state, like, rows).ok
    assert plugin.pre_score(CycleState(), world.cluster.info(pod()), rows).skipped
    assert plugin.network is not None
    plugin.network.topology = None
    assert plugin.pre_score(CycleState(), info, rows).skipped
