"""CPU suppress: best-effort pods get the CPU that others leave free below a threshold (spec 03 §3.2). Pure.

    budget = capacity * threshold - non-BE pods - non-BE host applications - system

as a set of CPUs (policy `cpuset`) or as a quota of the BestEffort directory (`cfsQuota`). Growth is limited to a tenth
of the node per round. Shrinking is not limited, because services wait for the CPU meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import ceil

from koordlet.api.sloconfig.threshold import CFS_QUOTA_POLICY
from koordlet.qosmanager.engine.strategy import QoSDecision, Rows, Strategy
from koordlet.qosmanager.engine.view import CPU_QUOTA, CPUSET, BestEffortCgroup, NodeView, exclusive, pinned_cpus
from koordlet.qosmanager.strategies.cpupick import pick
from koordlet.resourceexecutor import DesiredSetting, Setting
from koordlet.system.cgroup.codecs import CFS_PERIOD_US, UNLIMITED
from koordlet.system.cpu.cpuset import CPUSet

MIN_CPUS = 2
MIN_QUOTA_US = 2_000
GROWTH_PERCENT = 10
"""Of the node, per round."""
IGNORED_CHANGE_PERCENT = 1
"""Smaller changes of the quota, in percent of the node, are not written."""
REASON = "AdjustBEByNodeCPUUsage"


def budget(view: NodeView, threshold_percent: int, min_percent: int | None) -> int | None:
    """Milli-cores for best-effort pods, possibly negative; None while the node or all pods are not measured."""
    capacity = view.capacity("cpu")
    if view.cpu is None or capacity <= 0 or all(pod.cpu is None for pod in view.pods):
        return None
    pods = sum(pod.cpu or 0 for pod in view.pods)
    apps = sum(app.cpu or 0 for app in view.host_apps)
    system = max(view.cpu - pods - apps, 0, view.reserved("cpu"))
    other_use = services(view)
    other_use += sum(app.cpu or 0 for app in view.host_apps if not app.best_effort)
    milli = capacity * threshold_percent // 100 - other_use - system
    return milli if min_percent is None else max(milli, capacity * min_percent // 100)


def services(view: NodeView) -> int:
    """Milli-cores used by all pods except best-effort ones."""
    return sum(pod.cpu or 0 for pod in view.pods if not pod.best_effort)


def choose(view: NodeView, milli: int, old: CPUSet) -> CPUSet:
    """The CPUs of the next round; empty if the budget cannot be met."""
    if view.topology is None:
        return CPUSet()
    lse, lsr_pinned = exclusive(view.pods)
    usable = view.topology.online - lse - view.reserved_cpus
    lsr, ls = usable & lsr_pinned, usable - lsr_pinned
    if not usable:
        return CPUSet()
    count = max(ceil(milli / 1000), MIN_CPUS)
    growth = ceil(len(view.topology.online) * GROWTH_PERCENT / 100)
    count = min(count, len(old) + growth)
    from_lsr = count * len(lsr) // len(usable)
    return CPUSet(pick(from_lsr, lsr, view.topology) + pick(count - from_lsr, ls, view.topology))


def next_quota(view: NodeView, milli: int, current: int) -> int:
    """The quota of the next round in microseconds; `current` if the change is too small to be written."""
    cores = ceil(view.capacity("cpu") / 1000)
    quota = max(milli * CFS_PERIOD_US // 1000, MIN_QUOTA_US)
    if abs(quota - current) < cores * CFS_PERIOD_US * IGNORED_CHANGE_PERCENT / 100 and quota != MIN_QUOTA_US:
        return current
    growth = cores * CFS_PERIOD_US * GROWTH_PERCENT // 100
    return current + growth if current != UNLIMITED and quota - current > growth else quota


def unsuppressed(view: NodeView) -> CPUSet:
    """CPUs that best-effort pods may use without suppression: all except those of LSE pods and reserved ones."""
    if view.topology is None:
        return CPUSet()
    return view.topology.online - pinned_cpus(view.pods, "LSE") - view.reserved_cpus


class CPUSuppress(Strategy):
    """The strategy. With gate BECPUManager, the hooks place best-effort containers themselves."""

    name = "cpusuppress"

    def __init__(self, *, be_cpu_manager: bool = False, target: Callable[[], int] = lambda: 100) -> None:
        """`target`: percent of its quota that best effort keeps while it delays a service."""
        self._manager = be_cpu_manager
        self._target = target

    def decide(self, view: NodeView) -> QoSDecision | None:
        """See the module."""
        settings = view.slo.resource_used_threshold_with_be
        if settings is None or view.topology is None or not view.best_effort_dir:
            return None
        if self._manager or not settings.enable:
            return QoSDecision(tuple(self._free(view)), note="not suppressed")
        threshold = settings.cpu_suppress_threshold_percent
        milli = None if threshold is None else budget(view, threshold, settings.cpu_suppress_min_percent)
        if milli is None or view.best_effort_cgroup is None:
            return None
        if settings.cpu_suppress_policy == CFS_QUOTA_POLICY:
            target = milli * self._target() // 100 if milli > 0 else milli
            return self._by_quota(view, target, view.best_effort_cgroup)
        return self._by_cpuset(view, milli, view.best_effort_cgroup)

    def _by_cpuset(self, view: NodeView, milli: int, current: BestEffortCgroup) -> QoSDecision | None:
        chosen = choose(view, milli, current.cpuset)
        if not chosen:
            return None
        updates = self._everywhere(view, chosen, free=unsuppressed(view) if view.kubelet_static else chosen)
        rows = _figures(view, "cpuset", len(chosen))
        return QoSDecision(tuple(updates), figures=rows, note=f"{milli}m for best effort: CPUs {chosen}")

    def _by_quota(self, view: NodeView, milli: int, current: BestEffortCgroup) -> QoSDecision | None:
        if current.quota_us is None:
            return None
        quota = next_quota(view, milli, current.quota_us)
        update = DesiredSetting(Setting(CPU_QUOTA, view.best_effort_dir), quota, "suppressBECPU", neutral=UNLIMITED)
        rows = _figures(view, "cfsQuota", quota / CFS_PERIOD_US)
        return QoSDecision(
            (update, *self._free(view)), figures=rows, note=f"{milli}m for best effort: quota {quota} us"
        )

    def _free(self, view: NodeView) -> Iterator[DesiredSetting]:
        """All CPUs except those of LSE pods and of the system; no settings if that is all CPUs."""
        free = unsuppressed(view)
        if free and view.topology is not None and free != view.topology.online:
            yield from self._everywhere(view, free, free=free, containers=not self._manager)

    def _everywhere(
        self, view: NodeView, cpus: CPUSet, *, free: CPUSet, containers: bool = True
    ) -> Iterator[DesiredSetting]:
        """`cpus` for containers, `free` for the directories above them (equal unless the kubelet pins)."""
        everything = str(view.topology.online) if view.topology is not None else None
        upper, lower = str(free), str(cpus)
        yield DesiredSetting(Setting(CPUSET, view.best_effort_dir), upper, REASON, neutral=everything)
        for pod in view.pods:
            if pod.meta.kube_qos != "BestEffort":
                continue
            yield DesiredSetting(Setting(CPUSET, pod.meta.cgroup_dir), upper, REASON, neutral=everything)
            if containers or not (pod.cpuset or pod.numa_nodes):  # BECPUManager places only pods with an allocation
                for container in pod.meta.containers:
                    if container.running:
                        yield DesiredSetting(Setting(CPUSET, container.cgroup_dir), lower, REASON, neutral=everything)


def _figures(view: NodeView, policy: str, cores: float) -> dict[str, Rows]:
    """CPU for best effort, and CPU used by the services."""
    return {
        "be_suppress_cpu_cores": {(policy,): float(cores)},
        "be_suppress_ls_used_cpu_cores": {(): services(view) / 1000},
    }
