"""Orders of pods and nodes for eviction (spec 07 §5). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from control.descheduler.state.pods import PodRecord

NODE_SCORE_SCALE: Final = 1000


def eviction_key(pod: PodRecord, score: float | None = None) -> tuple[Any, ...]:
    """Sort key: the smallest is evicted first (spec 07 §5.1, §5.2).

    `score`: see `usage_score`; higher is earlier, None (no metric) is last. Equal pods: newer first, then by name."""
    return (*pod.order, score is None, -(score or 0.0), -pod.created, pod.namespace, pod.name)


def usage_score(usage: Mapping[str, int], excess: Mapping[str, int], weights: Mapping[str, int]) -> float:
    """How well a pod covers the excess of its node: 2 for exactly, towards 1 for more, below 1 for less.

    `excess`: by how much the node's usage exceeds its thresholds. Resources that `weights` lacks do not count."""
    total = sum(weights.get(name, 0) for name in usage)
    if total == 0:
        return 0.0
    return sum(weights.get(name, 0) * _covering(used, excess.get(name, 0)) for name, used in usage.items()) / total


def _covering(used: int, excess: int) -> float:
    if excess == 0:
        return 0.0
    share = used / excess
    return share if share < 1 else 1 + 1 / share


def node_score(usage: Mapping[str, int], capacity: Mapping[str, int], weights: Mapping[str, int]) -> int:
    """How used a node is, 0 to 1000 (spec 07 §5.3)."""
    total = sum(weights.get(name, 0) for name in usage)
    if total == 0:
        return 0
    used = 0
    for name, amount in usage.items():
        full = capacity.get(name, 0)
        if full > 0:
            used += weights.get(name, 0) * (NODE_SCORE_SCALE * min(amount, full) // full)
    return used // total
