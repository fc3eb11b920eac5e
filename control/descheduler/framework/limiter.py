"""The eviction limiter: how many pods one pass may evict per node, per namespace and in total (spec 07 §4.4)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass


@dataclass(frozen=True)
class EvictionLimits:
    """Limits of one pass; None: no limit, 0: evict nothing."""

    per_node: int | None = None
    per_namespace: int | None = None
    total: int | None = None


class EvictionLimiter:
    """Counts the evictions of a pass. All profiles share it."""

    def __init__(self, limits: EvictionLimits) -> None:
        self.limits = limits
        self._nodes: Counter[str] = Counter()
        self._namespaces: Counter[str] = Counter()
        self.total = 0

    def reset(self) -> None:
        """A new pass begins."""
        self._nodes.clear()
        self._namespaces.clear()
        self.total = 0

    def refusal(self, node: str, namespace: str) -> str | None:
        """Which limit another eviction would exceed; None if it is allowed. `node` is "" for an unbound pod."""
        limits = self.limits
        if limits.per_node is not None and node and self._nodes[node] + 1 > limits.per_node:
            return f"limit of {limits.per_node} evictions per node and pass is reached"
        if limits.per_namespace is not None and self._namespaces[namespace] + 1 > limits.per_namespace:
            return f"limit of {limits.per_namespace} evictions per namespace and pass is reached"
        if limits.total is not None and self.total + 1 > limits.total:
            return f"limit of {limits.total} evictions per pass is reached"
        return None

    def done(self, node: str, namespace: str) -> None:
        """Count an eviction."""
        if node:
            self._nodes[node] += 1
        self._namespaces[namespace] += 1
        self.total += 1

    def node_limit_exceeded(self, node: str) -> bool:
        """Whether the node's limit is used up."""
        return self.limits.per_node is not None and self._nodes[node] == self.limits.per_node
