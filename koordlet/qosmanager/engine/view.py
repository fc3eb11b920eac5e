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
from koordlet.api.core import Container, Node, Pod, pod_limits
from koordlet.api.crs.slo import NodeSLOSpec
from koordlet.api.encoding.quantity import Quantity
from koordlet.api.encoding.wire import WireError
from koordlet.api.qos import BE, LS, LSE, LSR, NONE, raw_qos_class
from koordlet.api.sloconfig.interference import InterferenceStrategy
from koordlet.app.logging import get_logger
from koordlet.interference.model import Verdict
from koordlet.qosmanager.rules.cpu import CPURules
from koordlet.resourceexecutor import Setting, Value
from koordlet.statesinformer.pods.model import ContainerMeta, PodMeta
from koordlet.system.cgroup.codecs import UNLIMITED, milli_to_quota
from koordlet.system.cpu.cpuset import CPUSet, CPUSetError
from koordlet.system.cpu.cputopology import CpuTopology

log = get_logger(__name__)

BEST_EFFORT = "BestEffort"
ACTIVE = ("Pending", "Running")
NO_CPUS = CPUSet()
Current = Callable[[Setting], Value | None]


@dataclass(frozen=True, slots=True)
class Average:
    """A series over a window that ends now."""

    mean: float
    last: float
    count: int


Averages = Callable[[str, tuple[str, ...], float], Average | None]
"""(kind, labels, seconds) -> the series' average; None without samples."""


MemoryNow = Callable[[str], tuple[int, float | None] | None]
"""A cgroup's directory -> bytes charged, the kernel's own included, and seconds so far with a task stalled for memory
(None without PSI); None for a group that is gone. Reads the kernel: for the few that matter."""


@dataclass(frozen=True, slots=True)
class ContainerView:
    """A container with an id and what it did last; `throttled` is the share of its periods."""

    meta: ContainerMeta
    cpu: int | None = None
    throttled: float | None = None
    charged: int | None = None
    """Bytes with page cache."""


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
    numa_nodes: tuple[int, ...] = ()
    """NUMA nodes on which the scheduler gave it CPU time (`resource-status`)."""
    allocation_error: str = ""
    """What is wrong with its `resource-status`, which then counts as absent."""
    containers: tuple[ContainerView, ...] = ()
    charged: int | None = None
    """Bytes with page cache; `memory` is without."""

    @classmethod
    def of(
        cls,
        meta: PodMeta,
        cpu: int | None,
        memory: int | None,
        containers: tuple[ContainerView, ...] = (),
        charged: int | None = None,
    ) -> PodView:
        """A pod that came from the kubelet. A malformed annotation is said once and counts as absent."""
        pod = meta.pod
        qos = "" if pod is None else raw_qos_class(pod)
        cpuset, nodes, error = _allocation(pod)
        views = containers or tuple(map(ContainerView, meta.containers))
        return cls(meta, cpu, memory, qos, cpuset, nodes, error, views, charged)

    @property
    def active(self) -> bool:
        """Pending or running."""
        return self.meta.pod is None or self.meta.pod.status.phase in ACTIVE

    @property
    def normalizes(self) -> bool:
        """Whether its quotas follow the node's normalization (spec 03 §4.8)."""
        return self.raw_qos in (LS, NONE) and not self.cpuset

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
class Judged:
    """What interference detection says: verdicts whose alarm is on, and when it last looked."""

    verdicts: tuple[Verdict, ...]
    strategy: InterferenceStrategy
    at: float | None
    """On the view's clock; None before the first look."""


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

    cpu_rules: CPURules | None = None
    """What NodeResourceTopology says; None while it says nothing readable."""
    normalization: float = 1.0
    """How much faster than the cluster's normal this node's CPUs are, 1 for as fast."""
    judged: Judged | None = None
    """None where nothing detects interference."""
    memory_now: MemoryNow = lambda directory: None
    io_now: Callable[[str], float | None] = lambda container: None
    """Container id -> bytes a second of block I/O, all disks together, over the collector's window; None where nothing
    counts."""
    normalized: bool = True
    """Whether services' quotas follow that (gate CPUNormalization); those of batch resources always do."""

    newborns: tuple[PodView, ...] = ()
    """Pods that a hook told of and the kubelet did not show yet: settings follow them (`runtimehooks.hooks.followed`),
    nobody evicts them or counts their use."""
    births: bool = False
    """Whether only newborns are to be decided about now; the others are there for what newborns get beside them."""

    @property
    def best_effort_dir(self) -> str:
        """Empty while the kubelet's directories are unknown."""
        return self.qos_dirs.get(BEST_EFFORT, "")

    def quota_of(self, container: Container) -> int:
        """Microseconds of quota that belong to the limit of a container whose pod `normalizes`; UNLIMITED without."""
        return normalized_quota(container_quota(container), self.normalization if self.normalized else 1.0)

    def ratio_of(self, pod: PodView) -> float:
        """What the pod's quotas are divided by."""
        return self.normalization if self.normalized and pod.normalizes else 1.0

    def capacity(self, resource: str) -> int:
        """Milli-cores for cpu, else whole units; 0 while unknown."""
        return _amount({} if self.node is None else self.node.status.capacity, resource)

    def allocatable(self, resource: str) -> int:
        """As `capacity`."""
        return _amount({} if self.node is None else self.node.status.allocatable, resource)

    @property
    def reserved_cpus(self) -> CPUSet:
        """CPUs that nobody but the system may use: the node's reservation and class SYSTEM's exclusive ones."""
        if self.cpu_rules is not None:  # where a reservation of amounts has become one of CPUs
            return self.cpu_rules.withheld
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


def container_quota(container: Container) -> int:
    """Microseconds that the kubelet gives it for its limit; UNLIMITED without one."""
    limit = container.resources.limits.get("cpu")
    return UNLIMITED if limit is None else milli_to_quota(limit.milli_value())


def pod_quota(pod: Pod) -> int:
    """Microseconds that the kubelet gives the pod; UNLIMITED as soon as one container has no limit."""
    if not all(one.resources.limits.get("cpu") for one in (*pod.spec.containers, *pod.spec.init_containers)):
        return UNLIMITED
    return milli_to_quota(_amount(pod_limits(pod), "cpu"))


def normalized_quota(quota: int, ratio: float) -> int:
    """A limited quota on CPUs that are `ratio` times as fast as normal; slower ones get no more than their limit."""
    return ceil(quota / ratio) if quota > 0 and ratio > 1 else quota


def _amount(resources: Mapping[str, Quantity], resource: str) -> int:
    amount = resources.get(resource)
    if amount is None:
        return 0
    return amount.milli_value() if resource == "cpu" else amount.value()


def _allocation(pod: Pod | None) -> tuple[CPUSet, tuple[int, ...], str]:
    """CPUs, NUMA nodes and what is wrong."""
    if pod is None or names.ANNOTATION_RESOURCE_STATUS not in pod.metadata.annotations:
        return NO_CPUS, (), ""
    try:
        status = RESOURCE_STATUS.get(pod.metadata.annotations)
        nodes = [one.node for one in status.numa_node_resources if _takes_cpu(one.resources)]
        return CPUSet.parse(status.cpuset), tuple(nodes), ""
    except (WireError, CPUSetError) as error:
        _complain(f"pod {pod.metadata.key}", names.ANNOTATION_RESOURCE_STATUS, error)
        return NO_CPUS, (), f"{names.ANNOTATION_RESOURCE_STATUS}: {error}"


def _takes_cpu(resources: Mapping[str, Quantity]) -> bool:
    batch = resources.get(names.RESOURCE_BATCH_CPU)
    return _amount(resources, "cpu") != 0 or (batch is not None and batch.value() > 0)


def _reserved(annotations: Mapping[str, str]) -> CPUSet:
    try:
        said = RESERVATION.get(annotations)
        return CPUSet.parse(said.reserved_cpus) if said is not None else CPUSet()
    except (WireError, CPUSetError) as error:
        _complain("node", names.ANNOTATION_NODE_RESERVATION, error)
        return CPUSet()


def _system(annotations: Mapping[str, str]) -> CPUSet:
    try:
        said = system_qos_resource(annotations)
        return CPUSet.parse(said.cpuset) if said is not None and said.exclusive else CPUSet()
    except (WireError, CPUSetError) as error:
        _complain("node", names.ANNOTATION_SYSTEM_QOS_RESOURCE, error)
        return CPUSet()


def _complain(who: str, key: str, error: Exception) -> None:
    log.once(f"{who}:{key}:{error}", "annotation ignored", object=who, annotation=key, error=str(error))
