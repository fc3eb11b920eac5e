"""The node as strategies see it in one round: objects, use and topology, frozen. Built by `daemon` from the states
informer and the metrics advisor; tests make them by hand.

CPU is in milli-cores (integers, truncated), memory in bytes. Absent use is None: a pod that nobody has measured yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import ceil

from koordlet.api import names
from koordlet.api.annotations.node import RESERVATION, system_qos_resource
from koordlet.api.annotations.scheduling import RESOURCE_STATUS
from koordlet.api.core import Container, Node, Pod
from koordlet.api.qos import BE, LSE, LSR, raw_qos_class
from koordlet.api.quantity import Quantity
from koordlet.api.slo import NodeSLOSpec
from koordlet.api.wire import WireError
from koordlet.app.logging import get_logger
from koordlet.resourceexecutor import Setting, Value
from koordlet.statesinformer.model import ContainerMeta, PodMeta
from koordlet.system.cgroup.codecs import UNLIMITED, milli_to_quota
from koordlet.system.cpuset import CPUListError, CPUSet
from koordlet.system.cputopology import CpuTopology

log = get_logger(__name__)

BEST_EFFORT = "BestEffort"
ACTIVE = ("Pending", "Running")
Current = Callable[[Setting], Value | None]


@dataclass(frozen=True, slots=True)
class Average:
    """A series over a window that ends now."""

    mean: float
    last: float
    count: int


Averages = Callable[[str, tuple[str, ...], float], Average | None]
"""(kind, labels, seconds) -> the series' average; None without samples."""


@dataclass(frozen=True, slots=True)
class ContainerView:
    """A container with an id and what it did last; `throttled` is the share of its periods."""

    meta: ContainerMeta
    cpu: int | None = None
    throttled: float | None = None


@dataclass(frozen=True, slots=True)
class PodView:
    """A pod and what it used last."""

    meta: PodMeta
    cpu: int | None = None
    memory: int | None = None
    raw_qos: str = ""
    """What the label says, empty without one (spec 03 §0)."""
    cpuset: CPUSet = field(default_factory=CPUSet)
    """CPUs that the scheduler pinned it to (`resource-status`); empty for none."""
    containers: tuple[ContainerView, ...] = ()

    @classmethod
    def of(
        cls, meta: PodMeta, cpu: int | None, memory: int | None, containers: tuple[ContainerView, ...] = ()
    ) -> PodView:
        """A pod that came from the kubelet. A malformed annotation is said once and counts as absent."""
        pod = meta.pod
        qos = "" if pod is None else raw_qos_class(pod)
        return cls(meta, cpu, memory, qos, _pinned(pod), containers or tuple(map(ContainerView, meta.containers)))

    @property
    def active(self) -> bool:
        """Pending or running."""
        return self.meta.pod is None or self.meta.pod.status.phase in ACTIVE

    @property
    def best_effort(self) -> bool:
        """Best effort in Koordinator's or in Kubernetes' sense."""
        return self.raw_qos == BE or self.meta.kube_qos == BEST_EFFORT


@dataclass(frozen=True, slots=True)
class HostAppView:
    """A host application and what it used last."""

    name: str
    qos: str
    best_effort_dir: bool
    """Whether its cgroup is below the BestEffort directory."""
    cgroup_dir: str = ""
    cpu: int | None = None
    memory: int | None = None

    @property
    def best_effort(self) -> bool:
        return self.qos == BE and self.best_effort_dir


@dataclass(frozen=True, slots=True)
class NodeView:
    """One round's picture. `current` answers what the kernel holds for a setting."""

    now: float
    slo: NodeSLOSpec
    node: Node | None
    pods: tuple[PodView, ...]
    current: Current
    average: Averages = lambda kind, labels, seconds: None
    qos_dirs: Mapping[str, str] = field(default_factory=dict)
    """Kubernetes QoS class -> cgroup directory; Guaranteed's is that of all pods."""
    host_apps: tuple[HostAppView, ...] = ()
    cpu: int | None = None
    """Milli-cores that the node used last."""
    memory: int | None = None
    topology: CpuTopology | None = None
    kubelet_static: bool = False
    """Whether the kubelet's CPU manager pins containers itself."""

    normalization: float = 1.0
    """How much faster than the cluster's normal this node's CPUs are, 1 for as fast."""

    newborns: tuple[PodView, ...] = ()
    """Pods that a hook told of and the kubelet did not show yet: settings follow them (`runtimehooks.hooks.followed`),
    nobody evicts them or counts their use."""

    @property
    def best_effort_dir(self) -> str:
        """Empty while the kubelet's directories are unknown."""
        return self.qos_dirs.get(BEST_EFFORT, "")

    def quota_of(self, container: Container) -> int:
        """Microseconds of quota that belong to the container's limit on this node; UNLIMITED without one."""
        limit = container.resources.limits.get("cpu")
        quota = UNLIMITED if limit is None else milli_to_quota(limit.milli_value())
        return ceil(quota / self.normalization) if quota > 0 and self.normalization > 1 else quota

    def capacity(self, resource: str) -> int:
        """Milli-cores for cpu, else whole units; 0 while unknown."""
        return _amount({} if self.node is None else self.node.status.capacity, resource)

    def allocatable(self, resource: str) -> int:
        """As `capacity`."""
        return _amount({} if self.node is None else self.node.status.allocatable, resource)

    @property
    def reserved_cpus(self) -> CPUSet:
        """CPUs that nobody but the system may use: the node's reservation and class SYSTEM's exclusive ones."""
        annotations = {} if self.node is None else self.node.metadata.annotations
        return _reserved(annotations) | _system(annotations)

    def reserved(self, resource: str) -> int:
        """What the node keeps for itself: capacity beyond allocatable, or more if its annotation says so."""
        kept = max(self.capacity(resource) - self.allocatable(resource), 0) if self.node is not None else 0
        annotations = {} if self.node is None else self.node.metadata.annotations
        try:
            said = RESERVATION.get(annotations)
        except WireError:  # said by `reserved_cpus`
            return kept
        if said is None:
            return kept
        cpus = _reserved(annotations)
        asked = len(cpus) * 1000 if cpus and resource == "cpu" else _amount(said.resources, resource)
        return max(kept, asked)


def pinned_elsewhere(pods: Iterable[PodView], qos: str) -> CPUSet:
    """CPUs of all pods of that class that the scheduler pinned."""
    found: frozenset[int] = frozenset()
    for pod in pods:
        if pod.raw_qos == qos:
            found |= pod.cpuset
    return CPUSet(found)


def exclusive(pods: Iterable[PodView]) -> tuple[CPUSet, CPUSet]:
    """CPUs of LSE pods, which nobody shares, and of LSR pods."""
    known = tuple(pods)
    return pinned_elsewhere(known, LSE), pinned_elsewhere(known, LSR)


def _amount(resources: Mapping[str, Quantity], resource: str) -> int:
    amount = resources.get(resource)
    if amount is None:
        return 0
    return amount.milli_value() if resource == "cpu" else amount.value()


def _pinned(pod: Pod | None) -> CPUSet:
    if pod is None:
        return CPUSet()
    try:
        return CPUSet.parse(RESOURCE_STATUS.get(pod.metadata.annotations).cpuset)
    except (WireError, CPUListError) as error:
        _complain(f"pod {pod.metadata.key}", names.ANNOTATION_RESOURCE_STATUS, error)
        return CPUSet()


def _reserved(annotations: Mapping[str, str]) -> CPUSet:
    try:
        said = RESERVATION.get(annotations)
        return CPUSet.parse(said.reserved_cpus) if said is not None else CPUSet()
    except (WireError, CPUListError) as error:
        _complain("node", names.ANNOTATION_NODE_RESERVATION, error)
        return CPUSet()


def _system(annotations: Mapping[str, str]) -> CPUSet:
    try:
        said = system_qos_resource(annotations)
        return CPUSet.parse(said.cpuset) if said is not None and said.exclusive else CPUSet()
    except (WireError, CPUListError) as error:
        _complain("node", names.ANNOTATION_SYSTEM_QOS_RESOURCE, error)
        return CPUSet()


def _complain(who: str, key: str, error: Exception) -> None:
    log.once(f"{who}:{key}:{error}", "annotation ignored", object=who, annotation=key, error=str(error))
