"""Pods as the scheduler sees them: what equal pods share (`Shape`), and what each has for itself (`PodInfo`).

A cluster holds few shapes and many pods, so everything that filters and scorers may read is parsed once a shape:
requests, labels, and what plugins compile for themselves in `Shape.memo`. A `PodInfo` is small; 100,000 of them fit
in memory beside the table. Two pods have one shape when nothing that a plugin may read through the shape differs:
namespace, priority, labels and annotations (without the ones that tell replicas apart), owner, and the scheduling part
of the spec (spec 05 §15.2). What differs between replicas a plugin reads from `PodInfo.pod`, and then it must not let
its results be shared (`Reads.POD`, see `plugin`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from koordlet.api.core import Pod
from koordlet.api.core.pod import Container, ResourceRequirements
from koordlet.api.core.podresources import pod_requests
from koordlet.api.encoding import wire
from koordlet.api.encoding.quantity import Quantity
from koordlet.api.names import DOMAIN_GANG

DEFAULT_CPU_MILLI: Final = 100
DEFAULT_MEMORY: Final = 200 << 20
"""What a container without a request counts as when nodes are scored, upstream's `schedutil` defaults."""

LIMIT: Final = 1 << 53
"""What a pod asks for counts as this at most (8 PiB of memory), and a node never has as much: the sum of a thousand
pods, and a hundred times what a node has, still fit a column."""

REPLICA_LABELS: Final = frozenset(
    (
        "statefulset.kubernetes.io/pod-name",
        "apps.kubernetes.io/pod-index",
        "batch.kubernetes.io/job-completion-index",
    )
)
REPLICA_ANNOTATIONS: Final = frozenset(
    (
        "batch.kubernetes.io/job-completion-index",
        "gang.scheduling.koordinator.sh/network-topology-index",
        "kubectl.kubernetes.io/last-applied-configuration",
        "cni.projectcalico.org/podIP",
    )
)
"""Differ between replicas; a plugin that reads one of them reads it from the pod, not from the shape."""

_encode = msgspec.json.Encoder(order="deterministic", enc_hook=wire.enc_hook).encode


class Shape:
    """What equal pods share. `pod` is the first of them: its name, uid and status must not be read."""

    __slots__ = (
        "annotations", "id", "labels", "look", "memo", "namespace", "nonzero_cpu", "nonzero_memory", "owner_kind",
        "owner_uid", "pod", "priority", "requests", "scheduler",
    )  # fmt: skip

    def __init__(self, number: int, pod: Pod, look: int | None = None) -> None:
        spec, meta = pod.spec, pod.metadata
        self.id: int = number
        self.look: int = number if look is None else look
        """The same for shapes that differ in their gangs only: what is remembered of rows is shared by them."""
        self.pod: Pod = pod
        self.namespace: str = meta.namespace
        self.scheduler: str = spec.scheduler_name
        self.labels: Mapping[str, str] = meta.labels
        self.annotations: Mapping[str, str] = meta.annotations
        self.priority: int = spec.priority or 0
        owner = next((ref for ref in meta.owner_references if ref.controller), None)
        self.owner_kind: str = owner.kind if owner else ""
        self.owner_uid: str = owner.uid if owner else ""
        self.requests: Mapping[str, int] = amounts(pod_requests(pod))
        """What NodeResourcesFit holds against a node: cpu in milli-cores, everything else in whole units."""
        nonzero = amounts(pod_requests(_with_defaults(pod)))
        self.nonzero_cpu: int = nonzero.get("cpu", 0)
        self.nonzero_memory: int = nonzero.get("memory", 0)
        self.memo: dict[str, Any] = {}
        """What plugins compiled for this shape, by a key of their own. Lives as long as the shape."""


class PodInfo:
    """One pod. `row` is its node's row in the table while it is counted there (assumed or bound), else -1."""

    __slots__ = (
        "assumed", "attempts", "created", "first_attempt", "key", "name", "namespace", "nominated", "pod", "row",
        "shape", "start_time", "terminating", "uid", "version",
    )  # fmt: skip

    def __init__(self, pod: Pod, shape: Shape) -> None:
        meta = pod.metadata
        self.pod: Pod = pod
        """The last version seen."""
        self.shape: Shape = shape
        self.uid: str = meta.uid
        self.namespace: str = meta.namespace
        self.name: str = meta.name
        self.key: str = meta.key
        self.version: str = meta.resource_version
        self.row: int = -1
        self.assumed: bool = False
        self.terminating: bool = meta.deletion_timestamp is not None
        self.nominated: str = pod.status.nominated_node_name
        self.created: float = meta.creation_timestamp.timestamp() if meta.creation_timestamp else 0.0
        start = pod.status.start_time
        self.start_time: float | None = start.timestamp() if start else None
        self.attempts: int = 0
        self.first_attempt: float | None = None

    @property
    def priority(self) -> int:
        return self.shape.priority

    @property
    def requests(self) -> Mapping[str, int]:
        return self.shape.requests

    def __repr__(self) -> str:
        return f"PodInfo({self.key})"


class Shapes:
    """Interns shapes: `info(pod)` gives a pod its `PodInfo`, sharing the shape of an equal pod."""

    def __init__(self) -> None:
        self._by_key: dict[bytes, Shape] = {}
        self._looks: dict[bytes, int] = {}
        self._next = 1

    def __len__(self) -> int:
        return len(self._by_key)

    def info(self, pod: Pod) -> PodInfo:
        return PodInfo(pod, self.shape(pod))

    def shape(self, pod: Pod) -> Shape:
        key = shape_key(pod)
        found = self._by_key.get(key)
        if found is None:
            found = self._by_key[key] = Shape(self._next, pod, self._look(pod))
            self._next += 1
        return found

    def _look(self, pod: Pod) -> int | None:
        """The look of a gang's member: every gang has shapes of its own, and most are alike but for the name.

        Its annotations are read only where answers are asked for in every cycle (`Reads.CLUSTER`)."""
        annotations = pod.metadata.annotations
        others = {key: value for key, value in annotations.items() if not key.startswith(DOMAIN_GANG)}
        if len(others) == len(annotations):
            return None
        meta = msgspec.structs.replace(pod.metadata, annotations=others)
        return self._looks.setdefault(shape_key(msgspec.structs.replace(pod, metadata=meta)), self._next)

    def keep(self, used: set[int]) -> None:
        """Forget shapes whose ids are not in `used`: no pod has them any more."""
        self._by_key = {key: shape for key, shape in self._by_key.items() if shape.id in used}
        looks = {shape.look for shape in self._by_key.values()}
        self._looks = {key: look for key, look in self._looks.items() if look in looks}


def amounts(resources: Mapping[str, Any]) -> dict[str, int]:
    """Quantities as integers, rounded up: cpu in milli-cores, everything else in whole units (spec 05 §3.1).

    Within 0 and `LIMIT`: one absurd pod must not make a node look empty to others."""
    return {name: min(max(q.milli_value() if name == "cpu" else q.value(), 0), LIMIT) for name, q in resources.items()}


def shape_key(pod: Pod) -> bytes:
    """Equal for pods that share a shape."""
    spec, meta = pod.spec, pod.metadata
    owner = next(((ref.kind, ref.uid) for ref in meta.owner_references if ref.controller), ())
    volumes = [v for v in spec.volumes if v.persistent_volume_claim or v.ephemeral or v.csi or v.host_path or v.is_disk]
    named = meta.name if any(v.ephemeral for v in volumes) else ""  # its claim is named after the pod
    return _encode(
        (
            meta.namespace,
            named,
            owner,
            {k: v for k, v in meta.labels.items() if k not in REPLICA_LABELS},
            {k: v for k, v in meta.annotations.items() if k not in REPLICA_ANNOTATIONS},
            spec.scheduler_name,
            spec.priority,
            spec.preemption_policy,
            spec.node_selector,
            spec.affinity,
            spec.tolerations,
            spec.topology_spread_constraints,
            spec.host_network,
            spec.overhead,
            spec.resources,
            [[c.image, c.resources, c.restart_policy, c.ports] for c in spec.init_containers],
            [[c.image, c.resources, c.ports] for c in spec.containers],
            volumes,
        )
    )


def _with_defaults(pod: Pod) -> Pod:
    """The pod with cpu and memory requests where a container has none."""

    def filled(container: Container) -> Container:
        requests = {**_DEFAULTS, **container.resources.requests}
        return msgspec.structs.replace(
            container, resources=ResourceRequirements(limits=container.resources.limits, requests=requests)
        )

    spec = msgspec.structs.replace(
        pod.spec,
        containers=[filled(c) for c in pod.spec.containers],
        init_containers=[filled(c) for c in pod.spec.init_containers],
    )
    return msgspec.structs.replace(pod, spec=spec)


_DEFAULTS: Final = {"cpu": Quantity.milli(DEFAULT_CPU_MILLI), "memory": Quantity.of(DEFAULT_MEMORY)}
