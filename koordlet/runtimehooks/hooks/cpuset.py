"""CPU sets: which CPUs a container may use by what the scheduler gave its pod and by its class (spec 03 §4.6). Pure.

LSE and LSR pods get the CPUs of their `resource-status` and, as these are theirs alone, no quota; services share the
pools of NodeResourceTopology, all of them or those of the NUMA nodes they were placed on; best effort is CPU suppress's
business. Containers and sandboxes are set, never the pods above them. Strategy and hook in one.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from koordlet.api.qos import BE, LS, LSE, LSR, NONE, SYSTEM
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
from koordlet.runtimehooks.stages import NOTHING, Answer, HookContext, HookError, Stage, followed, running
from koordlet.system.cgroup.codecs import UNLIMITED
from koordlet.system.cpu.cpuset import CPUSet

log = get_logger(__name__)

CPUS, QUOTA = "cpuset.cpus", "cpu.cfs_quota_us"
REASON = "CPUSetAllocator"
PATIENCE = 10.0
"""Seconds for which nothing is decided while NodeResourceTopology is unknown: right after a start it soon will be."""


def cpus_for(pod: PodView, rules: CPURules | None, *, be_cpu_manager: bool = False) -> CPUSet | None:
    """CPUs of the pod's containers and sandbox: none (an empty set) where CPU suppress decides, None to leave them
    alone. Rows are those of spec 03 §4.6."""
    if pod.cpuset:
        return pod.cpuset  # row 1
    if rules is None:
        return None
    if pod.numa_nodes and (pod.raw_qos != BE or be_cpu_manager):
        pools = rules.best_effort if pod.raw_qos == BE else rules.shared
        return joined(pools, pod.numa_nodes) or None  # rows 2 and 3
    if pod.raw_qos == SYSTEM and rules.system:
        return rules.system  # row 4
    if pod.raw_qos != LS:
        if pod.meta.kube_qos == BEST_EFFORT:
            return NO_CPUS  # row 6
        if rules.kubelet_static:
            return None  # row 7
    return joined(rules.shared) or None  # rows 5 and 8


def without_quota(pod: PodView) -> bool:
    """Whether its CPUs are its bound: pinned, and of a class whose CPUs nobody else gets."""
    return bool(pod.cpuset) and pod.raw_qos in (LSE, LSR, NONE)


class CPUSetAllocator(PerPodStrategy):
    """Strategy and hook. `be_cpu_manager` is gate BECPUManager; `unset_quota` False leaves quotas to the kubelet."""

    name = "cpusetallocator"
    gate = "CPUSetAllocator"
    hook = "CPUSetAllocator"
    stages = (Stage.PRE_RUN_POD_SANDBOX, Stage.PRE_CREATE_CONTAINER, Stage.PRE_UPDATE_CONTAINER_RESOURCES)

    def __init__(self, *, be_cpu_manager: bool = False, unset_quota: bool = True) -> None:
        self._manager, self._unset = be_cpu_manager, unset_quota
        self._waits_until: float | None = None

    def decide(self, view: NodeView) -> QoSDecision | None:
        """See the module."""
        if view.cpu_rules is None:
            self._waits_until = self._waits_until or view.now + PATIENCE
            if view.now < self._waits_until:
                return None
        updates: list[DesiredSetting] = []
        for pod in followed(view):
            updates += self._of_pod(view, pod)
        for app in view.host_apps:
            updates += _of_host_app(view, app)
        if view.cpu_rules is None:
            return QoSDecision(tuple(updates), note="no NodeResourceTopology: only pods with CPUs of their own")
        return QoSDecision(tuple(updates), note=f"shared CPUs: {joined(view.cpu_rules.shared) or 'none'}")

    def answer(self, stage: Stage, context: HookContext, view: NodeView) -> Answer:
        """CPUs, and no quota for pods that have theirs alone."""
        pod = context.pod
        if pod.allocation_error:
            raise HookError(pod.allocation_error)
        cpus = self._cpus_of(view, pod)
        if cpus is None:
            return NOTHING
        if missing := _missing(view, cpus):
            raise HookError(f"this node has no CPUs {missing}")
        return Answer(cpuset=str(cpus), cfs_quota=UNLIMITED if self._unset and without_quota(pod) else None)

    def _cpus_of(self, view: NodeView, pod: PodView) -> CPUSet | None:
        """As `cpus_for`; below the BestEffort directory never more than best effort may have."""
        cpus = cpus_for(pod, view.cpu_rules, be_cpu_manager=self._manager)
        if cpus and pod.meta.kube_qos == BEST_EFFORT and view.topology is not None:
            return cpus & (unsuppressed(view) | (cpus - view.topology.online))
        return cpus

    def _of_pod(self, view: NodeView, pod: PodView) -> Iterator[DesiredSetting]:
        if pod.allocation_error:
            return  # said where it was read
        cpus = self._cpus_of(view, pod)
        if not cpus or not _there(view, cpus, f"pod {pod.meta.namespace}/{pod.meta.name}"):
            return
        about = about_pod(pod.meta.namespace, pod.meta.name)
        directories = [directory for _, directory in running(pod)]
        for directory in [*directories, pod.meta.sandbox_dir] if pod.meta.sandbox_dir else directories:
            yield _cpus(view, directory, cpus, about)
        if self._unset and without_quota(pod):
            yield from _no_quota(pod, about)


def _cpus(view: NodeView, directory: str, cpus: CPUSet, about: About | None) -> DesiredSetting:
    everything = None if view.topology is None else _text(view.topology.online)
    return DesiredSetting(Setting(CPUS, directory), _text(cpus), REASON, everything, about)


@lru_cache(maxsize=64)
def _text(cpus: CPUSet) -> str:
    """Most containers have one of few sets."""
    return str(cpus)


def _no_quota(pod: PodView, about: About) -> Iterator[DesiredSetting]:
    spec = pod.meta.pod
    if spec is None:
        return
    yield DesiredSetting(Setting(QUOTA, pod.meta.cgroup_dir), UNLIMITED, REASON, pod_quota(spec), about)
    specs = {container.name: container for container in (*spec.spec.init_containers, *spec.spec.containers)}
    for name, directory in running(pod):
        if name in specs:
            yield DesiredSetting(Setting(QUOTA, directory), UNLIMITED, REASON, container_quota(specs[name]), about)


def _of_host_app(view: NodeView, app: HostAppView) -> Iterator[DesiredSetting]:
    """Services share the pools; no other class of host application gets CPUs."""
    if app.qos != LS:
        log.once(f"hostapp:{app.name}:{app.qos}", "a host application of this class gets no CPU set", name=app.name,
                 qos=app.qos)  # fmt: skip
        return
    cpus = NO_CPUS if view.cpu_rules is None else joined(view.cpu_rules.shared)
    if cpus and app.cgroup_dir and _there(view, cpus, f"host application {app.name}"):
        yield _cpus(view, app.cgroup_dir, cpus, None)


def _missing(view: NodeView, cpus: CPUSet) -> CPUSet:
    """CPUs that this node does not have; none while its CPUs are unknown."""
    return NO_CPUS if view.topology is None else cpus - view.topology.online


def _there(view: NodeView, cpus: CPUSet, who: str) -> bool:
    missing = _missing(view, cpus)
    if missing:
        log.once(f"{who}:{missing}", "CPUs were given that this node does not have; left alone", object=who,
                 cpus=str(missing))  # fmt: skip
    return not missing
