"""kill -9 while pods with CPUs of their own are bound: no CPU is given twice, and the next scheduler knows them all."""

from __future__ import annotations

import json
from typing import Any

from koordlet.api.core import Pod
from koordlet.api.cpus import parse_cpus
from koordlet.api.encoding import wire
from tests.control.scheduler.plugins.numaworld import topology
from tests.control.scheduler.process.lives import Life, survive_kills

STATUS = "scheduling.koordinator.sh/resource-status"
TOPOLOGIES = "/apis/topology.node.k8s.io/v1alpha1/noderesourcetopologies"
NODES = ("n1", "n2")
SINGLE = json.dumps({"numaTopologyPolicy": "SingleNUMANode"})


async def held(world: Any) -> dict[str, dict[str, frozenset[int]]]:
    """Node -> pod -> CPUs, of bound pods. No CPU is held twice."""
    nodes: dict[str, dict[str, frozenset[int]]] = {name: {} for name in NODES}
    for pod in await world.admin.list(Pod, "default"):
        if pod.spec.node_name:
            cpus = parse_cpus(json.loads(pod.metadata.annotations[STATUS])["cpuset"])
            assert len(cpus) == 2
            nodes[pod.spec.node_name][pod.metadata.name] = cpus
    for pods in nodes.values():
        assert sum(len(cpus) for cpus in pods.values()) == len(frozenset().union(*pods.values()))
    return nodes


async def known(world: Any, life: Life) -> bool:
    """Whether the pages show what the pods' annotations say."""
    expected = await held(world)
    for name in NODES:
        page = await life.page(f"plugins/NodeNUMAResource/nodes/{name}")
        if page is None:
            return False
        shown = {pod["name"]: parse_cpus(pod["cpuset"]) for pod in page["allocatedPods"].values()}
        if shown != expected[name]:
            return False
    return True


async def test_no_cpu_is_given_twice_across_kills(world: Any) -> None:
    for name in NODES:
        await world.node(name, cpu="16")
        body = wire.to_builtins(topology(name, (2, 1, 4, 2), memory="8Gi"))
        await world.admin.raw("POST", TOPOLOGIES, body=body)
    for number in range(18):
        annotations = {"scheduling.koordinator.sh/numa-topology-spec": SINGLE} if number % 3 == 0 else {}
        labels = {"koordinator.sh/qosClass": "LSR"}
        await world.pod(f"p{number:02d}", cpu="2", labels=labels, annotations=annotations)

    rejection = "not enough cpus available to satisfy request|Insufficient cpu"
    await survive_kills(world, lambda: held(world), lambda life: known(world, life), (2, 6), 16, rejection)
