"""LowNodeUtilization and HighNodeUtilization: nodes by the share of their resources that pods request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from control.component.errors import invalid, required
from control.descheduler.config.selection import NamespaceRule, considered, namespace_errors
from control.descheduler.framework.fit import FitTable
from control.descheduler.framework.plugin import BalancePlugin, PluginArgs
from control.descheduler.plugins.upstream.common import UpstreamPlugin, by_priority
from control.descheduler.state.cluster import PODS, NodeRecord
from control.descheduler.state.pods import PodRecord

ALWAYS: Final = ("cpu", "memory", PODS)
ONLY_THRESHOLDING: Final = "OnlyThresholdingResources"
Percents = dict[str, float]


class PodsPerNode(msgspec.Struct, rename="camel"):
    """A limit of evictions per node and pass."""

    node: int | None = None


class UtilizationArgs(PluginArgs):
    """Arguments that both plugins have. Thresholds are percentages of allocatable by resource."""

    thresholds: Percents = msgspec.field(default_factory=dict)
    number_of_nodes: int = 0
    evictable_namespaces: NamespaceRule | None = None

    def check(self, path: str) -> list[str]:
        errors = namespace_errors(self.evictable_namespaces, f"{path}.evictableNamespaces")
        if not self.thresholds:
            errors.append(required(f"{path}.thresholds"))
        if self.number_of_nodes < 0:
            errors.append(invalid(f"{path}.numberOfNodes", self.number_of_nodes, "must not be negative"))
        return errors + percent_errors(self.thresholds, f"{path}.thresholds")


class LowNodeUtilizationArgs(UtilizationArgs):
    """Arguments of LowNodeUtilization."""

    target_thresholds: Percents = msgspec.field(default_factory=dict)
    use_deviation_thresholds: bool = False
    eviction_limits: PodsPerNode | None = None
    metrics_utilization: Any = None

    def check(self, path: str) -> list[str]:
        errors = super().check(path) + percent_errors(self.target_thresholds, f"{path}.targetThresholds")
        if set(self.thresholds) != set(self.target_thresholds):
            errors.append(
                invalid(f"{path}.targetThresholds", sorted(self.target_thresholds), "must name the same resources")
            )
        errors += [
            invalid(f"{path}.thresholds[{name}]", percent, f"must not be greater than targetThresholds[{name}]")
            for name, percent in self.thresholds.items()
            if not self.use_deviation_thresholds  # both are distances from the average then
            and percent > self.target_thresholds.get(name, percent)
        ]
        if self.metrics_utilization:
            text = "is not available: use LowNodeLoad for measured usage"
            errors.append(invalid(f"{path}.metricsUtilization", self.metrics_utilization, text))
        return errors


class HighNodeUtilizationArgs(UtilizationArgs):
    """Arguments of HighNodeUtilization."""

    eviction_modes: list[str] = msgspec.field(default_factory=list)

    def check(self, path: str) -> list[str]:
        return super().check(path) + [
            invalid(f"{path}.evictionModes[{index}]", mode, f"must be {ONLY_THRESHOLDING}")
            for index, mode in enumerate(self.eviction_modes)
            if mode != ONLY_THRESHOLDING
        ]


def percent_errors(percents: Percents, path: str) -> list[str]:
    """The errors of a map of percentages."""
    return [
        invalid(f"{path}[{name}]", percent, "must be between 0 and 100")
        for name, percent in percents.items()
        if not 0 <= percent <= 100
    ]


class RequestedNode:
    """A node with what its pods request; it changes while pods are evicted."""

    def __init__(self, node: NodeRecord, resources: Sequence[str]) -> None:
        self.node = node
        self.capacity = {name: node.allocatable.get(name, 0) for name in resources}
        self.requested = {
            name: len(node.active_pods()) if name == PODS else node.requested.get(name, 0) for name in resources
        }

    def percent(self, name: str) -> float:
        """Of allocatable; 0 without allocatable."""
        return 100 * self.requested[name] / self.capacity[name] if self.capacity[name] else 0.0

    def total_percent(self) -> float:
        return sum(self.percent(name) for name in self.capacity)

    def under(self, percents: Percents) -> bool:
        return all(self.percent(name) <= percent for name, percent in percents.items())

    def over(self, percents: Percents) -> bool:
        return any(self.percent(name) > percent for name, percent in percents.items())

    def room(self, name: str, percent: float) -> float:
        """What it can take of a resource up to a percentage."""
        return percent * 0.01 * self.capacity[name] - self.requested[name]

    def remove(self, pod: PodRecord) -> None:
        for name in self.requested:
            self.requested[name] -= requested_by(pod, name)


def requested_by(pod: PodRecord, name: str) -> int:
    return 1 if name == PODS else pod.requests.get(name, 0)


class _Utilization(UpstreamPlugin):
    """What both plugins do with sources and targets."""

    def _removable(self, node: NodeRecord, targets: FitTable) -> list[PodRecord]:
        namespaces: NamespaceRule | None = self._args.evictable_namespaces
        pods = [
            pod
            for pod in node.active_pods()
            if considered(pod, namespaces, [])
            and self._handle.evictor.filter(pod) is None
            and targets.mask(pod.placement).any()
        ]
        return sorted(pods, key=by_priority)

    def _usable(self, under: int, total: int) -> bool:
        """Whether there are enough under-used nodes, and others too."""
        return 0 < under < total and under > self._args.number_of_nodes


class LowNodeUtilization(_Utilization, BalancePlugin):
    """Evicts pods from nodes over their target thresholds while others are under their thresholds."""

    name = "LowNodeUtilization"
    args_type = LowNodeUtilizationArgs

    async def balance(self, nodes: Sequence[NodeRecord]) -> None:
        args: LowNodeUtilizationArgs = self._args
        resources = tuple(dict.fromkeys((*ALWAYS, *args.thresholds)))
        measured = [RequestedNode(node, resources) for node in nodes]
        low, target = self._bounds(measured, resources)
        under = [
            measured_node
            for measured_node in measured
            if not measured_node.node.unschedulable and measured_node.under(low)
        ]
        names = {measured_node.node.name for measured_node in under}
        over = [
            measured_node
            for measured_node in measured
            if measured_node.node.name not in names and measured_node.over(target)
        ]
        if not over or not self._usable(len(under), len(measured)):
            return
        budget = {name: sum(measured_node.room(name, target[name]) for measured_node in under) for name in resources}
        targets = FitTable([measured_node.node for measured_node in under])
        for measured_node in sorted(
            over, key=lambda measured_node: (-measured_node.total_percent(), measured_node.node.name)
        ):
            await self._relieve(measured_node, targets, target, budget)

    def _bounds(self, nodes: Sequence[RequestedNode], resources: Sequence[str]) -> tuple[Percents, Percents]:
        """(thresholds, target thresholds); a resource that is not named has no effect."""
        args: LowNodeUtilizationArgs = self._args
        if not args.use_deviation_thresholds:
            return (
                {name: args.thresholds.get(name, 100.0) for name in resources},
                {name: args.target_thresholds.get(name, 100.0) for name in resources},
            )
        low: Percents = {}
        target: Percents = {}
        for name in resources:
            if name not in args.thresholds:
                low[name] = target[name] = 100.0
                continue
            average = sum(measured_node.percent(name) for measured_node in nodes) / len(nodes)
            low[name] = min(max(average - args.thresholds[name], 0.0), 100.0)
            target[name] = min(max(average + args.target_thresholds[name], 0.0), 100.0)
        return low, target

    async def _relieve(
        self, measured_node: RequestedNode, targets: FitTable, high: Percents, budget: dict[str, float]
    ) -> None:
        limits: PodsPerNode | None = self._args.eviction_limits
        evicted = 0
        for pod in self._removable(measured_node.node, targets):
            if not measured_node.over(high) or any(left <= 0 for left in budget.values()):
                return
            if limits is not None and limits.node is not None and evicted >= limits.node:
                return
            if await self.evict(pod, "node is over its target thresholds by requests"):
                evicted += 1
                _moved(pod, measured_node, budget)


class HighNodeUtilization(_Utilization, BalancePlugin):
    """Empties nodes under their thresholds into the other nodes; the scheduler should prefer full nodes."""

    name = "HighNodeUtilization"
    args_type = HighNodeUtilizationArgs

    async def balance(self, nodes: Sequence[NodeRecord]) -> None:
        args: HighNodeUtilizationArgs = self._args
        resources = tuple(dict.fromkeys((*ALWAYS, *args.thresholds)))
        measured = [RequestedNode(node, resources) for node in nodes]
        under = [measured_node for measured_node in measured if measured_node.under(args.thresholds)]
        names = {measured_node.node.name for measured_node in under}
        targets = [
            measured_node
            for measured_node in measured
            if measured_node.node.name not in names and not measured_node.node.unschedulable
        ]
        if not targets or not self._usable(len(under), len(measured)):
            return
        budget = {name: sum(measured_node.room(name, 100.0) for measured_node in targets) for name in resources}
        fit = FitTable([measured_node.node for measured_node in targets])
        for measured_node in sorted(
            under, key=lambda measured_node: (measured_node.total_percent(), measured_node.node.name)
        ):
            for pod in self._removable(measured_node.node, fit):
                if any(left <= 0 for left in budget.values()):
                    return
                if self._counts(pod) and await self.evict(pod, "node is under its thresholds by requests"):
                    _moved(pod, measured_node, budget)

    def _counts(self, pod: PodRecord) -> bool:
        """With OnlyThresholdingResources: whether the pod requests one of the resources with a threshold."""
        args: HighNodeUtilizationArgs = self._args
        return not args.eviction_modes or any(pod.requests.get(name, 0) > 0 for name in args.thresholds)


def _moved(pod: PodRecord, source: RequestedNode, budget: dict[str, float]) -> None:
    source.remove(pod)
    for name in budget:
        budget[name] -= requested_by(pod, name)
