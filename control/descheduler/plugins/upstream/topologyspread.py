"""RemovePodsViolatingTopologySpreadConstraint: domains that have more pods than a spread constraint allows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor
from typing import TypeAlias

import msgspec

from control.component.errors import unsupported
from control.descheduler.config.selection import considered
from control.descheduler.framework.fit import FitTable
from control.descheduler.framework.plugin import BalancePlugin
from control.descheduler.plugins.upstream.common import NamespacedArgs, UpstreamPlugin
from control.descheduler.state.cluster import NodeRecord
from control.descheduler.state.pods import PodRecord
from koordlet.api.core.selectors import TopologySpreadConstraint
from koordlet.api.encoding import wire
from koordlet.api.meta import SelectorError

KNOWN = ("DoNotSchedule", "ScheduleAnyway")

NodeValues: TypeAlias = dict[str, str]
"""Node -> value of one topology key; nodes without the label are left out."""


class RemovePodsViolatingTopologySpreadConstraintArgs(NamespacedArgs):
    """Arguments of RemovePodsViolatingTopologySpreadConstraint. The label selector applies at eviction only."""

    constraints: list[str] = msgspec.field(default_factory=lambda: ["DoNotSchedule"])
    topology_balance_node_fit: bool = True

    def check(self, path: str) -> list[str]:
        return super().check(path) + [
            unsupported(f"{path}.constraints[{index}]", kind, KNOWN)
            for index, kind in enumerate(self.constraints)
            if kind not in KNOWN
        ]


@dataclass
class SpreadDomain:
    """The pods of one value of the topology key; those at the end leave first."""

    value: str
    pods: list[PodRecord]


class RemovePodsViolatingTopologySpreadConstraint(UpstreamPlugin, BalancePlugin):
    """See the module text."""

    name = "RemovePodsViolatingTopologySpreadConstraint"
    args_type = RemovePodsViolatingTopologySpreadConstraintArgs

    async def balance(self, nodes: Sequence[NodeRecord]) -> None:
        args: RemovePodsViolatingTopologySpreadConstraintArgs = self._args
        fit, rows = FitTable(nodes), {node.name: row for row, node in enumerate(nodes)}
        leaving: dict[str, PodRecord] = {}
        values: dict[str, NodeValues] = {}
        for pods in self._by_namespace(nodes).values():
            for constraint in _distinct(pods, args.constraints):
                key = constraint.topology_key
                if key not in values:
                    values[key] = {node.name: value for node in nodes if (value := node.labels.get(key))}
                domains = self._domains(constraint, pods, values[key])
                for pod in moves(domains, constraint.max_skew):
                    if not args.topology_balance_node_fit or _fits_another(pod, fit, rows):
                        leaving.setdefault(pod.uid, pod)
        for pod in leaving.values():
            if self.chosen(pod):
                await self.evict(pod, "pod violates a topology spread constraint")

    def _by_namespace(self, nodes: Sequence[NodeRecord]) -> dict[str, list[PodRecord]]:
        namespaces = self._args.namespaces
        by_namespace: dict[str, list[PodRecord]] = {}
        for node in nodes:
            for pod in node.active_pods():
                if considered(pod, namespaces, []) and not pod.terminating:
                    by_namespace.setdefault(pod.namespace, []).append(pod)
        return dict(sorted(by_namespace.items()))

    def _domains(
        self, constraint: TopologySpreadConstraint, pods: Sequence[PodRecord], values: NodeValues
    ) -> list[SpreadDomain]:
        """All domains, also empty ones. Pods that may not go are at the front, then those of high priority."""
        domains = {value: SpreadDomain(value, []) for value in sorted(set(values.values()))}
        for pod in pods:
            value = values.get(pod.node)
            if value and _matches(constraint, pod):
                domains[value].pods.append(pod)
        for domain in domains.values():
            domain.pods.sort(key=self._staying)
        return list(domains.values())

    def _staying(self, pod: PodRecord) -> tuple[bool, bool, int, str]:
        rule = pod.placement
        bound = bool(rule.node_selector) or rule.terms is not None
        return (self._handle.evictor.filter(pod) is None, not bound, -pod.order.priority, pod.key)


def moves(domains: Sequence[SpreadDomain], max_skew: int) -> list[PodRecord]:
    """The pods that have to leave their domains, so that no two domains differ by more than `max_skew`.

    Pods go from the largest domain to the smallest one, no domain falls below the average, and not more than half of
    the excess moves at once. A domain takes no more than the truncated average, else it would give pods again. Changes
    the domains."""
    average = sum(len(domain.pods) for domain in domains) / max(len(domains), 1)
    leaving: list[PodRecord] = []
    taking: set[str] = set()
    while domains:
        small = min(domains, key=lambda domain: (len(domain.pods), domain.value))
        large = max(domains, key=lambda domain: (len(domain.pods), domain.value not in taking, domain.value))
        skew = len(large.pods) - len(small.pods)
        if skew <= max_skew:
            break
        above, below = ceil(len(large.pods) - average), max(1, floor(average - len(small.pods)))
        count = min(above, below, ceil((skew - max_skew) / 2))
        moved = large.pods[-count:]
        del large.pods[-count:]
        small.pods.extend(moved)
        taking.add(small.value)
        leaving += moved
    return leaving


def _distinct(pods: Iterable[PodRecord], kinds: Sequence[str]) -> list[TopologySpreadConstraint]:
    """The different constraints of these pods, in the order of their first pods."""
    by_content: dict[bytes, TopologySpreadConstraint] = {}
    for pod in pods:
        for constraint in pod.pod.spec.topology_spread_constraints:
            if constraint.when_unsatisfiable in kinds:
                by_content.setdefault(wire.encode(constraint), constraint)
    return list(by_content.values())


def _matches(constraint: TopologySpreadConstraint, pod: PodRecord) -> bool:
    """Whether the constraint counts the pod; an absent or invalid selector counts none."""
    selector = constraint.label_selector
    try:
        return selector is not None and selector.matches(pod.pod.metadata.labels)
    except SelectorError:
        return False


def _fits_another(pod: PodRecord, fit: FitTable, rows: Mapping[str, int]) -> bool:
    """Whether the pod fits another node than its own."""
    mask = fit.mask(pod.placement)
    return bool(mask.sum() > int(mask[rows[pod.node]]))
