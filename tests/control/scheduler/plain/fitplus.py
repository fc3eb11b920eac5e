"""NodeResourcesFitPlus, one node at a time (spec 05 §13.1)."""

from __future__ import annotations

from collections.abc import Mapping

from koordlet.api.core import Node, Pod
from tests.control.scheduler.plain.world import World, allocatable, nonzero, requests


def fit_plus_score(pod: Pod, node: Node, world: World, resources: Mapping[str, tuple[str, int]]) -> int:
    """`resources`: name -> (strategy, weight)."""
    total = weights = 0
    considered = False
    for name, (strategy, weight) in resources.items():
        if requests(pod).get(name, 0) <= 0:
            continue
        considered = True
        capacity = allocatable(node).get(name, 0)
        used = dict(zip(("cpu", "memory"), nonzero(pod), strict=True)).get(name, requests(pod)[name])
        for other in world.on(node):
            if name in ("cpu", "memory"):
                used += nonzero(other)[("cpu", "memory").index(name)]
            else:
                used += requests(other).get(name, 0)
        if capacity == 0:
            score = 0
        elif strategy == "MostAllocated":
            score = 100 * min(used, capacity) // capacity
        else:
            score = 0 if used > capacity else 100 * (capacity - used) // capacity
        total += score * weight
        weights += weight
    if not considered:
        return 100
    return total // weights if weights else 0
