"""Chooses the network domain of a gang: as close together as required, near its neighbours (spec 05 §10.3). Pure.

Inputs by node name: `slots`, the number of members that the node can take; `existing`, its number of neighbours;
`cost`, the cost of preemption there (0 without preemption).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from control.scheduler.plugins.coscheduling.topology import NetworkDomain
from koordlet.api.annotations.gang import MUST_GATHER, NetworkTopologySpec

Key: TypeAlias = tuple[list[int], list[int], int, str]


class NoPlan(Exception):
    """No domain can take the whole gang. The text lists the slots of each."""


@dataclass(frozen=True)
class GatherRules:
    """`multiples`: layer -> the number of members per domain must be a multiple. `must`: layers with required
    gathering."""

    multiples: Mapping[str, int]
    must: frozenset[str]

    @classmethod
    def of(cls, spec: NetworkTopologySpec) -> GatherRules:
        gather = spec.gather_strategy
        return cls(
            {
                layer_rule.layer: layer_rule.pod_count_multiple
                for layer_rule in gather
                if layer_rule.pod_count_multiple > 1
            },
            frozenset(layer_rule.layer for layer_rule in gather if layer_rule.strategy == MUST_GATHER),
        )


class TopologyPlanner:
    """Sums of the inputs over one tree, and the choice among its domains."""

    def __init__(
        self,
        root: NetworkDomain,
        slots: Mapping[str, int],
        rules: GatherRules,
        existing: Mapping[str, int] | None = None,
        cost: Mapping[str, int] | None = None,
    ) -> None:
        self.root, self._rules = root, rules
        self.slots: dict[NetworkDomain, int] = {}
        self._existing: dict[NetworkDomain, int] = {}
        self._cost: dict[NetworkDomain, int] = {}
        self._sum(root, slots, existing or {}, cost or {})

    def plan(self, desired: int) -> list[tuple[str, int]]:
        """(node, number of members), in the order in which the nodes are filled. Raises NoPlan."""
        for candidate in self._candidates(desired):
            shares = self.distribute(candidate, desired)
            if sum(number for _, number in shares) >= desired:
                return shares
        offers = sorted(f"topology topologyNode {root.layer}/{root.name}: {self.slots[root]}" for root in self.roots())
        text = f"no candidate topology nodes can accommodate job, desiredOfferSlot: {desired}, {';'.join(offers)}"
        raise NoPlan(text)

    def constraints(self) -> str:
        """The part of a failure message about multiples; empty without multiples."""
        multiples = ", ".join(f"{layer}={number}" for layer, number in sorted(self._rules.multiples.items()))
        return f"; podCountMultiple constraints: {multiples}" if multiples else ""

    def roots(self) -> list[NetworkDomain]:
        """The domains where the search begins: those of the deepest layer with required gathering."""
        bound = [domain for domain in self.root.walk() if domain.layer in self._rules.must]
        deepest = max((domain.depth for domain in bound), default=0)
        return [domain for domain in bound if domain.depth == deepest] or [self.root]

    def distribute(self, domain: NetworkDomain, desired: int) -> list[tuple[str, int]]:
        """The share of `desired` members of each node below the domain, in the order of the visits."""
        take = self._floored(domain, min(desired, self.slots[domain]))
        if domain.leaf:
            return [(domain.name, take)] if take else []
        shares: list[tuple[str, int]] = []
        for child in sorted(domain.children.values(), key=self._fullest):
            child_shares = self.distribute(child, take)
            shares += child_shares
            take -= sum(number for _, number in child_shares)
        return shares

    def _candidates(self, desired: int) -> Sequence[NetworkDomain]:
        """The domains of the deepest level on which a domain can take all members, best first."""
        survivors: list[NetworkDomain] = []
        level = self.roots()
        while level := [domain for domain in level if self.slots[domain] >= desired]:
            survivors = level
            level = [child for domain in level for child in domain.children.values()]
        return sorted(survivors, key=self._tightest)

    def _tightest(self, domain: NetworkDomain) -> Key:
        lineage = list(domain.lineage())
        return (
            [-self._existing[ancestor] for ancestor in lineage],
            [self.slots[ancestor] for ancestor in lineage],
            self._cost[domain],
            domain.name,
        )

    def _fullest(self, domain: NetworkDomain) -> Key:
        existing, slots, cost, name = self._tightest(domain)
        return existing, [-number for number in slots], cost, name

    def _sum(
        self, domain: NetworkDomain, slots: Mapping[str, int], existing: Mapping[str, int], cost: Mapping[str, int]
    ) -> None:
        if domain.leaf:
            name = domain.name
            number, there, total_cost = slots.get(name, 0), existing.get(name, 0), cost.get(name, 0)
        else:
            number = there = total_cost = 0
            for child in domain.children.values():
                self._sum(child, slots, existing, cost)
                number, there = number + self.slots[child], there + self._existing[child]
                total_cost += self._cost[child]
        self.slots[domain] = self._floored(domain, number)
        self._existing[domain], self._cost[domain] = there, total_cost

    def _floored(self, domain: NetworkDomain, number: int) -> int:
        multiple = self._rules.multiples.get(domain.layer, 1)
        return number // multiple * multiple


def neighbours_first(root: NetworkDomain, candidates: Sequence[str], existing: Mapping[str, int]) -> list[str]:
    """Candidate nodes, nearest to most neighbours first; nodes outside the tree last (spec 05 §10.4)."""
    planner = TopologyPlanner(root, dict.fromkeys(candidates, 1), GatherRules({}, frozenset()), existing)
    leaves = {leaf.name: leaf for leaf in root.leaves()}
    known = sorted((name for name in candidates if name in leaves), key=lambda name: planner._tightest(leaves[name]))
    return known + sorted(name for name in candidates if name not in leaves)
