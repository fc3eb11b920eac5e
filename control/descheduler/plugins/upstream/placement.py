"""Pods whose node does not match their affinity, or has taints that they do not tolerate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from control.component.errors import invalid, required, unsupported
from control.descheduler.framework.fit import misfit, selects, tolerates
from control.descheduler.framework.plugin import DeschedulePlugin
from control.descheduler.plugins.upstream.common import NamespacedArgs, UpstreamPlugin
from control.descheduler.state.cluster import NodeRecord
from control.descheduler.state.pods import PodRecord
from koordlet.api.core.selectors import Taint

REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"


class RemovePodsViolatingNodeTaintsArgs(NamespacedArgs):
    """Arguments of RemovePodsViolatingNodeTaints. A taint is named by `key` or `key=value`."""

    include_prefer_no_schedule: bool = False
    excluded_taints: list[str] = msgspec.field(default_factory=list)
    included_taints: list[str] = msgspec.field(default_factory=list)

    def check(self, path: str) -> list[str]:
        errors = super().check(path)
        if self.excluded_taints and self.included_taints:
            errors.append(invalid(f"{path}.includedTaints", self.included_taints, "excludedTaints is set, too"))
        return errors


class RemovePodsViolatingNodeTaints(UpstreamPlugin, DeschedulePlugin):
    """Evicts pods that do not tolerate a NoSchedule taint of their node."""

    name = "RemovePodsViolatingNodeTaints"
    args_type = RemovePodsViolatingNodeTaintsArgs

    async def deschedule(self, nodes: Sequence[NodeRecord]) -> None:
        args: RemovePodsViolatingNodeTaintsArgs = self._args
        effects = ("NoSchedule", "PreferNoSchedule") if args.include_prefer_no_schedule else ("NoSchedule",)
        for node in nodes:
            taints = [taint for taint in (node.node.spec.taints if node.node else ()) if self._counts(taint)]
            if not taints:
                continue
            for pod in self.pods_of(node):
                if not tolerates(pod.placement.tolerations, taints, effects):
                    await self.evict(pod, "pod does not tolerate a taint of its node")

    def _counts(self, taint: Taint) -> bool:
        args: RemovePodsViolatingNodeTaintsArgs = self._args
        names = {taint.key, f"{taint.key}={taint.value}"}
        if not names.isdisjoint(args.excluded_taints):
            return False
        return not args.included_taints or not names.isdisjoint(args.included_taints)


class RemovePodsViolatingNodeAffinityArgs(NamespacedArgs):
    """Arguments of RemovePodsViolatingNodeAffinity."""

    node_affinity_type: list[str] = msgspec.field(default_factory=list)

    def check(self, path: str) -> list[str]:
        errors = super().check(path)
        if not self.node_affinity_type:
            errors.append(required(f"{path}.nodeAffinityType"))
        errors += [
            unsupported(f"{path}.nodeAffinityType[{index}]", name, (REQUIRED, PREFERRED))
            for index, name in enumerate(self.node_affinity_type)
            if name not in (REQUIRED, PREFERRED)
        ]
        return errors


class RemovePodsViolatingNodeAffinity(UpstreamPlugin, DeschedulePlugin):
    """Evicts pods whose node affinity another node satisfies and their own does not, or less."""

    name = "RemovePodsViolatingNodeAffinity"
    args_type = RemovePodsViolatingNodeAffinityArgs

    async def deschedule(self, nodes: Sequence[NodeRecord]) -> None:
        kinds: list[str] = self._args.node_affinity_type
        for node in nodes:
            for pod in self.pods_of(node):
                if REQUIRED in kinds and self._violates_required(pod, node, nodes):
                    await self.evict(pod, "required node affinity does not match its node")
                elif PREFERRED in kinds and self._prefers_another(pod, node, nodes):
                    await self.evict(pod, "another node matches its preferred node affinity better")

    def _violates_required(self, pod: PodRecord, node: NodeRecord, nodes: Sequence[NodeRecord]) -> bool:
        rule = pod.placement
        if rule.terms is None or selects(rule, node.name, node.labels):
            return False
        return any(other is not node and misfit(rule, other) is None for other in nodes)

    def _prefers_another(self, pod: PodRecord, node: NodeRecord, nodes: Sequence[NodeRecord]) -> bool:
        affinity = pod.pod.spec.affinity
        if affinity is None or affinity.node_affinity is None:
            return False
        terms = affinity.node_affinity.preferred_during_scheduling_ignored_during_execution

        def weight(node: NodeRecord) -> int:
            fields = {"metadata.name": node.name}
            return sum(term.weight for term in terms if term.preference.matches(node.labels, fields))

        own = weight(node)
        return any(
            other is not node and weight(other) > own and misfit(pod.placement, other) is None for other in nodes
        )
