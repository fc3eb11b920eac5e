"""InterPodAffinity over plain lists, examining every pod each time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from koordlet.api.core import Node, Pod
from koordlet.api.core.selectors import PodAffinity, PodAffinityTerm, WeightedPodAffinityTerm
from tests.control.scheduler.plain.world import S, U, Verdict, World, selects


def matches(term: PodAffinityTerm, owner: Pod, pod: Pod, world: World) -> bool:
    """Whether `owner`'s term means `pod`."""
    namespaces = set(term.namespaces)
    if not namespaces and term.namespace_selector is None:
        namespaces = {owner.metadata.namespace}
    labels_of_namespace = world.namespaces.get(pod.metadata.namespace, {})
    if pod.metadata.namespace not in namespaces and not selects(term.namespace_selector, labels_of_namespace):
        return False
    if not selects(term.label_selector, pod.metadata.labels):
        return False
    mine, its = owner.metadata.labels, pod.metadata.labels
    if any(key in mine and its.get(key) != mine[key] for key in term.match_label_keys):
        return False
    return not any(key in mine and its.get(key) == mine[key] for key in term.mismatch_label_keys)


def _required(affinity: PodAffinity | None) -> list[PodAffinityTerm]:
    return affinity.required_during_scheduling_ignored_during_execution if affinity else []


def _preferred(affinity: PodAffinity | None) -> list[WeightedPodAffinityTerm]:
    return affinity.preferred_during_scheduling_ignored_during_execution if affinity else []


def near(pod: Pod) -> PodAffinity | None:
    return pod.spec.affinity.pod_affinity if pod.spec.affinity else None


def far(pod: Pod) -> PodAffinity | None:
    return pod.spec.affinity.pod_anti_affinity if pod.spec.affinity else None


def _placed(world: World) -> Iterable[tuple[Pod, Mapping[str, str]]]:
    """Pods with the labels of their nodes."""
    for node in world.nodes:
        for pod in world.on(node):
            yield pod, node.metadata.labels


def inter_pod_affinity(pod: Pod, node: Node, world: World) -> Verdict:
    labels = node.metadata.labels
    terms = _required(near(pod))
    if terms:
        if any(term.topology_key not in labels for term in terms):
            return U, ("node(s) didn't match pod affinity rules",)
        matched_labels = [ls for other, ls in _placed(world) if all(matches(term, pod, other, world) for term in terms)]
        here = all(any(ls.get(t.topology_key) == labels[t.topology_key] for ls in matched_labels) for t in terms)
        anywhere = any(term.topology_key in ls for ls in matched_labels for term in terms)
        first = not anywhere and all(matches(term, pod, pod, world) for term in terms)
        if not here and not first:
            return U, ("node(s) didn't match pod affinity rules",)
    for term in _required(far(pod)):
        key = term.topology_key
        for other, ls in _placed(world):
            if key in labels and ls.get(key) == labels[key] and matches(term, pod, other, world):
                return S, ("node(s) didn't match pod anti-affinity rules",)
    for other, ls in _placed(world):
        for term in _required(far(other)):
            key = term.topology_key
            if key in labels and ls.get(key) == labels[key] and matches(term, other, pod, world):
                return S, ("node(s) didn't satisfy existing pods anti-affinity rules",)
    return None


def inter_pod_scores(
    pod: Pod, feasible: Sequence[Node], world: World, *, hard_weight: int = 1, ignore_existing: bool = False
) -> Mapping[str, int] | None:
    """Normalized; None: skipped."""
    own = [(t.weight, t.pod_affinity_term) for t in _preferred(near(pod))]
    own += [(-t.weight, t.pod_affinity_term) for t in _preferred(far(pod))]
    if ignore_existing and not own:
        return None
    credits: list[tuple[str, str, int]] = []

    def credit(labels: Mapping[str, str], key: str, weight: int) -> None:
        if key in labels:
            credits.append((key, labels[key], weight))

    for other, labels in _placed(world):
        for weight, term in own:
            if matches(term, pod, other, world):
                credit(labels, term.topology_key, weight)
        theirs = [(hard_weight, t) for t in _required(near(other)) if hard_weight]
        theirs += [(t.weight, t.pod_affinity_term) for t in _preferred(near(other))]
        theirs += [(-t.weight, t.pod_affinity_term) for t in _preferred(far(other))]
        for weight, term in theirs:
            if matches(term, other, pod, world):
                credit(labels, term.topology_key, weight)
    if not credits:
        return None
    raw = {
        node.metadata.name: sum(w for key, value, w in credits if node.metadata.labels.get(key) == value)
        for node in feasible
    }
    low, high = min(raw.values()), max(raw.values())
    return {name: int(100 * ((score - low) / (high - low))) if high > low else 0 for name, score in raw.items()}
