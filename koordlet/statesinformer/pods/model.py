"""The node's workloads as one immutable snapshot (spec 02 §3.4).

`Workloads` is replaced as a whole when pods or cgroups change and never modified, so a tick uses one snapshot from its
first read to its last. A `Subject` is a cgroup for which figures are collected. Readers do not depend on the source of
the snapshot (the kubelet, or the cgroup tree alone).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from koordlet.api.core import Pod
from koordlet.statesinformer.pods.cpuallocation import NO_ALLOCATION, CPUAllocation
from koordlet.statesinformer.pods.deviceallocation import NO_DEVICES, AllocatedDevices


class SubjectKind(StrEnum):
    """The kind of workload that a cgroup belongs to."""

    POD = "pod"
    CONTAINER = "container"
    QOS = "qos"
    """The directory of a Kubernetes QoS class."""
    HOST_APP = "host-application"
    GROUP = "group"
    """A service, slice, session or other cgroup outside Kubernetes."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A cgroup for which figures are collected."""

    kind: SubjectKind
    key: str
    """Identity in the metric cache: pod UID, container id (`<runtime>://<hash>`), QoS class, application name, path."""
    cgroup_dir: str
    """Relative to a hierarchy's root, without leading or trailing slash."""
    name: str
    """For display: name of the container, pod or unit."""
    qos: str = ""
    """LSE, LSR, LS, BE, SYSTEM, or empty outside Kubernetes."""
    priority_class: str = ""
    pod_uid: str = ""
    pod_name: str = ""
    namespace: str = ""
    running: bool = True


@dataclass(frozen=True, slots=True)
class ContainerMeta:
    """A container that has an id."""

    id: str
    name: str
    cgroup_dir: str
    running: bool


@dataclass(frozen=True, slots=True)
class PodMeta:
    """A pod of this node with its cgroup directories."""

    uid: str
    name: str
    namespace: str
    qos: str
    priority_class: str
    kube_qos: str
    cgroup_dir: str
    containers: tuple[ContainerMeta, ...]
    pod: Pod | None = None
    """None if the pod is known only by its cgroup."""
    task_ids: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Thread ids by container id, with `--enable-pod-taskids`."""
    sandbox_dir: str = ""
    """Cgroup of the pause container; empty while unknown."""
    cpu_allocation: CPUAllocation = NO_ALLOCATION
    """The CPUs that the scheduler allocated to it, as accepted."""
    device_allocation: AllocatedDevices = NO_DEVICES
    """The devices that the scheduler allocated to it, as accepted."""


@dataclass(frozen=True, slots=True)
class Workloads:
    """All subjects in a fixed order; `version` changes when the content does."""

    version: int = 0
    pods: MappingProxyType[str, PodMeta] = field(default_factory=lambda: MappingProxyType({}))
    subjects: tuple[Subject, ...] = ()
    rows: Mapping[SubjectKind, list[int]] = field(init=False, repr=False, compare=False)
    """Indexes in `subjects` by kind."""
    row_arrays: Mapping[SubjectKind, NDArray[np.intp]] = field(init=False, repr=False, compare=False)
    """`rows` as arrays, which index columns in each tick."""
    series: Mapping[SubjectKind, list[tuple[str]]] = field(init=False, repr=False, compare=False)
    """Series labels by kind, in the order of `rows`. Each tick uses the same objects, which makes comparison fast."""

    def __post_init__(self) -> None:
        rows: dict[SubjectKind, list[int]] = {kind: [] for kind in SubjectKind}
        for row, subject in enumerate(self.subjects):
            rows[subject.kind].append(row)
        object.__setattr__(self, "rows", rows)
        arrays = {kind: np.array(indexes, dtype=np.intp) for kind, indexes in rows.items()}
        object.__setattr__(self, "row_arrays", arrays)
        series = {kind: [(self.subjects[row].key,) for row in indexes] for kind, indexes in rows.items()}
        object.__setattr__(self, "series", series)


def subjects_of(pod: PodMeta) -> list[Subject]:
    """The pod first, then its containers."""
    whole = Subject(
        SubjectKind.POD,
        pod.uid,
        pod.cgroup_dir,
        pod.name,
        qos=pod.qos,
        priority_class=pod.priority_class,
        pod_uid=pod.uid,
        pod_name=pod.name,
        namespace=pod.namespace,
    )
    return [
        whole,
        *(
            replace(
                whole, kind=SubjectKind.CONTAINER, key=c.id, cgroup_dir=c.cgroup_dir, name=c.name, running=c.running
            )
            for c in pod.containers
        ),
    ]
