"""ScaleDownBinPack: ranks pods so that a workload that is scaled down leaves whole nodes empty (spec 07 §9)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from control.component.errors import invalid, unsupported
from control.descheduler.config.selection import (
    NamespaceRule,
    PodSelectorRule,
    considered,
    namespace_errors,
    pod_selector_errors,
)
from control.descheduler.config.selectors import selector_errors
from control.descheduler.framework.plugin import BalancePlugin, PluginArgs
from control.descheduler.plugins.fragmentationaware import resource_list_errors
from control.descheduler.state.cluster import NodeRecord
from control.descheduler.state.pods import DELETION_COST, PodRecord, is_daemon
from koordlet.api.core import Pod
from koordlet.api.meta import LabelSelector
from koordlet.app.logging import get_logger
from koordlet.kube import KubeError, NotFound

log = get_logger(__name__)

CALCULATE_ONLY: Final = "CalculateOnly"
EVICT_DIRECTLY: Final = "EvictDirectly"
MAX_COST: Final = 2**31 - 1


class DeletionCostFailed(Exception):
    """Some pods could not be annotated."""


class ScaleDownBinPackArgs(PluginArgs):
    """Arguments of ScaleDownBinPack."""

    paused: bool = False
    strategy: str = CALCULATE_ONLY
    max_pods_to_evict: int = 0
    node_selector: LabelSelector | None = None
    pod_selectors: list[PodSelectorRule] = msgspec.field(default_factory=list)
    evictable_namespaces: NamespaceRule | None = None
    resources: list[str] = msgspec.field(default_factory=lambda: ["cpu", "memory"])
    resource_weights: dict[str, float] = msgspec.field(default_factory=dict)

    def check(self, path: str) -> list[str]:
        errors = namespace_errors(self.evictable_namespaces, f"{path}.evictableNamespaces")
        errors += selector_errors(self.node_selector, f"{path}.nodeSelector")
        errors += pod_selector_errors(self.pod_selectors, f"{path}.podSelectors")
        errors += resource_list_errors(self.resources, f"{path}.resources")
        if self.strategy not in (CALCULATE_ONLY, EVICT_DIRECTLY):
            errors.append(unsupported(f"{path}.strategy", self.strategy, [CALCULATE_ONLY, EVICT_DIRECTLY]))
        if self.strategy == EVICT_DIRECTLY and self.max_pods_to_evict <= 0:
            errors.append(invalid(f"{path}.maxPodsToEvict", self.max_pods_to_evict, "must be greater than 0"))
        for name, weight in self.resource_weights.items():
            if not 0 < weight < math.inf:
                errors.append(invalid(f"{path}.resourceWeights[{name}]", weight, "must be finite and greater than 0"))
        self.resource_weights = {name: self.resource_weights.get(name, 1.0) for name in self.resources}
        return errors


@dataclass(frozen=True)
class RankedNode:
    """The pods of one node by what may happen to them, and the node's score; lower: emptied at less cost."""

    node: NodeRecord
    eligible: Sequence[PodRecord]
    skipped: Sequence[PodRecord]
    score: float


class ScaleDownBinPack(BalancePlugin):
    """See the module text."""

    name = "ScaleDownBinPack"
    args_type = ScaleDownBinPackArgs
    _args: ScaleDownBinPackArgs

    async def balance(self, nodes: Sequence[NodeRecord]) -> None:
        args = self._args
        if args.paused or self._handle.dry_run:
            return
        selector = args.node_selector
        selected = [node for node in nodes if selector is None or selector.matches(node.labels)]
        ranked = self.ranked(selected)
        pods = [pod for ranked_node in ranked for pod in self.ordered(ranked_node)]
        if args.strategy == EVICT_DIRECTLY:
            await self._evict(pods)
            return
        skipped = (pod for ranked_node in ranked for pod in ranked_node.skipped if self._may_annotate(pod))
        await self._annotate([*enumerate(pods), *((MAX_COST, pod) for pod in skipped)])

    def ranked(self, nodes: Sequence[NodeRecord]) -> list[RankedNode]:
        """The nodes with eligible pods, in the order in which they are emptied."""
        ranked = [ranked_node for node in nodes if (ranked_node := self._split(node)) is not None]
        return sorted(
            ranked, key=lambda ranked_node: (ranked_node.score, len(ranked_node.eligible), ranked_node.node.name)
        )

    def ordered(self, ranked_node: RankedNode) -> list[PodRecord]:
        """The eligible pods of a node: largest first, then newest first, then by name."""
        allocatable = ranked_node.node.allocatable
        return sorted(
            ranked_node.eligible,
            key=lambda pod: (-self._size(pod.requests, allocatable), -pod.created, pod.namespace, pod.name),
        )

    def _split(self, node: NodeRecord) -> RankedNode | None:
        eligible, skipped, others = [], [], []
        selects_all = any(rule.selector is None for rule in self._args.pod_selectors)  # spec 07 §9-1
        for pod in node.active_pods():
            if self._eligible(pod):
                eligible.append(pod)
            elif selects_all or considered(pod, None, self._args.pod_selectors):
                skipped.append(pod)
            else:
                others.append(pod)
        if not eligible:
            return None
        collateral = self._size(_sum((*others, *skipped)), node.allocatable)
        gained = self._size(_sum(eligible), node.allocatable)
        score = collateral / gained if gained else (math.inf if collateral > 0 else 0.0)
        return RankedNode(node, eligible, skipped, score)

    def _eligible(self, pod: PodRecord) -> bool:
        args = self._args
        return (
            considered(pod, args.evictable_namespaces, args.pod_selectors) and self._handle.evictor.filter(pod) is None
        )

    def _may_annotate(self, pod: PodRecord) -> bool:
        """Pods outside the evictable namespaces and pods of DaemonSets are left alone."""
        return considered(pod, self._args.evictable_namespaces, []) and not is_daemon(pod.pod)

    def _size(self, requests: Mapping[str, int], allocatable: Mapping[str, int]) -> float:
        return sum(
            weight * requests.get(name, 0) / allocatable[name]
            for name, weight in self._args.resource_weights.items()
            if allocatable.get(name, 0) > 0
        )

    async def _evict(self, pods: Sequence[PodRecord]) -> None:
        evicted = 0
        for pod in pods:
            if evicted == self._args.max_pods_to_evict:
                return
            evicted += await self._handle.evictor.evict(pod, "scale-down binpack")

    async def _annotate(self, costs: Sequence[tuple[int, PodRecord]]) -> None:
        """Write the deletion costs that differ. Raises DeletionCostFailed after all were tried."""
        failed = 0
        for cost, pod in costs:
            if pod.pod.metadata.annotations.get(DELETION_COST) == str(cost):
                continue
            body = {"metadata": {"annotations": {DELETION_COST: str(cost)}, "uid": pod.uid}}
            try:
                await self._handle.client.patch(Pod, pod.name, pod.namespace, body=body, repeatable=True)
            except NotFound:
                continue  # the pod has been deleted meanwhile
            except KubeError as error:
                log.warning("Cannot write the deletion cost", pod=pod.key, cost=cost, err=error)
                failed += 1
        if failed:
            raise DeletionCostFailed(f"the deletion costs of {failed} of {len(costs)} pods could not be written")


def _sum(pods: Iterable[PodRecord]) -> dict[str, int]:
    total: dict[str, int] = {}
    for pod in pods:
        for name, amount in pod.requests.items():
            total[name] = total.get(name, 0) + amount
    return total
