"""NodeUnschedulable, NodeName, TaintToleration and NodeAffinity, one node at a time."""

from __future__ import annotations

from koordlet.api.core import Node, Pod
from koordlet.api.core.selectors import NodeAffinity, Taint
from tests.control.scheduler.plain.world import U, Verdict, World


def node_unschedulable(pod: Pod, node: Node, _: World) -> Verdict:
    mark = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")
    if node.spec.unschedulable and not any(t.tolerates(mark) for t in pod.spec.tolerations):
        return U, ("node(s) were unschedulable",)
    return None


def node_name(pod: Pod, node: Node, _: World) -> Verdict:
    if pod.spec.node_name and pod.spec.node_name != node.metadata.name:
        return U, ("node(s) didn't match the requested node name",)
    return None


def taint_toleration(pod: Pod, node: Node, _: World) -> Verdict:
    for taint in node.spec.taints:
        if taint.effect == "PreferNoSchedule":
            continue
        if not any(t.tolerates(taint) for t in pod.spec.tolerations):
            return U, ("node(s) had untolerated taint(s)",)
    return None


def taint_score(pod: Pod, node: Node, _: World) -> int:
    untolerated = 0
    for taint in node.spec.taints:
        if taint.effect == "PreferNoSchedule":
            untolerated += not any(t.tolerates(taint) for t in pod.spec.tolerations)
    return untolerated


def matches_required(pod: Pod, node: Node) -> bool:
    """Node selector and required node affinity."""
    for key, value in pod.spec.node_selector.items():
        if node.metadata.labels.get(key) != value:
            return False
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity else None
    return _required(affinity, node)


def _required(affinity: NodeAffinity | None, node: Node) -> bool:
    required = affinity.required_during_scheduling_ignored_during_execution if affinity else None
    if required is None:
        return True
    fields = {"metadata.name": node.metadata.name}
    return any(term.matches(node.metadata.labels, fields) for term in required.node_selector_terms)


def node_affinity(pod: Pod, node: Node, _: World, added: NodeAffinity | None = None) -> Verdict:
    if not _required(added, node):
        return U, ("node(s) didn't match scheduler-enforced node affinity",)
    if not matches_required(pod, node):
        return U, ("node(s) didn't match Pod's node affinity/selector",)
    return None


def affinity_score(pod: Pod, node: Node, _: World, added: NodeAffinity | None = None) -> int:
    total = 0
    for affinity in (added, pod.spec.affinity.node_affinity if pod.spec.affinity else None):
        for preference in affinity.preferred_during_scheduling_ignored_during_execution if affinity else ():
            if preference.preference.matches(node.metadata.labels, {"metadata.name": node.metadata.name}):
                total += preference.weight
    return total
