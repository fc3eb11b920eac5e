"""PodTopologySpread over plain lists, counting everything each time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

from koordlet.api.core import Node, Pod
from koordlet.api.core.selectors import TopologySpreadConstraint as Constraint
from koordlet.api.meta import LabelSelector, LabelSelectorRequirement
from tests.control.scheduler.plain.nodechecks import matches_required, taint_toleration
from tests.control.scheduler.plain.world import S, U, Verdict, World, selects

HOSTNAME, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"
SYSTEM = (
    Constraint(max_skew=3, topology_key=HOSTNAME, when_unsatisfiable="ScheduleAnyway"),
    Constraint(max_skew=5, topology_key=ZONE, when_unsatisfiable="ScheduleAnyway"),
)
MISMATCH = "node(s) didn't match pod topology spread constraints"


def constraints(pod: Pod, world: World, action: str, defaults: Sequence[Constraint]) -> list[Constraint]:
    listed = list(pod.spec.topology_spread_constraints)
    if not listed:
        selector = world.default_selectors.get(pod.metadata.name)
        if selector is None or selector.is_empty():
            return []
        listed = [msgspec.structs.replace(default, label_selector=selector) for default in defaults]
    return [_with_keys(constraint, pod) for constraint in listed if constraint.when_unsatisfiable == action]


def _with_keys(constraint: Constraint, pod: Pod) -> Constraint:
    labels = pod.metadata.labels
    keys = [key for key in constraint.match_label_keys if key in labels]
    if not keys or constraint.label_selector is None:
        return constraint
    more = [LabelSelectorRequirement(key=key, operator="In", values=[labels[key]]) for key in keys]
    selector = LabelSelector(
        match_labels=constraint.label_selector.match_labels,
        match_expressions=[*constraint.label_selector.match_expressions, *more],
    )
    return msgspec.structs.replace(constraint, label_selector=selector)


def _count(node: Node, constraint: Constraint, pod: Pod, world: World) -> int:
    if constraint.label_selector is not None and constraint.label_selector.is_empty():
        return 0
    return sum(
        other.metadata.namespace == pod.metadata.namespace
        and other.metadata.deletion_timestamp is None
        and selects(constraint.label_selector, other.metadata.labels)
        for other in world.on(node)
    )


def _included(constraint: Constraint, pod: Pod, node: Node, world: World) -> bool:
    if constraint.node_affinity_policy in (None, "Honor") and not matches_required(pod, node):
        return False
    return constraint.node_taints_policy != "Honor" or taint_toleration(pod, node, world) is None


def spread(pod: Pod, node: Node, world: World, defaults: Sequence[Constraint] = SYSTEM) -> Verdict:
    hard = constraints(pod, world, "DoNotSchedule", defaults)
    complete = [n for n in world.nodes if all(c.topology_key in n.metadata.labels for c in hard)]
    for constraint in hard:
        key = constraint.topology_key
        if key not in node.metadata.labels:
            return U, (f"{MISMATCH} (missing required label)",)
        domains: dict[str, int] = {}
        for other in complete:
            if _included(constraint, pod, other, world):
                value = other.metadata.labels[key]
                domains[value] = domains.get(value, 0) + _count(other, constraint, pod, world)
        least = min(domains.values()) if len(domains) >= (constraint.min_domains or 1) else 0
        own = int(selects(constraint.label_selector, pod.metadata.labels))
        if domains.get(node.metadata.labels[key], 0) + own - least > constraint.max_skew:
            return S, (MISMATCH,)
    return None


def spread_scores(
    pod: Pod, feasible: Sequence[Node], world: World, defaults: Sequence[Constraint] = SYSTEM, *, system: bool = True
) -> Mapping[str, int] | None:
    """Normalized; None: skipped."""
    soft = constraints(pod, world, "ScheduleAnyway", defaults)
    if not soft:
        return None
    strict = bool(pod.spec.topology_spread_constraints) or not system

    def complete(node: Node) -> bool:
        return not strict or all(constraint.topology_key in node.metadata.labels for constraint in soft)

    judged = [node for node in feasible if complete(node)]
    raw: dict[str, int] = {}
    for node in judged:
        total = 0.0
        for constraint in soft:
            key = constraint.topology_key
            if key not in node.metadata.labels:
                continue
            if key == HOSTNAME:
                size, count = len(judged), _count(node, constraint, pod, world)
            else:
                size = len({n.metadata.labels.get(key, "") for n in judged})
                count = sum(
                    _count(n, constraint, pod, world)
                    for n in world.nodes
                    if n.metadata.labels.get(key) == node.metadata.labels[key]
                    and complete(n)
                    and _included(constraint, pod, n, world)
                )
            total += count * math.log(size + 2) + (constraint.max_skew - 1)
        raw[node.metadata.name] = math.floor(total + 0.5)
    result = {node.metadata.name: 0 for node in feasible}
    if raw:
        low, high = min(raw.values()), max(raw.values())
        result |= {name: 100 if high == 0 else 100 * (high + low - score) // high for name, score in raw.items()}
    return result
