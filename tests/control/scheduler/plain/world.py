"""A cluster as plain lists with amounts as plain integers, for the slow implementations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from koordlet.api.core import Node, PersistentVolume, PersistentVolumeClaim, Pod, StorageClass
from koordlet.api.core.podresources import pod_requests
from koordlet.api.core.storage import CSIDriver, CSINode, CSIStorageCapacity
from koordlet.api.crs.nodemetric import NodeMetric
from koordlet.api.meta import LabelSelector

Verdict = tuple[str, tuple[str, ...]] | None
"""None: accepted; else (code as kube-scheduler prints it, reasons)."""

U = "UnschedulableAndUnresolvable"
S = "Unschedulable"


@dataclass
class Storage:
    """Everything that volumes are made of, as plain lists."""

    claims: Sequence[PersistentVolumeClaim] = ()
    volumes: Sequence[PersistentVolume] = ()
    classes: Sequence[StorageClass] = ()
    nodes: Sequence[CSINode] = ()
    drivers: Sequence[CSIDriver] = ()
    capacities: Sequence[CSIStorageCapacity] = ()
    promised: Mapping[str, str] = field(default_factory=dict)
    """Volume -> claim (`namespace/name`) that it is just being bound to, for a pod that has its node."""
    being_made: Mapping[str, str] = field(default_factory=dict)
    """Claim -> node that its volume is just being ordered for."""


@dataclass
class World:
    """`pods` are those that name a node; those of nodes that are not listed don't count."""

    nodes: Sequence[Node]
    pods: Sequence[Pod] = ()
    namespaces: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Labels of namespaces."""
    default_selectors: Mapping[str, LabelSelector] = field(default_factory=dict)
    """Pod name -> the selector of the services and controllers that it belongs to."""
    images: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Node -> image name -> bytes."""
    storage: Storage = field(default_factory=Storage)
    metrics: Mapping[str, NodeMetric] = field(default_factory=dict)
    """Node -> its last report."""
    now: float = 0.0
    since: Mapping[str, float] = field(default_factory=dict)
    """Pod's uid -> when it was given its node."""
    nominated: Sequence[Pod] = ()
    """Pods that wait, as if they were on the nodes that they are nominated to."""

    def on(self, node: Node) -> list[Pod]:
        return [pod for pod in self.pods if pod.spec.node_name == node.metadata.name]


def requests(pod: Pod) -> dict[str, int]:
    return {name: q.milli_value() if name == "cpu" else q.value() for name, q in pod_requests(pod).items()}


def nonzero(pod: Pod) -> tuple[int, int]:
    """(milli-cores, bytes) with 100m and 200Mi for a container that asks for none; no init containers here."""
    cpu = memory = 0
    for container in pod.spec.containers:
        requests = container.resources.requests
        cpu += requests["cpu"].milli_value() if "cpu" in requests else 100
        memory += requests["memory"].value() if "memory" in requests else 200 * 1024 * 1024
    overhead = pod.spec.overhead
    cpu += overhead["cpu"].milli_value() if "cpu" in overhead else 0
    memory += overhead["memory"].value() if "memory" in overhead else 0
    return cpu, memory


def allocatable(node: Node) -> dict[str, int]:
    return {name: q.milli_value() if name == "cpu" else q.value() for name, q in node.status.allocatable.items()}


def selects(selector: LabelSelector | None, labels: Mapping[str, str]) -> bool:
    """An absent selector selects nothing."""
    return selector is not None and selector.matches(labels)


def scaled(scores: Mapping[str, int], *, reverse: bool = False) -> dict[str, int]:
    """Upstream's default normalization."""
    highest = max(scores.values(), default=0)
    if highest == 0:
        return dict.fromkeys(scores, 100) if reverse else dict(scores)
    return {name: 100 - s * 100 // highest if reverse else s * 100 // highest for name, s in scores.items()}
