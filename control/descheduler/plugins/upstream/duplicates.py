"""RemoveDuplicates: several pods of one owner on the same node, while other nodes could have them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from math import ceil

import msgspec

from control.descheduler.framework.fit import selects, tolerates
from control.descheduler.framework.plugin import BalancePlugin
from control.descheduler.plugins.upstream.common import NamespacedArgs, UpstreamPlugin, has_owner_of
from control.descheduler.state.cluster import NodeRecord
from control.descheduler.state.pods import PlacementRule, PodRecord

DuplicateKey = tuple[tuple[tuple[str, str, str], ...], tuple[str, ...]]
"""(owners as namespace, kind and name; images), both sorted."""


class RemoveDuplicatesArgs(NamespacedArgs):
    """Arguments of RemoveDuplicates."""

    exclude_owner_kinds: list[str] = msgspec.field(default_factory=list)


class RemoveDuplicates(UpstreamPlugin, BalancePlugin):
    """See the module text. A node keeps as many pods as each possible node would have if they were spread evenly."""

    name = "RemoveDuplicates"
    args_type = RemoveDuplicatesArgs

    async def balance(self, nodes: Sequence[NodeRecord]) -> None:
        groups: defaultdict[DuplicateKey, dict[str, list[PodRecord]]] = defaultdict(dict)
        for node in nodes:
            for pod in self.pods_of(node):
                key = self._key(pod)
                if key is not None:
                    groups[key].setdefault(node.name, []).append(pod)
        for by_node in groups.values():
            if all(len(pods) < 2 for pods in by_node.values()):
                continue
            rules = {pod.placement.number: pod.placement for pods in by_node.values() for pod in pods}
            targets = sum(any(_possible(rule, node) for rule in rules.values()) for node in nodes)
            if targets < 2:
                continue
            upper = ceil(sum(len(pods) for pods in by_node.values()) / targets)
            for pods in by_node.values():
                for pod in pods[max(upper, 1) :]:
                    await self.evict(pod, f"more than {upper} pods of its owner are on its node")

    def _key(self, pod: PodRecord) -> DuplicateKey | None:
        owners = pod.pod.metadata.owner_references
        if not owners or has_owner_of(pod, self._args.exclude_owner_kinds):
            return None
        images = sorted(container.image for container in pod.pod.spec.containers)
        return tuple(sorted((pod.namespace, owner.kind, owner.name) for owner in owners)), tuple(images)


def _possible(rule: PlacementRule, node: NodeRecord) -> bool:
    """Whether such a pod may run there, without regard to free resources."""
    return (
        node.node is not None
        and not node.unschedulable
        and selects(rule, node.name, node.labels)
        and tolerates(rule.tolerations, node.node.spec.taints)
    )
