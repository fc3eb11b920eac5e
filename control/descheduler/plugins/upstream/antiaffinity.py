"""RemovePodsViolatingInterPodAntiAffinity: pods that the required anti-affinity of another pod keeps away."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from control.descheduler.framework.plugin import DeschedulePlugin
from control.descheduler.plugins.upstream.common import NamespacedArgs, UpstreamPlugin, by_priority
from control.descheduler.state.cluster import NodeRecord
from control.descheduler.state.pods import PodRecord
from koordlet.api.core.selectors import PodAffinityTerm
from koordlet.api.meta import SelectorError

TopologyDomain: TypeAlias = tuple[str, str | None]
"""(topology key, value)"""


@dataclass(frozen=True)
class KeepAway:
    """A required anti-affinity term of a pod."""

    pod: PodRecord
    term: PodAffinityTerm

    def violated_by(self, other: PodRecord) -> bool:
        """Whether `other`, which is in the term's topology domain, matches the term."""
        term = self.term
        if other.uid == self.pod.uid:
            return False
        namespaces = term.namespaces or [self.pod.namespace]
        if other.namespace not in namespaces or term.label_selector is None:
            return False
        try:
            return term.label_selector.matches(other.pod.metadata.labels)
        except SelectorError:
            return False  # such a term keeps no pod away


class RemovePodsViolatingInterPodAntiAffinity(UpstreamPlugin, DeschedulePlugin):
    """See the module text. Pods of low priority go first; each is checked again after the previous one has gone."""

    name = "RemovePodsViolatingInterPodAntiAffinity"
    args_type = NamespacedArgs

    async def deschedule(self, nodes: Sequence[NodeRecord]) -> None:
        terms = _terms(nodes)
        keys = {key for key, _ in terms}
        gone: set[str] = set()
        for node in nodes:
            here = [term for key in keys for term in terms.get((key, node.labels.get(key)), ())]
            if not here:
                continue
            for pod in sorted(self.pods_of(node), key=by_priority):
                if any(term.pod.uid not in gone and term.violated_by(pod) for term in here) and await self.evict(
                    pod, "pod violates the anti-affinity of another pod"
                ):
                    gone.add(pod.uid)


def _terms(nodes: Iterable[NodeRecord]) -> dict[TopologyDomain, list[KeepAway]]:
    """The required anti-affinity terms of all pods on these nodes; nodes without the topology label have none."""
    terms: dict[TopologyDomain, list[KeepAway]] = {}
    for node in nodes:
        for pod in node.active_pods():
            affinity = pod.pod.spec.affinity
            if affinity is None or affinity.pod_anti_affinity is None:
                continue
            for term in affinity.pod_anti_affinity.required_during_scheduling_ignored_during_execution:
                domain = node.labels.get(term.topology_key)
                if domain is not None:
                    terms.setdefault((term.topology_key, domain), []).append(KeepAway(pod, term))
    return terms
