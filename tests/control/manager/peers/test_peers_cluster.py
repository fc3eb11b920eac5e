"""The whole manager with a real API server: the reports of five nodes become Events about one of the replicas."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

import pytest

from koordlet.api.core import Event
from koordlet.api.crs.nodemetric import NodeMetric
from koordlet.api.encoding.wire import Time, to_builtins
from tests.waiting import until

NODES = tuple(f"n{at}" for at in range(5))
PODS = "/api/v1/namespaces/default/pods"
SETS = "/apis/apps/v1/namespaces/default/replicasets"
FAST, SLOW = 0.02, 0.4


async def replicas(cluster: Any) -> dict[str, str]:
    """Node -> pod of a ReplicaSet with one pod on each node."""
    labels = {"app": "web"}
    pod = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "app", "image": "i"}]}}
    spec = {"replicas": len(NODES), "selector": {"matchLabels": labels}, "template": pod}
    body = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "web"}, "spec": spec}
    await cluster.admin.raw("POST", SETS, body=body)

    async def made() -> list[str]:
        pods = json.loads(await cluster.admin.raw("GET", PODS))["items"]
        return [pod["metadata"]["name"] for pod in pods] if len(pods) == len(NODES) else []

    names: list[str] = await until(made)
    for node, name in zip(NODES, names, strict=True):
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name},
            "target": {"kind": "Node", "name": node},
        }
        await cluster.admin.raw("POST", f"{PODS}/{name}/binding", body=body)
    return dict(zip(NODES, names, strict=True))


async def report(cluster: Any, pods: Mapping[str, str], waits: Mapping[str, float], at: float) -> None:
    """As the koordlet of each node does, at Unix time `at`."""
    for node, pod in pods.items():
        metric = {
            "name": pod,
            "namespace": "default",
            "podUsage": {"resources": {"cpu": "1"}},
            "extensions": {"performance": {"app": {"cpu": waits[node]}}},
        }
        status = {"updateTime": to_builtins(Time.from_unix(at)), "podsMetric": [metric]}
        await cluster.admin.update_status(NodeMetric, node, status=status)


async def test_a_slow_node_without_a_neighbour_is_detected(cluster: Any, manager: Any) -> None:
    await cluster.nodes(*NODES)
    running = await manager(
        "--controllers=nodemetric,peers", "--feature-gates=PeerComparison=true", "--peer-comparison-interval=0.2s"
    )
    metrics = running.manager.context.internal
    pods = await replicas(cluster)
    for node in NODES:
        await until(lambda node=node: cluster.spec("nodemetrics", node))

    async def events(reason: str) -> list[tuple[str, str]]:
        listed = await cluster.admin.list(Event, "default")
        return [(event.involved_object.name, event.message) for event in listed if event.reason == reason]

    async def reported(waits: Mapping[str, float], at: float) -> None:
        await report(cluster, pods, waits, at)
        await until(lambda: all(last_report_at(node) == at for node in NODES))

    def last_report_at(node: str) -> float:
        (peers,) = [controller for controller in running.manager.controllers if controller.name == "peers"]
        return float(peers._seen.get(node, 0.0))

    start = float(int(time.time()) - 300)
    one_slow = {node: SLOW if node == "n3" else FAST for node in NODES}
    for at in range(3):
        assert await events("SlowerThanPeers") == []
        await reported(one_slow, start + 60 * at)
    (event,) = await until(lambda: events("SlowerThanPeers"))
    assert event[0] == pods["n3"]
    assert event[1] == (
        "container app waits for a CPU 40.0 % of its time; the 4 replicas of ReplicaSet web on 4 other nodes: "
        "median 2.0 %, 99 % below 2.0 %; no neighbour on node n3 explains it"
    )
    labels = {"namespace": "default", "pod": pods["n3"], "container": "app", "node": "n3", "figure": "cpu"}
    assert metrics.get_sample_value("koord_manager_peer_slower_ratio", labels) == pytest.approx(20.0)
    assert metrics.get_sample_value("koord_manager_peer_replicas") == 5

    for at in range(3, 6):
        assert await events("SlowerThanPeersEnded") == []
        await reported(dict.fromkeys(NODES, FAST), start + 60 * at)
    ended = await until(lambda: events("SlowerThanPeersEnded"))
    assert [name for name, _ in ended] == [pods["n3"]]
    assert metrics.get_sample_value("koord_manager_peer_slower_ratio", labels) is None
    assert metrics.get_sample_value("koord_manager_peer_detections_total", {"figure": "cpu"}) == 1


async def test_without_the_gate_it_does_nothing(cluster: Any, manager: Any) -> None:
    running = await manager("--controllers=nodemetric,peers")
    assert running.manager.context.internal.get_sample_value("koord_manager_peer_replicas") == 0
