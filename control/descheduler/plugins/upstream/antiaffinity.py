"""RemovePodsViolatingInterPodAntiAffinity: pods that the required anti-affinity of another pod keeps away."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from control.descheduler.framework.plugin import DeschedulePlugin
from control.descheduler.plugins.upstream.common import NamespacedArgs, UpstreamPlugin, by_priority
from control.descheduler.state.cluster import NodeRecord
from control.descheduler.state.pods import PodRecord
from koordlet.api.core.selectors import PodAffinityTerm
from koordlet.api.meta import SelectorError


@dataclass(frozen=True)
class KeepAway:
    """A required anti-affinity term of a pod, with the topology domain that it applies to."""

    pod: PodRecord
    term: PodAffinityTerm
    domain: str

    def violated_by(self, other: PodRecord, node: NodeRecord) -> bool:
        """Whether `other`, which is on `node`, is in the domain and matches the term."""
        term = self.term
        if other.uid == self.pod.uid or node.labels.get(term.topology_key) != self.domain:
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
        terms = list(_terms(nodes))
        if not terms:
            return
        gone: set[str] = set()
        for node in nodes:
            for pod in sorted(self.pods_of(node), key=by_priority):
                if any(one.pod.uid not in gone and one.violated_by(pod, node) for one in terms) and await self.evict(
                    pod, "pod violates the anti-affinity of another pod"
                ):
                    gone.add(pod.uid)


def _terms(nodes: Iterable[NodeRecord]) -> Iterable[KeepAway]:
    """The required anti-affinity terms of all pods on these nodes; nodes without the topology label have none."""
    for node in nodes:
        for pod in node.living_pods():
            affinity = pod.pod.spec.affinity
            if affinity is None or affinity.pod_anti_affinity is None:
                continue
            for term in affinity.pod_anti_affinity.required_during_scheduling_ignored_during_execution:
                domain = node.labels.get(term.topology_key)
                if domain is not None:
                    yield KeepAway(pod, term, domain)
