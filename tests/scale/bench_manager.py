"""Cost of koord-manager in a large cluster: computing all nodes' overcommitted resources, and memory.

Run: `python tests/scale/bench_manager.py [--nodes 5000] [--pods 100000] [--rounds 3]`. Objects are decoded from JSON as
from an API server and pass through the real informers, caches and controller; nothing is written. Times are this
process's CPU time, the median of the rounds; memory is the process's resident size with full caches.
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
from prometheus_client import CollectorRegistry

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from control.manager.caches import Caches
from control.manager.config import ConfigCache
from control.manager.context import ManagerContext
from control.manager.noderesource.controller import CHUNK_NODES, NodeResourceController
from control.manager.noderesource.decide import new_zones
from control.manager.options import ManagerOptions
from koordlet.api import gates as api_gates
from koordlet.api.core import Node, Pod
from koordlet.api.crs.nodemetric import NodeMetric
from koordlet.api.crs.topology import NodeResourceTopology
from koordlet.api.encoding.wire import convert, encode, json_decoder, to_builtins
from koordlet.api.names import LABEL_QOS_CLASS, SLO_CONFIGMAP
from koordlet.api.sloconfig import configmap
from koordlet.app.flags import read
from koordlet.app.gates import FeatureGates
from koordlet.app.heap import freeze_heap
from koordlet.kube import Client, ClientConfig, EventRecorder
from tests.scale.figures import Figure, report

KINDS = (
    ("koord-prod", 9500, "LS"),
    ("koord-prod", 9500, "LSR"),
    ("koord-mid", 7500, "LS"),
    ("koord-batch", 5500, "BE"),
)
WINDOWS = ("300s", "600s", "1800s")


def context() -> ManagerContext:
    """As in the process, without an API server."""
    framework, internal = CollectorRegistry(), CollectorRegistry()
    client = Client(ClientConfig(server="http://127.0.0.1:1"), registry=framework)
    events = EventRecorder(client, "bench")
    config = ConfigCache(client, events, namespace="koordinator-system", name=SLO_CONFIGMAP, registry=internal)
    caches, gates = Caches(client), FeatureGates(api_gates.MANAGER)
    return ManagerContext(
        read(ManagerOptions, []), gates, client, caches, config, events, framework, internal, CollectorRegistry()
    )


def usage(cpu: float, memory: float) -> dict[str, Any]:
    return {"resources": {"cpu": f"{int(cpu * 1000)}m", "memory": str(int(memory))}}


def node(number: int) -> dict[str, Any]:
    amounts = {"cpu": "64", "memory": "256Gi", "pods": "110", "ephemeral-storage": "500Gi"}
    conditions = [
        {"type": kind, "status": "False", "reason": "Fine", "message": "nothing is wrong with it"}
        for kind in ("MemoryPressure", "DiskPressure", "PIDPressure", "Ready")
    ]
    labels = {"kubernetes.io/hostname": f"node-{number}", "topology.kubernetes.io/zone": f"zone-{number % 3}"}
    status = {"capacity": amounts, "allocatable": {**amounts, "cpu": "63"}, "conditions": conditions}
    return {"metadata": meta(f"node-{number}", labels=labels), "status": status}


def pod(number: int, nodes: int, rng: random.Random) -> dict[str, Any]:
    name, priority, qos = rng.choice(KINDS)
    requests = {"cpu": f"{rng.randint(1, 40)}00m", "memory": f"{rng.randint(1, 64)}00Mi"}
    containers = [
        {
            "name": f"container-{number}",
            "image": "registry/some/image:v1",
            "env": [{"name": f"VARIABLE_{index}", "value": "some value"} for index in range(10)],
            "resources": {"requests": requests, "limits": requests},
            "volumeMounts": [{"name": "data", "mountPath": "/data"}],
        }
        for number in range(2)
    ]
    labels = {"app": f"app-{number % 500}", LABEL_QOS_CLASS: qos}
    spec = {"nodeName": f"node-{number % nodes}", "priority": priority, "priorityClassName": name}
    return {
        "metadata": meta(f"pod-{number}", namespace=f"team-{number % 50}", labels=labels),
        "spec": {**spec, "containers": containers},
        "status": {"phase": "Running", "podIP": "10.0.0.1", "qosClass": "Burstable"},
    }


def metric(number: int, pods: list[dict[str, Any]], now: str, rng: random.Random) -> dict[str, Any]:
    points = {point: usage(rng.random() * 40, rng.random() * 1e11) for point in ("avg", "p50", "p90", "p95", "p99")}
    windows = [{"usage": points, "duration": window} for window in WINDOWS]
    measured = [
        {
            "name": pod["metadata"]["name"],
            "namespace": pod["metadata"]["namespace"],
            "podUsage": usage(rng.random() * 3, rng.random() * 4e9),
            "priority": pod["spec"]["priorityClassName"],
            "qos": pod["metadata"]["labels"][LABEL_QOS_CLASS],
        }
        for pod in pods
    ]
    info = {
        "nodeUsage": usage(30, 9e10),
        "systemUsage": usage(2, 4e9),
        "aggregatedNodeUsages": windows,
        "aggregatedSystemUsages": windows,
    }
    predicted = {"resource": usage(rng.random() * 8, rng.random() * 2e10)}
    status = {"updateTime": now, "nodeMetric": info, "podsMetric": measured, "prodReclaimableMetric": predicted}
    return {"metadata": meta(f"node-{number}"), "spec": {}, "status": status}


def topology(number: int) -> dict[str, Any]:
    amounts = {"capacity": "32", "allocatable": "32", "available": "32"}
    memory = dict.fromkeys(amounts, "128Gi")
    zones = [
        {
            "name": f"node-{zone}",
            "type": "Node",
            "resources": [{"name": "cpu", **amounts}, {"name": "memory", **memory}],
        }
        for zone in range(2)
    ]
    return {"metadata": meta(f"node-{number}"), "topologyPolicies": ["None"], "zones": zones}


def meta(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "uid": f"00000000-{name}", "resourceVersion": "1", **more}


def objects(nodes: int, pods: int) -> Iterator[tuple[type, bytes]]:
    """All objects of the cluster as JSON."""
    rng = random.Random(1)
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    for number in range(nodes):
        here = [pod(index, nodes, rng) for index in range(number, pods, nodes)]
        for pod_object in here:
            yield Pod, encode(pod_object)
        yield Node, encode(node(number))
        yield NodeMetric, encode(metric(number, here, now, rng))
        yield NodeResourceTopology, encode(topology(number))


def median(rounds: int, work: Callable[[], object]) -> float:
    times = []
    for _ in range(rounds):
        began = time.process_time()
        work()
        times.append(time.process_time() - began)
    return statistics.median(times)


def lending(nodes: int, pods: int, rounds: int) -> list[Figure]:
    """The noderesource controller."""
    manager_context = context()
    controller = NodeResourceController(manager_context)
    gc.collect()
    empty, filled = psutil.Process().memory_info().rss, 0.0
    for kind, raw in objects(nodes, pods):
        began = time.process_time()
        obj = json_decoder(kind).decode(raw)
        manager_context.caches.informer(kind)._take(obj)
        filled += time.process_time() - began
    began = time.process_time()
    freeze_heap()  # as the process does when its caches are filled
    pause = time.process_time() - began
    full = psutil.Process().memory_info().rss
    strategy = encode({"enable": True, "cpuCalculatePolicy": "maxUsageRequest"}).decode()
    manager_context.config._current, _ = configmap.load(configmap.UNREAD, {"colocation-config": strategy})
    table, names = controller.table, sorted(controller.table.nodes)

    def chunks(changed: Callable[[str], object] = lambda _: None) -> float:
        longest = 0.0
        for start in range(0, len(names), CHUNK_NODES):
            began = time.process_time()
            chosen = names[start : start + CHUNK_NODES]
            for name in chosen:
                changed(name)
            controller.sweep(chosen)
            longest = max(longest, time.process_time() - began)
        return longest

    first = median(1, lambda: chunks(table._forget_rows))
    pretend_written(controller, names)
    everything = median(rounds, lambda: chunks(table._forget_rows))
    settled = median(rounds, lambda: chunks())
    longest = 1000 * statistics.median(chunks(table._forget_rows) for _ in range(rounds))
    millis = 1000 * median(50, lambda: controller._calculate([names[7]]))
    return [
        Figure("manager_recompute_all", everything, "s", 1.0),
        Figure("manager_recompute_all_to_write", first, "s"),
        Figure("manager_recompute_pods_unchanged", settled, "s"),
        Figure("manager_loop_held_by_a_chunk", longest, "ms"),
        Figure("manager_recompute_one_node", millis, "ms"),
        Figure("manager_fill_caches", filled, "s"),
        Figure("manager_garbage_pass_avoided", pause, "s"),
        Figure("manager_resident", full / 2**20, "MiB", 1024.0),
        Figure("manager_resident_for_the_cluster", (full - empty) / 2**20, "MiB"),
    ]


def pretend_written(controller: NodeResourceController, names: Sequence[str]) -> None:
    """The Nodes after all writes: the next round has nothing to write."""
    table = controller.table
    for start in range(0, len(names), CHUNK_NODES):
        for result, decision in controller._calculate(names[start : start + CHUNK_NODES]):
            table.put_node(written(result.node, decision.status, decision.meta))
            document = to_builtins(table.topologies[result.node.metadata.name])
            zones = new_zones(document["zones"], result, refresh=True)
            if zones is not None:
                table.put_topology(convert({**document, "zones": zones}, NodeResourceTopology))


def written(node: Node, status: Any, meta: Any) -> Node:
    """A Node after the controller's patches, without a server."""
    plain = to_builtins(node)
    for patch in (status, meta):
        for key, value in (patch.get("metadata") or {}).get("annotations", {}).items():
            plain["metadata"].setdefault("annotations", {})[key] = value
    for part in ("capacity", "allocatable"):
        plain["status"][part].update((status.get("status") or {}).get(part, {}))
    plain["status"]["conditions"] += (status.get("status") or {}).get("conditions", [])
    node_after: Node = convert(plain, Node)
    return node_after


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--pods", type=int, default=100000)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    return report("manager", lending(args.nodes, args.pods, args.rounds))


if __name__ == "__main__":
    sys.exit(main())
