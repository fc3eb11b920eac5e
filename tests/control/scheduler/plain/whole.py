"""A whole scheduling cycle, slow and simple, with which the product's cycle must agree.

Plugins, order and weights are upstream's (spec 05 §4); `Koordinator` adds those of spec 05 §8 and §13, and ours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from koordlet.api.core import Node, Pod
from tests.control.scheduler.plain import hints, loadaware, nodechecks, resources, volumes
from tests.control.scheduler.plain.fitplus import fit_plus_score
from tests.control.scheduler.plain.images import image_score
from tests.control.scheduler.plain.interference import interference, interference_score
from tests.control.scheduler.plain.podaffinity import inter_pod_affinity, inter_pod_scores
from tests.control.scheduler.plain.ports import node_ports
from tests.control.scheduler.plain.scarce import scarce_score
from tests.control.scheduler.plain.spread import spread, spread_scores
from tests.control.scheduler.plain.world import U, Verdict, World, scaled

Refusal = tuple[str, str, tuple[str, ...]]
"""(plugin, code as kube-scheduler prints it, reasons)"""

FIRST: Mapping[str, Callable[[Pod, World], Verdict]] = {
    "VolumeRestrictions": volumes.restrictions_first,
    "VolumeBinding": volumes.binding_first,
    "VolumeZone": volumes.zone_first,
}
"""The problem of a pod that applies to every node."""
FILTERS: Mapping[str, Callable[[Pod, Node, World], Verdict]] = {
    "NodeUnschedulable": nodechecks.node_unschedulable,
    "NodeName": nodechecks.node_name,
    "TaintToleration": nodechecks.taint_toleration,
    "NodeAffinity": nodechecks.node_affinity,
    "NodePorts": node_ports,
    "NodeResourcesFit": resources.fit,
    "VolumeRestrictions": volumes.restrictions,
    "NodeVolumeLimits": volumes.limits,
    "VolumeBinding": volumes.binding,
    "VolumeZone": volumes.zone,
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
KOORDINATOR_WEIGHTS = {
    "LoadAwareScheduling": 1,
    "NodeResourcesFitPlus": 2,
    "ScarceResourceAvoidance": 3,
    "InterferenceAware": 4,
}
HINTED_ELSEWHERE = ("", U, ("node(s) didn't satisfy plugin(s) [SchedulingHint]",))


@dataclass(frozen=True)
class Koordinator:
    """Arguments of the plugins that are not upstream's."""

    load: Any
    interference: Any
    fit_plus: Mapping[str, tuple[str, int]]
    scarce: tuple[str, ...]
    most_hints: int = 100


@dataclass(frozen=True)
class PlainCycle:
    """One profile: upstream's plugins, and Koordinator's if they have arguments."""

    extra: Koordinator | None = None

    def at_once(self, pod: Pod, world: World) -> Refusal | None:
        """Why no node is looked at."""
        for plugin, check in FIRST.items():
            verdict = check(pod, world)
            if verdict is not None:
                return (plugin, *verdict)
        return None

    def refusal(self, pod: Pod, node: Node, world: World) -> Refusal | None:
        """Who refuses the pod on the node first, and why."""
        name = node.metadata.name
        reason = self.at_once(pod, world)
        if reason is not None:
            return reason
        if self.extra is not None:
            only = hints.only(pod, [node.metadata.name for node in world.nodes])
            if only is not None and name not in only:
                return HINTED_ELSEWHERE
        nominated = [nominee for nominee in world.nominated if nominee.spec.node_name == name]
        ahead = [nominee for nominee in nominated if (nominee.spec.priority or 0) >= (pod.spec.priority or 0)]
        if ahead:  # it must fit beside them, and without them
            reason = self._filtered(pod, node, replace(world, pods=[*world.pods, *ahead]))
        return reason or self._filtered(pod, node, world)

    def _filtered(self, pod: Pod, node: Node, world: World) -> Refusal | None:
        for plugin, check in FILTERS.items():
            verdict = check(pod, node, world)
            if verdict is not None:
                return (plugin, *verdict)
        if self.extra is None:
            return None
        load = loadaware.verdict(pod, _loaded(node, world), self.extra.load, world.now)
        if load:
            return "LoadAwareScheduling", "Unschedulable", (load,)
        verdict = interference(pod, node, world, self.extra.interference)
        return None if verdict is None else ("InterferenceAware", *verdict)

    def feasible(self, pod: Pod, world: World) -> dict[str, Refusal | None]:
        """Node -> None where the pod may go."""
        return {node.metadata.name: self.refusal(pod, node, world) for node in world.nodes}

    def scores(self, pod: Pod, world: World) -> dict[str, dict[str, int]]:
        """Plugin -> node that the pod may go to -> normalized score, without the plugins that are skipped."""
        verdicts = self.feasible(pod, world)
        left = [node for node in world.nodes if verdicts[node.metadata.name] is None]

        def each(score: Callable[..., int], *args: Any) -> dict[str, int]:
            return {node.metadata.name: score(pod, node, world, *args) for node in left}

        balanced = {node.metadata.name: resources.balanced_score(pod, node, world) for node in left}
        scores_of: dict[str, Mapping[str, int] | None] = {
            "TaintToleration": scaled(each(nodechecks.taint_score), reverse=True),
            "NodeAffinity": scaled(each(nodechecks.affinity_score)),
            "NodeResourcesFit": each(resources.fit_score),
            "PodTopologySpread": spread_scores(pod, left, world) if left else None,
            "InterPodAffinity": inter_pod_scores(pod, left, world) if left else None,
            "NodeResourcesBalancedAllocation": {name: score for name, score in balanced.items() if score is not None},
            "ImageLocality": each(image_score),
        }
        extra = self.extra
        if extra is not None:
            scores_of["LoadAwareScheduling"] = {
                node.metadata.name: loadaware.score(pod, _loaded(node, world), extra.load, world.now) for node in left
            }
            scores_of["NodeResourcesFitPlus"] = each(fit_plus_score, extra.fit_plus)
            scores_of["ScarceResourceAvoidance"] = each(scarce_score, extra.scarce)
            scores_of["InterferenceAware"] = each(interference_score, extra.interference)
        return {plugin: dict(by_node) for plugin, by_node in scores_of.items() if by_node}

    def totals(self, pod: Pod, world: World) -> dict[str, int]:
        """Node that the pod may go to -> weighted sum of its scores."""
        sums = {name: 0 for name, verdict in self.feasible(pod, world).items() if verdict is None}
        weights = WEIGHTS | KOORDINATOR_WEIGHTS
        for plugin, by_node in self.scores(pod, world).items():
            for name, score in by_node.items():
                sums[name] += weights[plugin] * score
        return sums

    def preferred(self, pod: Pod, world: World) -> str | None:
        """The node that a hint has taken without looking further."""
        if self.extra is None:
            return None
        fitting = [name for name, verdict in self.feasible(pod, world).items() if verdict is None]
        return hints.preferred(pod, fitting, self.extra.most_hints)


def _loaded(node: Node, world: World) -> loadaware.PlainNode:
    """Nominated pods are no load yet."""
    reported = [placed for placed in world.on(node) if placed.metadata.uid in world.since]
    pods = {placed.metadata.uid: loadaware.PlainPod(placed, world.since[placed.metadata.uid]) for placed in reported}
    return loadaware.PlainNode(node, world.metrics.get(node.metadata.name), pods)
