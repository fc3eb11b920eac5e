"""CPU burst: lets a service exceed its limit for a moment instead of throttling it (spec 03 §3.4). Reads current quotas
through the view.

Two mechanisms, by policy: the kernel's own burst (unused quota is saved for later), and a quota that grows while the
container is throttled and the node has idle CPU, and shrinks when either ends. Only values that differ from the
kubelet's are declared, so that policy `none` restores everything and CPU normalization still applies.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from random import Random

from koordlet.api.annotations.pod import CPU_BURST
from koordlet.api.core import Container
from koordlet.api.encoding.wire import WireError, overlay
from koordlet.api.sloconfig.node import BURST_AUTO, BURST_CPU_ONLY, BURST_QUOTA_ONLY, CPUBurstConfig, CPUBurstStrategy
from koordlet.app.logging import get_logger
from koordlet.audit import pod as about_pod
from koordlet.qosmanager.engine.eviction import sum_requests
from koordlet.qosmanager.engine.strategy import QoSDecision, Rows, Strategy
from koordlet.qosmanager.engine.view import (
    ContainerView,
    NodeView,
    PodView,
    container_quota,
    normalized_quota,
    pod_quota,
)
from koordlet.resourceexecutor import DesiredSetting, Setting
from koordlet.system.cgroup.codecs import CFS_PERIOD_US, UNLIMITED

log = get_logger(__name__)

QUOTA, BURST = "cpu.cfs_quota_us", "cpu.cfs_burst_us"
EXEMPT = ("LSR", "LSE", "BE")
POLICIES = (BURST_AUTO, BURST_CPU_ONLY, BURST_QUOTA_ONLY)
"""Those under which a container may exceed its limit."""
COOLING_RATIO = 0.9
"""Fraction of the overload threshold from which on quotas no longer grow."""
WINDOW_INTERVALS, MAX_WINDOW_SECONDS = 5, 10.0
KEPT_PERIODS = 2
EARNING_PERCENT = 60
"""Percent of its limit below which a container earns tokens."""


class SharedCpuLoad(Enum):
    """Load of the shared CPUs."""

    IDLE = "idle"
    COOLING = "cooling"
    OVERLOAD = "overload"
    UNKNOWN = "unknown"


def node_state(view: NodeView, threshold_percent: int, window: float) -> SharedCpuLoad:
    """Use of the CPUs that are not exclusive to LSE and LSR pods, against the threshold; UNKNOWN without figures."""
    node = view.average("node_cpu_usage", (), window)
    if node is None or view.topology is None:
        return SharedCpuLoad.UNKNOWN
    total, used = len(view.topology.online) * 1000.0, node.mean * 1000
    for pod in view.pods:
        if pod.raw_qos in ("LSR", "LSE") and pod.meta.pod is not None:
            total -= sum_requests(pod.meta.pod, "cpu")
        if pod.raw_qos in EXEMPT:
            own = view.average("pod_cpu_usage", (pod.meta.uid,), window)
            used -= 0.0 if own is None else own.mean * 1000
    ratio = used / total if total > 0 else 1.0
    if ratio >= threshold_percent / 100:
        return SharedCpuLoad.OVERLOAD
    return SharedCpuLoad.COOLING if ratio >= COOLING_RATIO * threshold_percent / 100 else SharedCpuLoad.IDLE


@dataclass
class Tokens:
    """Budget of a container for running above its limit: one token is one percent of the limit for one second."""

    capacity: float
    amount: float
    at: float

    def spend(self, now: float, percent: int) -> bool:
        """Account for `percent` of the limit used since the last call (whole seconds); whether tokens remain."""
        seconds = int(now - self.at)
        if seconds > 0:
            self.at += seconds
            if percent >= 100:
                self.amount -= (percent - 100) * seconds
            elif percent < EARNING_PERCENT:
                self.amount += (100 - percent) * seconds
            self.amount = min(max(self.amount, -self.capacity), self.capacity)
        return self.amount > 0


@dataclass
class Limiter:
    """Tokens by container; dropped after two periods without a call."""

    random: Random = field(default_factory=Random)
    _tokens: dict[str, Tokens] = field(default_factory=dict)
    _kept_until: dict[str, float] = field(default_factory=dict)

    def allows(self, container: str, config: CPUBurstConfig, now: float, percent: int) -> bool:
        """Whether its quota may be above its limit now."""
        period, most = config.cfs_quota_burst_period_seconds, config.cfs_quota_burst_percent
        if period is None or period < 0:
            return True
        if most is None or most < 100:
            return False
        capacity = float(period * (most - 100))
        tokens = self._tokens.get(container)
        if tokens is None or tokens.capacity != capacity:
            tokens = self._tokens[container] = Tokens(capacity, capacity * self.random.random() / 2, now)
        self._kept_until[container] = now + KEPT_PERIODS * period
        return tokens.spend(now, percent)

    def forget(self, now: float) -> None:
        """Drop the tokens of containers without recent calls."""
        for container in [name for name, until in self._kept_until.items() if until < now]:
            del self._tokens[container], self._kept_until[container]


def next_quota(
    current: int, base: int, config: CPUBurstConfig, state: SharedCpuLoad, throttled: float | None, allowed: bool
) -> int:
    """The container's quota in the next round, between its limit and its ceiling."""
    if config.policy not in (BURST_AUTO, BURST_QUOTA_ONLY):
        return base
    percent = config.cfs_quota_burst_percent or 0
    ceiling = int(base * percent / 100) if percent > 100 else base
    factor = 0.8 if not allowed else 1.2 if throttled else 1.0
    if state is SharedCpuLoad.OVERLOAD:
        factor = 0.8
    elif state is not SharedCpuLoad.IDLE:
        factor = min(factor, 1.0)
    return min(max(int(current * factor), base), ceiling)


def static_burst(container: Container, config: CPUBurstConfig) -> int:
    """Microseconds of burst that the policy grants; 0 without a limit."""
    limit = container.resources.limits.get("cpu")
    if limit is None or config.policy not in (BURST_AUTO, BURST_CPU_ONLY):
        return 0
    return int(limit.milli_value() / 1000 * (config.cpu_burst_percent or 0) / 100 * CFS_PERIOD_US)


class CPUBurst(Strategy):
    """`beyond_quota`: whether the kernel accepts a burst above the quota (Anolis does, mainline refuses)."""

    name = "cpuburst"

    def __init__(self, *, interval: float, beyond_quota: bool = False, random: Random | None = None) -> None:
        self._interval = interval
        self._beyond = beyond_quota
        self._limiter = Limiter(random or Random())
        self._grown: frozenset[str] = frozenset()
        """Directories whose quota was above the base in the last decision."""

    def decide(self, view: NodeView) -> QoSDecision | None:
        """See the module."""
        strategy = view.slo.cpu_burst_strategy
        if strategy is None:
            return None
        window = min(WINDOW_INTERVALS * self._interval, MAX_WINDOW_SECONDS)
        pods = self._bursting(view, strategy)
        if not pods:
            self._limiter.forget(view.now)
            self._grown = frozenset()
            return QoSDecision()
        state = node_state(view, strategy.share_pool_threshold_percent or 0, window)
        updates: list[DesiredSetting] = []
        bursts: dict[tuple[str, ...], float] = {}
        quotas: dict[tuple[str, ...], float] = {}
        for pod, config in pods:
            for update, container in self._of_pod(view, pod, config, state):
                updates.append(update)
                if container is not None:
                    labels = (pod.meta.namespace, pod.meta.name, container.meta.id, container.meta.name)
                    (bursts if update.setting.resource == BURST else quotas)[labels] = float(update.value)
        self._limiter.forget(view.now)
        self._grown = frozenset(
            str(update.setting.cgroup_dir) for update in updates if update.setting.resource == QUOTA
        )
        rows: dict[str, Rows] = {"container_scaled_cfs_burst_us": bursts, "container_scaled_cfs_quota_us": quotas}
        return QoSDecision(tuple(updates), figures=rows, note=f"shared CPUs are {state.value}")

    def _bursting(self, view: NodeView, strategy: CPUBurstStrategy) -> list[tuple[PodView, CPUBurstConfig]]:
        """The pods that may exceed their limits, with their configuration."""
        pods = [pod for pod in view.pods if pod.raw_qos not in EXEMPT and pod.active and pod.meta.pod is not None]
        configured = [(pod, pod_config(pod, strategy)) for pod in pods if _may_burst(pod, strategy)]
        return [(pod, config) for pod, config in configured if config.policy in POLICIES]

    def _of_pod(
        self, view: NodeView, pod: PodView, config: CPUBurstConfig, state: SharedCpuLoad
    ) -> Iterator[tuple[DesiredSetting, ContainerView | None]]:
        specs = {container.name: container for container in pod.meta.pod.spec.containers} if pod.meta.pod else {}
        about = about_pod(pod.meta.namespace, pod.meta.name)
        burst = growth = 0
        for container in pod.containers:
            spec = specs.get(container.meta.name)
            if spec is None:
                continue
            kubelet_quota = container_quota(spec)
            base = own_quota = normalized_quota(kubelet_quota, view.ratio_of(pod))
            if container.meta.running and base > 0 and not pod.cpuset:
                own_quota = self._quota(view, container, config, state, base, kubelet_quota)
                if own_quota != base:
                    growth += own_quota - base
                    setting = Setting(QUOTA, container.meta.cgroup_dir)
                    yield DesiredSetting(setting, own_quota, "CFSQuotaBurst", kubelet_quota, about), container
            own_burst = static_burst(spec, config)
            if not self._beyond:
                own_burst = min(own_burst, max(base, 0))
            if own_burst > 0:
                burst += own_burst
                yield (
                    DesiredSetting(Setting(BURST, container.meta.cgroup_dir), own_burst, "CPUBurst", 0, about),
                    container,
                )
        kubelet_quota = UNLIMITED if pod.meta.pod is None else pod_quota(pod.meta.pod)
        pod_base = normalized_quota(kubelet_quota, view.ratio_of(pod))
        if growth and pod_base > 0:
            setting = Setting(QUOTA, pod.meta.cgroup_dir)
            yield DesiredSetting(setting, pod_base + growth, "CFSQuotaBurst", kubelet_quota, about), None
        if burst and (self._beyond or pod_base > 0):
            allowed = burst if self._beyond else min(burst, pod_base)
            yield DesiredSetting(Setting(BURST, pod.meta.cgroup_dir), allowed, "CPUBurst", 0, about), None

    def _quota(
        self,
        view: NodeView,
        container: ContainerView,
        config: CPUBurstConfig,
        state: SharedCpuLoad,
        base: int,
        kubelet_quota: int,
    ) -> int:
        """The next quota. A quota equal to the kubelet's starts a new burst, it does not continue one."""
        percent = 100 if container.cpu is None else int(container.cpu * CFS_PERIOD_US / 10 / base)
        allowed = self._limiter.allows(container.meta.id, config, view.now, percent)
        quota = view.current(Setting(QUOTA, container.meta.cgroup_dir))
        reset = quota == kubelet_quota and container.meta.cgroup_dir not in self._grown
        current = base if quota is None or int(quota) <= 0 or reset else int(quota)
        return next_quota(current, base, config, state, container.throttled, allowed)


def _may_burst(pod: PodView, strategy: CPUBurstStrategy) -> bool:
    """False for the common case of a pod without an annotation while the node's policy is `none`."""
    annotated = pod.meta.pod is not None and CPU_BURST.key in pod.meta.pod.metadata.annotations
    return annotated or strategy.policy in POLICIES


def pod_config(pod: PodView, strategy: CPUBurstStrategy) -> CPUBurstConfig:
    """The node's configuration overlaid with the pod's annotation; a malformed annotation counts as absent."""
    annotations = {} if pod.meta.pod is None else pod.meta.pod.metadata.annotations
    try:
        own = CPU_BURST.get(annotations)
    except WireError as error:
        name = f"{pod.meta.namespace}/{pod.meta.name}"
        log.once(f"{pod.meta.uid}:{error}", "Malformed annotation ignored", pod=name, error=str(error))
        own = None
    node = CPUBurstConfig(
        policy=strategy.policy,
        cpu_burst_percent=strategy.cpu_burst_percent,
        cfs_quota_burst_percent=strategy.cfs_quota_burst_percent,
        cfs_quota_burst_period_seconds=strategy.cfs_quota_burst_period_seconds,
    )
    return node if own is None else overlay(node, own)
