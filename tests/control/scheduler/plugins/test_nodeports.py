"""NodePorts: upstream's cases, the plain rule at random, and an account that trials leave as it was."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control.scheduler.plugins.nodeports import NodePorts
from koordlet.api.core import Pod
from tests.control.scheduler.build import Cluster, node, pod
from tests.control.scheduler.plain.ports import node_ports
from tests.control.scheduler.plain.world import World
from tests.control.scheduler.plugins.filtering import filtered

TAKEN = ("Unschedulable", ("node(s) didn't have free ports for the requested pod ports",))


def ported(*ports: str, on: str = "", sidecar: bool = False, init: bool = False) -> Pod:
    """Ports as `protocol/address/port`."""
    container_ports = []
    for port in ports:
        protocol, address, number = port.split("/")
        container_ports.append({"containerPort": 80, "hostPort": int(number), "protocol": protocol, "hostIP": address})
    container: dict[str, Any] = {"name": "c", "ports": container_ports}
    if not (sidecar or init):
        return pod(on=on, spec={"containers": [container]})
    if sidecar:
        container["restartPolicy"] = "Always"
    return pod(on=on, spec={"containers": [{"name": "main"}], "initContainers": [container]})


@pytest.mark.parametrize(
    ("there", "incoming", "fits"),
    [
        pytest.param([], ported(), True, id="nothing wanted"),
        pytest.param([ported("UDP/127.0.0.1/9090", on="a")], ported("UDP/127.0.0.1/8080"), True, id="other port"),
        pytest.param([ported("UDP/127.0.0.1/8080", on="a")], ported("UDP/127.0.0.1/8080"), False, id="same"),
        pytest.param([ported("TCP/127.0.0.1/8080", on="a")], ported("TCP/127.0.0.2/8080"), True, id="other address"),
        pytest.param([ported("TCP/127.0.0.1/8080", on="a")], ported("UDP/127.0.0.1/8080"), True, id="other protocol"),
        pytest.param([ported("TCP/0.0.0.0/8001", on="a")], ported("TCP/127.0.0.1/8001"), False, id="any, then one"),
        pytest.param([ported("TCP/127.0.0.1/8001", on="a")], ported("TCP/0.0.0.0/8001"), False, id="one, then any"),
        pytest.param([ported("//8001", on="a")], ported("TCP/0.0.0.0/8001"), False, id="defaults"),
        pytest.param(
            [ported("TCP/127.0.0.1/8001", "TCP/127.0.0.1/8002", on="a")],
            ported("TCP/127.0.0.1/9", "TCP/127.0.0.1/8002"),
            False,
            id="one of several",
        ),
        pytest.param([ported("TCP//8080", on="a", sidecar=True)], ported("TCP//8080"), False, id="a sidecar's port"),
        pytest.param([ported("TCP//8080", on="a", init=True)], ported("TCP//8080"), True, id="init containers end"),
        pytest.param([ported("TCP//8080", on="b")], ported("TCP//8080"), True, id="another node"),
    ],
)
def test_ports(there: list[Pod], incoming: Pod, fits: bool) -> None:
    cluster = Cluster(node("a"), node("b"))
    plugin = NodePorts(None, cluster.handle)
    cluster.put(*there)
    assert filtered(plugin, cluster, incoming)["a"] == (None if fits else TAKEN)


def test_pods_from_before_count() -> None:
    cluster = Cluster(node("a"))
    cluster.put(ported("TCP//80", on="a"))
    assert filtered(NodePorts(None, cluster.handle), cluster, ported("TCP//80")) == {"a": TAKEN}


def test_hint() -> None:
    cluster = Cluster()
    hint = next(i.hint for i in NodePorts(None, cluster.handle).interests() if i.resource == "AssignedPod")
    assert hint is not None
    waiting = cluster.info(ported("TCP/127.0.0.1/80"))
    assert hint(waiting, ported("TCP//80", on="a"), None)
    assert not hint(waiting, ported("UDP//80", on="a"), None)
    assert not hint(waiting, pod(on="a"), None)


specs = st.lists(
    st.builds(
        "{}/{}/{}".format,
        st.sampled_from(["TCP", "UDP", ""]),
        st.sampled_from(["", "0.0.0.0", "10.0.0.1", "10.0.0.2"]),
        st.sampled_from([80, 81]),
    ),
    max_size=3,
)


@given(st.lists(st.tuples(specs, st.sampled_from("abcdef")), max_size=8), specs, st.data())
def test_it_follows_the_plain_rule_also_after_trials(
    placed: list[tuple[list[str], str]], requested: list[str], data: st.DataObject
) -> None:
    world = World([node(name) for name in "abcdef"], [ported(*ports, on=name) for ports, name in placed])
    cluster = Cluster(*world.nodes)
    plugin = NodePorts(None, cluster.handle)
    infos = cluster.put(*world.pods)
    asking = ported(*requested)
    expected = {node.metadata.name: node_ports(asking, node, world) for node in world.nodes}
    assert filtered(plugin, cluster, asking) == expected
    with cluster.table.what_if() as trial:
        gone = data.draw(st.sets(st.sampled_from(range(len(infos))))) if infos else set()
        for number in gone:
            trial.remove(infos[number])
        left = World(world.nodes, [pod for number, pod in enumerate(world.pods) if number not in gone])
        assert filtered(plugin, cluster, asking) == {n.metadata.name: node_ports(asking, n, left) for n in left.nodes}
    assert filtered(plugin, cluster, asking) == expected
