"""The node as strategies see it in one round: objects, use and topology, frozen. Built by `viewbuilder.ViewBuilder`;
tests build it directly.

CPU is in milli-cores (integers, truncated), memory in bytes. Use is None for a pod that was not measured yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import ceil

from koordlet.api import names
from koordlet.api.annotations.node import RESERVATION, system_qos_resource
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
CPUSET, CPUSET_EFFECTIVE, CPU_QUOTA = "cpuset.cpus", "cpuset.cpus.effective", "cpu.cfs_quota_us"
Current = Callable[[Setting], Value | None]
"""What the kernel has for a setting; reads the kernel."""


@dataclass(frozen=True, slots=True)
class SeriesAverage:
    """A series over a window that ends now."""

    mean: float
    last: float
    count: int


Averages = Callable[[str, tuple[str, ...], float], SeriesAverage | None]
"""(kind, labels, seconds) -> the series' average; None without samples."""
MemoryNow = Callable[[str], tuple[int, float | None] | None]
"""A cgroup's directory -> bytes charged, kernel memory included, and cumulative seconds with a task stalled for memory
(None without PSI); None for a removed cgroup. Reads the kernel, so it is for few cgroups."""
IoNow = Callable[[str], float | None]
"""Container id -> bytes per second of block I/O, all disks together, over the collector's window; None where it is not
measured."""


@dataclass(frozen=True, slots=True)
class ContainerView:
    """A container with an id, and its latest figures; `throttled` is a fraction of its quota periods."""

    meta: ContainerMeta
    cpu: int | None = None
    throttled: float | None = None
    charged: int | None = None
    """Bytes with page cache."""


@dataclass(frozen=True, slots=True)
class PodView:
    """A pod and its latest use."""

    meta: PodMeta
    cpu: int | None = None
    memory: int | None = None
    raw_qos: str = ""
    """The label's value, empty without one (spec 03 §0)."""
    cpuset: CPUSet = field(default_factory=CPUSet)
    """CPUs that the scheduler pinned the pod to (`resource-status`) and koordlet accepted; empty for none."""
    numa_nodes: tuple[int, ...] = ()
    """NUMA nodes on which the scheduler allocated CPU time (`resource-status`)."""
    allocation_error: str = ""
    """Why its `resource-status` is malformed; it then counts as absent."""
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
        """A pod listed by the kubelet."""
        qos = "" if meta.pod is None else raw_qos_class(meta.pod)
        allocated = meta.cpu_allocation
        views = containers or tuple(map(ContainerView, meta.containers))
        return cls(meta, cpu, memory, qos, allocated.cpus, allocated.numa_nodes, allocated.error, views, charged)

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
    """A host application and its latest use."""

    name: str
    qos: str
    best_effort_dir: bool
    """Whether its cgroup is below the BestEffort directory."""
    cgroup_dir: str = ""
    cpu: int | None = None

    @property
    def best_effort(self) -> bool:
        return self.qos == BE and self.best_effort_dir


@dataclass(frozen=True, slots=True)
class InterferenceView:
    """Interference detection's verdicts with an active alarm, and the time of its last evaluation."""

    verdicts: tuple[Verdict, ...]
    strategy: InterferenceStrategy
    at: float | None
    """On the view's clock; None before the first evaluation."""
    suspicions: tuple[Verdict, ...] = ()
    """Of victims that lose time by short evidence, without an alarm."""
    recent_cores: Mapping[str, float] = field(default_factory=dict)
    """Pod UID -> cores used within the short evidence."""


@dataclass(frozen=True, slots=True)
class BestEffortCgroup:
    """CPU settings in force in the BestEffort directory."""

    cpuset: CPUSet = NO_CPUS
    """Empty if none is set or it cannot be read."""
    quota_us: int | None = None
    """None if it cannot be read."""

    @classmethod
    def read(cls, directory: str, current: Current) -> BestEffortCgroup:
        """Reads the kernel. A v2 cgroup that sets no CPUs itself has its effective ones."""
        cpus = current(Setting(CPUSET, directory))
        if cpus == "":
            cpus = current(Setting(CPUSET_EFFECTIVE, directory))
        quota = current(Setting(CPU_QUOTA, directory))
        return cls(CPUSet.parse(str(cpus or "")), None if quota is None else int(quota))


@dataclass(frozen=True, slots=True)
class NodeView:
    """The node in one round. `current` returns what the kernel has for a setting."""

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
    """Milli-cores that the node used recently."""
    memory: int | None = None
    topology: CpuTopology | None = None
    kubelet_static: bool = False
    """Whether the kubelet's CPU manager pins containers itself."""
    cpu_rules: CPURules | None = None
    """NodeResourceTopology's annotations; None while there are no readable ones."""
    normalization: float = 1.0
    """Speed of this node's CPUs relative to the cluster's reference; 1 for equally fast."""
    normalized: bool = True
    """Whether the quotas of services are normalized (gate CPUNormalization); those of batch resources always are."""
    interference: InterferenceView | None = None
    """None without interference detection."""
    memory_now: MemoryNow = lambda directory: None
    io_now: IoNow = lambda container: None
    announced: tuple[PodView, ...] = ()
    """Pods that a hook announced and the kubelet does not list yet: they get settings (`runtimehooks.stages.followed`),
    but are not evicted and have no use."""
    announced_only: bool = False
    """Whether to decide only about announced pods; the other pods are there because the result may depend on them."""
    best_effort_cgroup: BestEffortCgroup | None = None
    """None while CPU suppress is off."""
    memory_files: frozenset[str] = frozenset()
    """Those of `viewbuilder.MEMORY_FILES` that the kernel has in the directory of all pods."""

    @property
    def best_effort_dir(self) -> str:
        """Empty while the kubelet's directories are unknown."""
        return self.qos_dirs.get(BEST_EFFORT, "")

    def quota_of(self, container: Container) -> int:
        """Quota in microseconds for the limit of a container whose pod `normalizes`; UNLIMITED without a limit."""
        return normalized_quota(container_quota(container), self.normalization if self.normalized else 1.0)

    def ratio_of(self, pod: PodView) -> float:
        """Divisor of the pod's quotas."""
        return self.normalization if self.normalized and pod.normalizes else 1.0

    def capacity(self, resource: str) -> int:
        """Milli-cores for cpu, otherwise whole units; 0 while unknown."""
        return _amount({} if self.node is None else self.node.status.capacity, resource)

    def allocatable(self, resource: str) -> int:
        """As `capacity`."""
        return _amount({} if self.node is None else self.node.status.allocatable, resource)

    @property
    def reserved_cpus(self) -> CPUSet:
        """CPUs for the system only: the node's reservation and the exclusive CPUs of class SYSTEM."""
        if self.cpu_rules is not None:  # a reservation of an amount is resolved to CPUs there
            return self.cpu_rules.withheld
        annotations = {} if self.node is None else self.node.metadata.annotations
        return _reserved(annotations) | _system(annotations)

    def reserved(self, resource: str) -> int:
        """Reserved for the node itself: capacity less allocatable, or the annotation's amount if that is more."""
        system = max(self.capacity(resource) - self.allocatable(resource), 0) if self.node is not None else 0
        annotations = {} if self.node is None else self.node.metadata.annotations
        try:
            reservation = RESERVATION.get(annotations)
        except WireError:  # logged by `reserved_cpus`
            return system
        if reservation is None:
            return system
        cpus = _reserved(annotations)
        amount = len(cpus) * 1000 if cpus and resource == "cpu" else _amount(reservation.resources, resource)
        return max(system, amount)


def pinned_cpus(pods: Iterable[PodView], qos: str) -> CPUSet:
    """CPUs that the scheduler pinned pods of that class to."""
    cpus: frozenset[int] = frozenset()
    for pod in pods:
        if pod.raw_qos == qos:
            cpus |= pod.cpuset
    return CPUSet(cpus)


def exclusive(pods: Iterable[PodView]) -> tuple[CPUSet, CPUSet]:
    """CPUs of LSE pods, which are not shared, and of LSR pods."""
    known = tuple(pods)
    return pinned_cpus(known, LSE), pinned_cpus(known, LSR)


def container_quota(container: Container) -> int:
    """The quota in microseconds that the kubelet sets for its limit; UNLIMITED without one."""
    limit = container.resources.limits.get("cpu")
    return UNLIMITED if limit is None else milli_to_quota(limit.milli_value())


def pod_quota(pod: Pod) -> int:
    """The quota in microseconds that the kubelet sets for the pod; UNLIMITED if one container has no limit."""
    if not all(
        container.resources.limits.get("cpu") for container in (*pod.spec.containers, *pod.spec.init_containers)
    ):
        return UNLIMITED
    return milli_to_quota(_amount(pod_limits(pod), "cpu"))


def normalized_quota(quota: int, ratio: float) -> int:
    """A limited quota on CPUs that are `ratio` times as fast as the reference; slower CPUs do not raise it."""
    return ceil(quota / ratio) if quota > 0 and ratio > 1 else quota


def _amount(resources: Mapping[str, Quantity], resource: str) -> int:
    amount = resources.get(resource)
    if amount is None:
        return 0
    return amount.milli_value() if resource == "cpu" else amount.value()


def _reserved(annotations: Mapping[str, str]) -> CPUSet:
    try:
        reservation = RESERVATION.get(annotations)
        return CPUSet.parse(reservation.reserved_cpus) if reservation is not None else CPUSet()
    except (WireError, CPUSetError) as error:
        _log_ignored("node", names.ANNOTATION_NODE_RESERVATION, error)
        return CPUSet()


def _system(annotations: Mapping[str, str]) -> CPUSet:
    try:
        system = system_qos_resource(annotations)
        return CPUSet.parse(system.cpuset) if system is not None and system.exclusive else CPUSet()
    except (WireError, CPUSetError) as error:
        _log_ignored("node", names.ANNOTATION_SYSTEM_QOS_RESOURCE, error)
        return CPUSet()


def _log_ignored(name: str, key: str, error: Exception) -> None:
    log.once(f"{name}:{key}:{error}", "Malformed annotation ignored", object=name, annotation=key, error=str(error))
