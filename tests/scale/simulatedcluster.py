"""A simulated cluster for `bench_descheduler.py`: nodes, pods with their usage, reports, and a scheduler.

Pods use a heavy-tailed multiple of their requests, and a scheduler that knows only requests has placed them.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Container
from dataclasses import dataclass, field
from typing import Any

import msgspec

from control.descheduler.framework.plugin import EvictOptions
from control.descheduler.plugins.defaultevictor.plugin import DefaultEvictor
from control.descheduler.state.loads import load_of
from control.descheduler.state.objects import trim_node, trim_pod
from control.descheduler.state.pods import PodRecord
from koordlet.api.core import Node, Pod
from koordlet.api.crs.nodemetric import NodeMetric
from koordlet.api.encoding.wire import json_decoder
from koordlet.kube.store import InformerStore
from tests.control.descheduler.world import World

NODE_CORES, NODE_GIB = 32, 128
CLASSES = (("koord-prod", 9500, "LS"), ("koord-mid", 7500, "LS"), ("koord-batch", 5500, "BE"))


@dataclass
class SimulatedCluster:
    """Nodes, pods with their usage in milli-cores, and the state that the descheduler reads."""

    rng: random.Random
    world: World = field(default_factory=World)
    store: InformerStore[Any] = field(default_factory=InformerStore)
    usage: dict[str, int] = field(default_factory=dict)
    """Milli-cores by `namespace/name`."""
    placed: dict[str, str] = field(default_factory=dict)
    """Node by `namespace/name`."""

    def add_node(self, name: str) -> None:
        document = {
            "metadata": {"name": name, "uid": name, "labels": {"kubernetes.io/hostname": name}},
            "status": {
                "allocatable": {"cpu": str(NODE_CORES), "memory": f"{NODE_GIB}Gi", "pods": "110"},
                "conditions": [{"type": "Ready", "status": "True"}],
                "nodeInfo": {"kernelVersion": "6.1", "kubeletVersion": "v1.35.0"},
            },
        }
        self.world.state.set_node(trim_node(json_decoder(Node).decode(msgspec.json.encode(document))))

    def add_pod(self, number: int, node: str) -> None:
        """One of 20 pods of its workload; its node is chosen by requests."""
        workload = number // 20
        priority, value, qos = CLASSES[workload % len(CLASSES)]
        owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": f"w{workload}", "uid": f"w{workload}"}
        document = {
            "metadata": {
                "name": f"w{workload}-{number}",
                "namespace": f"team-{workload % 50}",
                "uid": f"00000000-0000-4000-8000-{number:012d}",
                "creationTimestamp": "2026-01-01T00:00:00Z",
                "labels": {"app": f"w{workload}", "koordinator.sh/qosClass": qos},
                "annotations": {"kubernetes.io/created-by": "bench"},
                "ownerReferences": [{**owner, "controller": True}],
            },
            "spec": {
                "nodeName": node,
                "priority": value,
                "priorityClassName": priority,
                "schedulerName": "koord-scheduler",
                "tolerations": [
                    {"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": "NoExecute"}
                    for key in ("not-ready", "unreachable")
                ],
                "containers": [
                    {
                        "name": "main",
                        "image": f"registry/w{workload}:1",
                        "command": ["/bin/main", "--serve"],
                        "env": [{"name": f"VARIABLE_{at}", "value": "value"} for at in range(8)],
                        "volumeMounts": [{"name": "token", "mountPath": "/var/run/secrets"}],
                        "resources": {"requests": {"cpu": "1", "memory": "2Gi"}, "limits": {"memory": "4Gi"}},
                    }
                ],
                "volumes": [{"name": "token", "projected": {}}],
            },
            "status": {
                "phase": "Running",
                "conditions": [{"type": kind, "status": "True"} for kind in ("Ready", "PodScheduled", "Initialized")],
                "containerStatuses": [{"name": "main", "ready": True, "state": {"running": {}}}],
            },
        }
        pod = trim_pod(json_decoder(Pod).decode(msgspec.json.encode(document)))
        self.store.put(pod.metadata.key, pod)
        self.world.state.set_pod(pod)
        self.placed[pod.metadata.key] = node
        self.usage[pod.metadata.key] = min(8000, int(1000 * self.rng.lognormvariate(-0.83, 0.9)))

    def report(self, node: str) -> None:
        """The node's NodeMetric, as koordlet writes it."""
        pods = self.world.state.nodes[node].pods.values()
        entries = [
            {
                "namespace": pod.namespace,
                "name": pod.name,
                "podUsage": {"resources": {"cpu": f"{self.usage[pod.key]}m", "memory": "1Gi"}},
            }
            for pod in pods
        ]
        info = {"systemUsage": {"resources": {"cpu": "500m", "memory": "2Gi"}}, "nodeUsage": {"resources": {}}}
        document = {
            "metadata": {"name": node, "resourceVersion": "1"},
            "status": {"nodeMetric": info, "podsMetric": entries},
        }
        load = load_of(json_decoder(NodeMetric).decode(msgspec.json.encode(document)))
        load.updated = self.world.clock.now()
        self.world.state.set_load(load)

    def loads(self) -> list[float]:
        """Percent of the CPUs in use, by node."""
        sums: Counter[str] = Counter(dict.fromkeys(self.world.state.nodes, 500))
        for key, node in self.placed.items():
            sums[node] += self.usage[key]
        return [100 * used / (1000 * NODE_CORES) for used in sums.values()]

    def move(self, pods: list[tuple[PodRecord, EvictOptions]], avoided: Container[str] = ()) -> None:
        """Replace evicted pods on the nodes with the lowest load that have room and are not `avoided`."""
        used: Counter[str] = Counter(dict.fromkeys(self.world.state.nodes, 500))
        for key, node in self.placed.items():
            used[node] += self.usage[key]
        changed: set[str] = set()
        for record, _ in pods:
            target = min(
                (
                    node
                    for node in self.world.state.nodes.values()
                    if node.free("cpu") >= 1000 and node.name != record.node and node.name not in avoided
                ),
                key=lambda node: used[node.name],
            ).name
            changed |= {record.node, target}
            used[record.node] -= self.usage[record.key]
            used[target] += self.usage[record.key]
            self.placed[record.key] = target
            spec = msgspec.structs.replace(record.pod.spec, node_name=target)
            self.world.state.set_pod(msgspec.structs.replace(record.pod, spec=spec))
        for node in changed:
            self.report(node)


def cluster(nodes: int, pods: int, seed: int) -> SimulatedCluster:
    """Pods are spread by their number, which is what a scheduler does that knows only equal requests."""
    cluster = SimulatedCluster(random.Random(seed))
    for number in range(nodes):
        cluster.add_node(f"node-{number:05d}")
    names = list(cluster.world.state.nodes)
    for number in range(pods):
        cluster.add_pod(number, names[number % nodes])
    for name in names:
        cluster.report(name)
    evictor = cluster.world.plugin(DefaultEvictor)
    cluster.world.proxy.connect([evictor], cluster.world.evictor)
    return cluster
