"""Pods in the scheduler: data shared by equal pods (`Shape`), and the data of a single pod (`PodInfo`).

A cluster has few shapes and many pods. Therefore everything that filters and scorers read is parsed once per shape:
requests, labels, and data that plugins compile into `Shape.memo`. A `PodInfo` is small; 100,000 of them fit in memory
beside the table. Two pods share a shape when everything that a plugin may read through the shape is equal: namespace,
priority, labels and annotations (without those that distinguish replicas or are results of scheduling), owner, and the
scheduling part of the spec (spec 05 §15.2). A plugin that reads data of a single replica from `PodInfo.pod` must not
share its results between pods (`Reads.CLUSTER`, see `framework.plugin`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from control.component.amounts import amounts
from koordlet.api import names
from koordlet.api.core import Pod
from koordlet.api.core.pod import Container, ResourceRequirements
from koordlet.api.core.podresources import pod_requests
from koordlet.api.encoding import wire
from koordlet.api.encoding.quantity import Quantity

DEFAULT_CPU_MILLI: Final = 100
DEFAULT_MEMORY_BYTES: Final = 200 << 20
"""Requests that score plugins assume for a container without requests; kube-scheduler's `schedutil` defaults."""

POD: Final = "Pod"
"""The usual kind of subject."""

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
"""Labels and annotations that differ between replicas. A plugin reads them from the pod, not from the shape."""
RESULT_ANNOTATIONS: Final = frozenset(
    (
        names.ANNOTATION_RESOURCE_STATUS,
        names.ANNOTATION_DEVICE_ALLOCATED,
        names.ANNOTATION_RESERVATION_ALLOCATED,
        names.ANNOTATION_GPU_MINORS,
        names.ANNOTATION_BIND_TIMESTAMP,
        names.ANNOTATION_BIND_GANG_GROUP_ID,
        names.ANNOTATION_BIND_GANG_MEMBER_COUNT,
        names.ANNOTATION_BIND_GANG_GROUP_ID_DEPRECATED,
        names.ANNOTATION_BIND_GANG_MEMBER_COUNT_DEPRECATED,
    )
)
"""Annotations that the scheduler writes when it binds a pod. They are no part of the shape: otherwise each bound pod
with CPUs or devices of its own would have a shape of its own. A plugin reads them from the pod.

Only of pods with a scheduling hint they are part of the shape, because with it they may designate what the
pod is to get (`plugins.schedulinghint.designates`)."""

_encode = msgspec.json.Encoder(order="deterministic", enc_hook=wire.enc_hook).encode


class Shape:
    """Data shared by equal pods. `pod` is the first of them: its name, uid, status and result annotations must not be
    read."""

    __slots__ = (
        "annotations",
        "equivalence_id",
        "id",
        "labels",
        "memo",
        "namespace",
        "nonzero_cpu",
        "nonzero_memory",
        "owner_kind",
        "owner_uid",
        "pod",
        "priority",
        "requests",
        "scheduler",
    )

    def __init__(self, number: int, pod: Pod, equivalence_id: int | None) -> None:
        spec, meta = pod.spec, pod.metadata
        self.id: int = number
        self.equivalence_id: int = number if equivalence_id is None else equivalence_id
        """Equal for shapes that differ only in their gangs or quotas: they share the equivalence cache."""
        self.pod: Pod = pod
        self.namespace: str = meta.namespace
        self.scheduler: str = spec.scheduler_name
        self.labels: Mapping[str, str] = meta.labels
        results = _results(meta.annotations)
        self.annotations: Mapping[str, str] = {k: v for k, v in meta.annotations.items() if k not in results}
        self.priority: int = spec.priority or 0
        owner = next((ref for ref in meta.owner_references if ref.controller), None)
        self.owner_kind: str = owner.kind if owner else ""
        self.owner_uid: str = owner.uid if owner else ""
        self.requests: Mapping[str, int] = amounts(pod_requests(pod))
        """The amounts that NodeResourcesFit compares: cpu in milli-cores, other resources in whole units."""
        nonzero = amounts(pod_requests(_with_defaults(pod)))
        self.nonzero_cpu: int = nonzero.get("cpu", 0)
        self.nonzero_memory: int = nonzero.get("memory", 0)
        self.memo: dict[str, Any] = {}
        """Data that plugins compiled for this shape, by a key of the plugin. Lives as long as the shape."""


def subject_key(pod: Pod, subject: str) -> str:
    """Unique among all subjects: no namespace has a capital letter."""
    return pod.metadata.key if subject == POD else f"{subject}/{pod.metadata.name}"


class PodInfo:
    """One pod. `row` is its node's row in the table while it is counted there (assumed or bound), else -1."""

    __slots__ = (
        "assumed",
        "attempts",
        "created",
        "expected",
        "first_attempt",
        "key",
        "name",
        "namespace",
        "nominated",
        "pod",
        "row",
        "shape",
        "start_time",
        "subject",
        "terminating",
        "uid",
        "version",
    )

    def __init__(self, pod: Pod, shape: Shape, subject: str = POD) -> None:
        meta = pod.metadata
        self.subject: str = subject
        """The kind of API object that this stands for, see `state.subjects`."""
        self.pod: Pod = pod
        """The last known version."""
        self.shape: Shape = shape
        self.uid: str = meta.uid
        self.namespace: str = meta.namespace
        self.name: str = meta.name
        self.key: str = subject_key(pod, subject)
        self.version: str = meta.resource_version
        self.row: int = -1
        self.assumed: bool = False
        self.terminating: bool = meta.deletion_timestamp is not None
        self.nominated: str = pod.status.nominated_node_name
        self.created: float = meta.creation_timestamp.timestamp() if meta.creation_timestamp else 0.0
        start = pod.status.start_time
        self.start_time: float | None = start.timestamp() if start else None
        self.expected: str = ""
        """The node that this process wrote into `status.nominatedNodeName` while it bound the pod."""
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
    """Interns shapes: `info(pod)` creates a `PodInfo` that shares the shape of equal pods."""

    def __init__(self) -> None:
        self._by_key: dict[bytes, Shape] = {}
        self._equivalence_ids: dict[bytes, int] = {}
        self._next = 1

    def __len__(self) -> int:
        return len(self._by_key)

    def info(self, pod: Pod, subject: str = POD) -> PodInfo:
        return PodInfo(pod, self.shape(pod), subject)

    def shape(self, pod: Pod) -> Shape:
        key = shape_key(pod)
        shape = self._by_key.get(key)
        if shape is None:
            shape = self._by_key[key] = Shape(self._next, pod, self._equivalence_id(pod))
            self._next += 1
        return shape

    def _equivalence_id(self, pod: Pod) -> int | None:
        """For gang members and pods of quotas: every gang and quota has its own shapes, and most of them differ only in
        its name.

        Gang annotations and other pods' selectors of labels are read only by plugins whose results are not cached
        (`Reads.CLUSTER`), quotas before any node is evaluated."""
        annotations, labels = pod.metadata.annotations, pod.metadata.labels
        unrelated = {key: value for key, value in annotations.items() if not key.startswith(names.DOMAIN_GANG)}
        if len(unrelated) == len(annotations) and names.LABEL_QUOTA_NAME not in labels:
            return None
        labels = {key: value for key, value in labels.items() if key != names.LABEL_QUOTA_NAME}
        meta = msgspec.structs.replace(pod.metadata, annotations=unrelated, labels=labels)
        return self._equivalence_ids.setdefault(shape_key(msgspec.structs.replace(pod, metadata=meta)), self._next)

    def keep(self, used: set[int]) -> None:
        """Drop shapes whose ids are not in `used`: no pod has them any more."""
        self._by_key = {key: shape for key, shape in self._by_key.items() if shape.id in used}
        kept = {shape.equivalence_id for shape in self._by_key.values()}
        self._equivalence_ids = {key: number for key, number in self._equivalence_ids.items() if number in kept}


def shape_key(pod: Pod) -> bytes:
    """Equal for pods that share a shape."""
    spec, meta = pod.spec, pod.metadata
    owner = next(((ref.kind, ref.uid) for ref in meta.owner_references if ref.controller), ())
    volumes = [v for v in spec.volumes if v.persistent_volume_claim or v.ephemeral or v.csi or v.host_path or v.is_disk]
    named = meta.name if any(v.ephemeral for v in volumes) else ""  # the name of its claim contains the pod's name
    results = _results(meta.annotations)
    return _encode(
        (
            meta.namespace,
            named,
            owner,
            {k: v for k, v in meta.labels.items() if k not in REPLICA_LABELS},
            {k: v for k, v in meta.annotations.items() if k not in REPLICA_ANNOTATIONS and k not in results},
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


def _results(annotations: Mapping[str, str]) -> frozenset[str]:
    """The annotations that are results of the scheduler."""
    hinted = names.ANNOTATION_SCHEDULING_HINT in annotations or names.ANNOTATION_SCHEDULING_HINT_OLD in annotations
    return frozenset() if hinted else RESULT_ANNOTATIONS


def _with_defaults(pod: Pod) -> Pod:
    """The pod with default cpu and memory requests for containers that have none."""

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


_DEFAULTS: Final = {"cpu": Quantity.milli(DEFAULT_CPU_MILLI), "memory": Quantity.of(DEFAULT_MEMORY_BYTES)}
