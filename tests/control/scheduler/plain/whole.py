"""A whole scheduling cycle with the default plugins, slow and plain: what the product's cycle must agree with.

Plugins, order and weights are upstream's (spec 05 §4), without volumes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from koordlet.api.core import Node, Pod
from tests.control.scheduler.plain import nodechecks, resources
from tests.control.scheduler.plain.images import image_score
from tests.control.scheduler.plain.podaffinity import inter_pod_affinity, inter_pod_scores
from tests.control.scheduler.plain.ports import node_ports
from tests.control.scheduler.plain.spread import spread, spread_scores
from tests.control.scheduler.plain.world import World, scaled

Refusal = tuple[str, str, tuple[str, ...]]
"""(plugin, code as upstream prints it, reasons)"""

FILTERS = {
    "NodeUnschedulable": nodechecks.node_unschedulable,
    "NodeName": nodechecks.node_name,
    "TaintToleration": nodechecks.taint_toleration,
    "NodeAffinity": nodechecks.node_affinity,
    "NodePorts": node_ports,
    "NodeResourcesFit": resources.fit,
    "PodTopologySpread": spread,
    "InterPodAffinity": inter_pod_affinity,
}
WEIGHTS = {
    "TaintToleration": 3,
    "NodeAffinity": 2,
    "NodeResourcesFit": 1,
    "PodTopologySpread": 2,
    "InterPodAffinity": 2,
    "NodeResourcesBalancedAllocation": 1,
    "ImageLocality": 1,
}


def feasible(
    pod: Pod, nodes: Sequence[Node], pods: Sequence[Pod], world: World | None = None
) -> dict[str, Refusal | None]:
    """Node -> None where the pod may go, else who refuses it first, and why. `pods` name their nodes."""
    world = world or World(nodes, pods)
    found: dict[str, Refusal | None] = {}
    for node in nodes:
        found[node.metadata.name] = None
        for plugin, check in FILTERS.items():
            verdict = check(pod, node, world)
            if verdict is not None:
                found[node.metadata.name] = (plugin, *verdict)
                break
    return found


def scores(
    pod: Pod, nodes: Sequence[Node], pods: Sequence[Pod], world: World | None = None
) -> dict[str, dict[str, int]]:
    """Plugin -> node that the pod may go to -> normalized score, without the plugins that are skipped."""
    world = world or World(nodes, pods)
    verdicts = feasible(pod, nodes, pods, world)
    left = [node for node in nodes if verdicts[node.metadata.name] is None]

    def each(score: Callable[..., int]) -> dict[str, int]:
        return {node.metadata.name: score(pod, node, world) for node in left}

    balanced = {node.metadata.name: resources.balanced_score(pod, node, world) for node in left}
    found: dict[str, Mapping[str, int] | None] = {
        "TaintToleration": scaled(each(nodechecks.taint_score), reverse=True),
        "NodeAffinity": scaled(each(nodechecks.affinity_score)),
        "NodeResourcesFit": each(resources.fit_score),
        "PodTopologySpread": spread_scores(pod, left, world) if left else None,
        "InterPodAffinity": inter_pod_scores(pod, left, world) if left else None,
        "NodeResourcesBalancedAllocation": {name: score for name, score in balanced.items() if score is not None},
        "ImageLocality": each(image_score),
    }
    return {plugin: dict(by_node) for plugin, by_node in found.items() if by_node}


def totals(
    pod: Pod,
    nodes: Sequence[Node],
    pods: Sequence[Pod],
    world: World | None = None,
    weights: Mapping[str, int] = WEIGHTS,
) -> dict[str, int]:
    """Node that the pod may go to -> weighted sum of its scores."""
    world = world or World(nodes, pods)
    verdicts = feasible(pod, nodes, pods, world)
    found = {name: 0 for name, verdict in verdicts.items() if verdict is None}
    for plugin, by_node in scores(pod, nodes, pods, world).items():
        for name, score in by_node.items():
            found[name] += weights[plugin] * score
    return found


def best(pod: Pod, nodes: Sequence[Node], pods: Sequence[Pod], world: World | None = None) -> set[str]:
    """The nodes of the highest total: any of them may be chosen. A single feasible node needs no score."""
    by_node = totals(pod, nodes, pods, world)
    highest = max(by_node.values(), default=0)
    return {name for name, total in by_node.items() if total == highest}
