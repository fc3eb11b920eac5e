"""NodeResourcesFit and NodeResourcesBalancedAllocation, one node at a time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from koordlet.api.core import Node, Pod
from tests.control.scheduler.plain.world import S, U, Verdict, World, allocatable, nonzero, requests


def fit(pod: Pod, node: Node, world: World, ignored: Sequence[str] = (), groups: Sequence[str] = ()) -> Verdict:
    reasons, code = [], S
    has, there = allocatable(node), world.on(node)
    if len(there) + 1 > has.get("pods", 0):
        reasons.append("Too many pods")
    for name, request in requests(pod).items():
        if request == 0 or name in ignored or name.split("/")[0] in groups:
            continue
        used = sum(requests(other).get(name, 0) for other in there)
        if request > has.get(name, 0) - used:
            reasons.append(f"Insufficient {name}")
            if request > has.get(name, 0):
                code = U
    return (code, tuple(reasons)) if reasons else None


def _use(pod: Pod, node: Node, world: World, name: str, *, defaults: bool) -> tuple[int, int]:
    """(allocatable, used with the pod); (0, 0) where the resource does not count."""

    def of(candidate: Pod) -> int:
        if defaults and name in ("cpu", "memory"):
            return nonzero(candidate)[("cpu", "memory").index(name)]
        return requests(candidate).get(name, 0)

    if of(pod) == 0 and name not in ("cpu", "memory", "ephemeral-storage"):
        return 0, 0
    return allocatable(node).get(name, 0), of(pod) + sum(of(other) for other in world.on(node))


def fit_score(
    pod: Pod,
    node: Node,
    world: World,
    strategy: str = "LeastAllocated",
    weights: Mapping[str, int] | None = None,
    shape: Sequence[tuple[int, int]] = (),
) -> int:
    total = weight_sum = 0
    for name, weight in (weights or {"cpu": 1, "memory": 1}).items():
        has, used = _use(pod, node, world, name, defaults=True)
        if has == 0:
            continue
        if strategy == "LeastAllocated":
            score = 0 if used > has else (has - used) * 100 // has
        elif strategy == "MostAllocated":
            score = min(used, has) * 100 // has
        else:
            score = _on_curve(shape, 100 if used > has else used * 100 // has)
            if score == 0:
                continue
        total += score * weight
        weight_sum += weight
    if weight_sum == 0:
        return 0
    return math.floor(total / weight_sum + 0.5) if strategy == "RequestedToCapacityRatio" else total // weight_sum


def _on_curve(shape: Sequence[tuple[int, int]], percent: int) -> int:
    before = None
    for x, y in shape:
        if percent <= x:
            if before is None:
                return y * 10
            x0, y0 = before
            return y0 * 10 + int((y - y0) * 10 * (percent - x0) / (x - x0))
        before = x, y
    return shape[-1][1] * 10


def balanced_score(
    pod: Pod, node: Node, world: World, names: Sequence[str] = ("cpu", "memory"), *, skip: bool = True
) -> int | None:
    """None: the pod requests nothing of `names`."""
    if skip and not any(requests(pod).get(name, 0) for name in names):
        return None
    shares = []
    for name in names:
        has, used = _use(pod, node, world, name, defaults=False)
        if has:
            shares.append(min(1.0, used / has))
    if len(shares) < 2:
        spread = 0.0
    elif len(shares) == 2:
        spread = abs(shares[0] - shares[1]) / 2
    else:
        mean = sum(shares) / len(shares)
        spread = math.sqrt(sum((s - mean) * (s - mean) for s in shares) / len(shares))
    return int((1 - spread) * 100)
