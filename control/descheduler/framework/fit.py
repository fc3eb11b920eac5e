"""Node fit: whether a pod could run on a node now (spec 07 §3.5), for one node or for many as a mask.

Only what the scheduler would refuse in any case is checked: node selector, required affinity, taints, requests against
free allocatable, cordons.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from control.descheduler.state.cluster import NodeRecord
from control.descheduler.state.pods import PlacementRule, PodRecord
from koordlet.api.core.selectors import Taint, Toleration

FitMask: TypeAlias = NDArray[np.bool_]
Amounts: TypeAlias = NDArray[np.int64]

_REPELLING: Final = ("NoSchedule", "NoExecute")


def selects(rule: PlacementRule, name: str, labels: Mapping[str, str]) -> bool:
    """Whether node selector and required affinity of a pod match a node."""
    if any(labels.get(key) != value for key, value in rule.node_selector.items()):
        return False
    return rule.terms is None or any(term.matches(labels, {"metadata.name": name}) for term in rule.terms)


def tolerates(tolerations: Sequence[Toleration], taints: Sequence[Taint], effects: Sequence[str] = _REPELLING) -> bool:
    """Whether every taint with one of these effects is tolerated."""
    return all(
        taint.effect not in effects or any(toleration.tolerates(taint) for toleration in tolerations)
        for taint in taints
    )


def misfit(rule: PlacementRule, node: NodeRecord) -> str | None:
    """Why pods with this rule do not fit the node; None if they do."""
    if node.node is None:
        return "node does not exist"
    if not selects(rule, node.name, node.labels):
        return "node selector or affinity does not match"
    if not tolerates(rule.tolerations, node.node.spec.taints):
        return "taint is not tolerated"
    for name, amount in rule.requests.items():
        if amount > node.free(name):
            return f"insufficient {name}"
    return "node is unschedulable" if node.unschedulable else None


def fits_any(pod: PodRecord, nodes: Sequence[NodeRecord], *, other: bool = True) -> bool:
    """Whether the pod fits one of the nodes; `other`: its own node does not count."""
    return any(not (other and node.name == pod.node) and misfit(pod.placement, node) is None for node in nodes)


class FitTable:
    """Node fit over a fixed list of nodes, cached by placement rule. Free amounts are those of the construction."""

    def __init__(self, nodes: Sequence[NodeRecord]) -> None:
        self.nodes = nodes
        self._schedulable: FitMask = np.array(
            [node.node is not None and not node.unschedulable for node in nodes], dtype=np.bool_
        )
        self._tainted = [
            (row, node.node.spec.taints)
            for row, node in enumerate(nodes)
            if node.node is not None and any(taint.effect in _REPELLING for taint in node.node.spec.taints)
        ]
        self._free: dict[str, Amounts] = {}
        self._masks: dict[int, FitMask] = {}

    def mask(self, rule: PlacementRule) -> FitMask:
        """bool[node]; must not be modified."""
        mask = self._masks.get(rule.number)
        if mask is None:
            mask = self._masks[rule.number] = self._computed(rule)
        return mask

    def _computed(self, rule: PlacementRule) -> FitMask:
        mask = self._schedulable.copy()
        for name, amount in rule.requests.items():
            mask &= self._free_of(name) >= amount
        for row, taints in self._tainted:
            if mask[row] and not tolerates(rule.tolerations, taints):
                mask[row] = False
        if rule.node_selector or rule.terms is not None:
            for place in np.flatnonzero(mask).tolist():
                node = self.nodes[place]
                mask[place] = selects(rule, node.name, node.labels)
        return mask

    def _free_of(self, resource: str) -> Amounts:
        free = self._free.get(resource)
        if free is None:
            free = self._free[resource] = np.array([node.free(resource) for node in self.nodes], dtype=np.int64)
        return free
