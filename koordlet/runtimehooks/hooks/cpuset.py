"""CPU sets: the CPUs of a container by the scheduler's allocation and by its class (spec 03 §4.6). Pure.

LSE and LSR pods get the CPUs of their `resource-status` and no quota, because no other pod uses these CPUs
(`statesinformer.pods.cpuallocation` decides which CPUs are accepted). LS pods share the pools of NodeResourceTopology,
all of them or those of their NUMA nodes. CPU suppress sets the CPUs of best effort. A malformed or refused allocation
counts as absent: it must not free a pod from the limits of its class. Only containers and sandboxes are set, never the
pods above them. Strategy and hook in one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

from koordlet.api.qos import BE, LS, SYSTEM
from koordlet.app.logging import get_logger
from koordlet.audit import About
from koordlet.audit import pod as about_pod
from koordlet.qosmanager.engine.strategy import PerPodStrategy, QoSDecision
from koordlet.qosmanager.engine.view import (
    BEST_EFFORT,
    NO_CPUS,
    HostAppView,
    NodeView,
    PodView,
    container_quota,
    pod_quota,
)
from koordlet.qosmanager.rules.cpu import CPURules, joined
from koordlet.qosmanager.strategies.cpusuppress import unsuppressed
from koordlet.resourceexecutor import DesiredSetting, Setting
from koordlet.runtimehooks.stages import (
    NO_CHANGE,
    HookAnswer,
    HookContext,
    HookError,
    HookStage,
    followed_pods,
    running_containers,
)
from koordlet.statesinformer.pods.cpuallocation import PINNED_CLASSES
from koordlet.system.cgroup.codecs import UNLIMITED
from koordlet.system.cpu.cpuset import CPUSet

log = get_logger(__name__)

CPUS = "cpuset.cpus"
QUOTA = "cpu.cfs_quota_us"
REASON = "CPUSetAllocator"
TOPOLOGY_WAIT_S = 10.0
"""How long nothing is decided without NodeResourceTopology: after a start it is known soon."""


def cpus_for(pod: PodView, rules: CPURules | None, *, be_cpu_manager: bool = False) -> CPUSet | None:
    """CPUs of the containers and sandbox of the pod: empty where CPU suppress decides, None to leave them unchanged.
    The rows are those of spec 03 §4.6."""
    if pod.cpuset:
        return pod.cpuset  # row 1
    if rules is None:
        return None
    if pod.numa_nodes and (pod.raw_qos != BE or be_cpu_manager):
        pools = rules.best_effort if pod.raw_qos == BE else rules.shared
        if cpus := joined(pools, pod.numa_nodes):
            return cpus  # rows 2 and 3; nodes without a pool do not free the pod from the other rows
    if pod.raw_qos == SYSTEM and rules.system:
        return rules.system  # row 4
    if pod.raw_qos != LS:
        if pod.meta.kube_qos == BEST_EFFORT:
            return NO_CPUS  # row 6
        if rules.kubelet_static:
            return None  # row 7
    return joined(rules.shared) or None  # rows 5 and 8


def without_quota(pod: PodView) -> bool:
    """Whether its CPUs are its only limit: it is pinned and of a class whose CPUs no other pod gets."""
    return bool(pod.cpuset) and pod.raw_qos in PINNED_CLASSES


class CPUSetAllocator(PerPodStrategy):
    """Strategy and hook. `be_cpu_manager` is gate BECPUManager; `unset_quota` False leaves quotas to the kubelet."""

    name = "cpusetallocator"
    hook = "CPUSetAllocator"
    stages = (HookStage.PRE_RUN_POD_SANDBOX, HookStage.PRE_CREATE_CONTAINER, HookStage.PRE_UPDATE_CONTAINER_RESOURCES)

    def __init__(self, *, be_cpu_manager: bool = False, unset_quota: bool = True) -> None:
        self._be_cpu_manager = be_cpu_manager
        self._unset_quota = unset_quota
        self._waits_until: float | None = None

    def decide(self, view: NodeView) -> QoSDecision | None:
        """See the module."""
        if view.cpu_rules is None:
            self._waits_until = self._waits_until or view.now + TOPOLOGY_WAIT_S
            if view.now < self._waits_until:
                return None
        settings: list[DesiredSetting] = []
        for pod in followed_pods(view):
            settings += self._of_pod(view, pod)
        for app in view.host_apps:
            settings += _of_host_app(view, app)
        if view.cpu_rules is None:
            return QoSDecision(tuple(settings), note="no NodeResourceTopology: only pinned pods")
        return QoSDecision(tuple(settings), note=f"shared CPUs: {joined(view.cpu_rules.shared) or 'none'}")

    def answer(self, stage: HookStage, context: HookContext, view: NodeView) -> HookAnswer:
        """CPUs, and no quota for pods with exclusive CPUs."""
        pod = context.pod
        if pod.allocation_error:
            raise HookError(pod.allocation_error)
        if conflict := _conflict(view, pod):
            raise HookError(conflict)
        cpus = self._cpus_of(view, pod)
        if cpus is None:
            return NO_CHANGE
        if missing := _missing(view, cpus):
            raise HookError(f"this node has no CPUs {missing}")
        return HookAnswer(cpuset=str(cpus), cfs_quota=UNLIMITED if self._unset_quota and without_quota(pod) else None)

    def _cpus_of(self, view: NodeView, pod: PodView) -> CPUSet | None:
        """As `cpus_for`; below the BestEffort directory only CPUs that best effort may use."""
        cpus = cpus_for(pod, view.cpu_rules, be_cpu_manager=self._be_cpu_manager)
        if cpus and pod.meta.kube_qos == BEST_EFFORT and view.topology is not None:
            return cpus & (unsuppressed(view) | (cpus - view.topology.online))
        return cpus

    def _of_pod(self, view: NodeView, pod: PodView) -> Iterator[DesiredSetting]:
        if pod.cpuset and _conflict(view, pod):
            pod = replace(pod, cpuset=NO_CPUS)
        cpus = self._cpus_of(view, pod)
        if not cpus or not _exist(view, cpus, f"pod {pod.meta.namespace}/{pod.meta.name}"):
            return
        about = about_pod(pod.meta.namespace, pod.meta.name)
        directories = [directory for _, directory in running_containers(pod)]
        for directory in [*directories, pod.meta.sandbox_dir] if pod.meta.sandbox_dir else directories:
            yield _cpus(view, directory, cpus, about)
        if self._unset_quota and without_quota(pod):
            yield from _no_quota(pod, about)


def _cpus(view: NodeView, directory: str, cpus: CPUSet, about: About | None) -> DesiredSetting:
    everything = None if view.topology is None else _text(view.topology.online)
    return DesiredSetting(Setting(CPUS, directory), _text(cpus), REASON, everything, about)


@lru_cache(maxsize=64)
def _text(cpus: CPUSet) -> str:
    """Cached, because most containers have one of a few sets."""
    return str(cpus)


def _no_quota(pod: PodView, about: About) -> Iterator[DesiredSetting]:
    spec = pod.meta.pod
    if spec is None:
        return
    yield DesiredSetting(Setting(QUOTA, pod.meta.cgroup_dir), UNLIMITED, REASON, pod_quota(spec), about)
    specs = {container.name: container for container in (*spec.spec.init_containers, *spec.spec.containers)}
    for name, directory in running_containers(pod):
        if name in specs:
            yield DesiredSetting(Setting(QUOTA, directory), UNLIMITED, REASON, container_quota(specs[name]), about)


def _of_host_app(view: NodeView, app: HostAppView) -> Iterator[DesiredSetting]:
    """LS host applications share the pools; those of other classes get no CPU set."""
    if app.qos != LS:
        log.once(f"hostapp:{app.name}:{app.qos}", "A host application of this class gets no CPU set", name=app.name,
                 qos=app.qos)  # fmt: skip
        return
    cpus = NO_CPUS if view.cpu_rules is None else joined(view.cpu_rules.shared)
    if cpus and app.cgroup_dir and _exist(view, cpus, f"host application {app.name}"):
        yield _cpus(view, app.cgroup_dir, cpus, None)


def _conflict(view: NodeView, pod: PodView) -> str:
    """Why an announced pod cannot have its CPUs: a listed pod has them. Empty for no conflict and for listed pods."""
    if not pod.cpuset or any(other.meta.uid == pod.meta.uid for other in view.pods):
        return ""
    for other in view.pods:
        if shared := pod.cpuset & other.cpuset:
            return f"pod {other.meta.namespace}/{other.meta.name} has the CPUs {shared}"
    return ""


def _missing(view: NodeView, cpus: CPUSet) -> CPUSet:
    """CPUs that this node does not have; none while its CPUs are unknown."""
    return NO_CPUS if view.topology is None else cpus - view.topology.online


def _exist(view: NodeView, cpus: CPUSet, subject: str) -> bool:
    missing = _missing(view, cpus)
    if missing:
        message = "Assigned CPUs do not exist on this node; CPU set left unchanged"
        log.once(f"{subject}:{missing}", message, object=subject, cpus=str(missing))
    return not missing
