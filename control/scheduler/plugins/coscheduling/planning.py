"""Where a gang goes in the network: as close together as its spec wants, beside its neighbours (spec 05 §10.3). Pure.

Numbers are by node name: `slots`, how many members in order a node takes; `existing`, how many neighbours it has;
`cost`, what it costs to make room there (0 without preemption).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from control.scheduler.plugins.coscheduling.topology import Domain
from koordlet.api.annotations.gang import MUST_GATHER, NetworkTopologySpec

Key: TypeAlias = tuple[list[int], list[int], int, str]


class NoPlan(Exception):
    """No domain takes the whole gang; the text says what each would take."""


@dataclass(frozen=True)
class Wishes:
    """`multiples`: layer -> members come there in multiples of so many. `must`: layers they may not leave."""

    multiples: Mapping[str, int]
    must: frozenset[str]

    @classmethod
    def of(cls, spec: NetworkTopologySpec) -> Wishes:
        gather = spec.gather_strategy
        return cls(
            {one.layer: one.pod_count_multiple for one in gather if one.pod_count_multiple > 1},
            frozenset(one.layer for one in gather if one.strategy == MUST_GATHER),
        )


class Planner:
    """Sums over one tree, and the choice among its domains."""

    def __init__(
        self,
        root: Domain,
        slots: Mapping[str, int],
        wishes: Wishes,
        existing: Mapping[str, int] | None = None,
        cost: Mapping[str, int] | None = None,
    ) -> None:
        self.root, self._wishes = root, wishes
        self.slots: dict[Domain, int] = {}
        self._existing: dict[Domain, int] = {}
        self._cost: dict[Domain, int] = {}
        self._sum(root, slots, existing or {}, cost or {})

    def plan(self, desired: int) -> list[tuple[str, int]]:
        """(node, members), in the order in which they are filled. Raises NoPlan."""
        for candidate in self._candidates(desired):
            shares = self.distribute(candidate, desired)
            if sum(number for _, number in shares) >= desired:
                return shares
        offers = ";".join(sorted(f"topologyNode {one.layer}/{one.name}: {self.slots[one]}" for one in self.roots()))
        text = f"no candidate topology nodes can accommodate job, desiredOfferSlot: {desired}, topology {offers}"
        raise NoPlan(text)

    def constraints(self) -> str:
        """What a failure adds about multiples; empty without."""
        multiples = ", ".join(f"{layer}={number}" for layer, number in sorted(self._wishes.multiples.items()))
        return f"; podCountMultiple constraints: {multiples}" if multiples else ""

    def roots(self) -> list[Domain]:
        """Where the search begins: the domains of the deepest layer that must not be left."""
        bound = [one for one in self.root.walk() if one.layer in self._wishes.must]
        deepest = max((one.depth for one in bound), default=0)
        return [one for one in bound if one.depth == deepest] or [self.root]

    def distribute(self, domain: Domain, wanted: int) -> list[tuple[str, int]]:
        """How many of `wanted` each node below takes, in the order of the visits."""
        take = self._floored(domain, min(wanted, self.slots[domain]))
        if domain.leaf:
            return [(domain.name, take)] if take else []
        shares: list[tuple[str, int]] = []
        for child in sorted(domain.children.values(), key=self._fullest):
            found = self.distribute(child, take)
            shares += found
            take -= sum(number for _, number in found)
        return shares

    def _candidates(self, desired: int) -> Sequence[Domain]:
        """The domains of the deepest level that has any which takes all, best first."""
        survivors: list[Domain] = []
        level = self.roots()
        while level := [one for one in level if self.slots[one] >= desired]:
            survivors = level
            level = [child for one in level for child in one.children.values()]
        return sorted(survivors, key=self._tightest)

    def _tightest(self, domain: Domain) -> Key:
        lineage = list(domain.lineage())
        return (
            [-self._existing[one] for one in lineage],
            [self.slots[one] for one in lineage],
            self._cost[domain],
            domain.name,
        )

    def _fullest(self, domain: Domain) -> Key:
        existing, slots, cost, name = self._tightest(domain)
        return existing, [-number for number in slots], cost, name

    def _sum(
        self, domain: Domain, slots: Mapping[str, int], existing: Mapping[str, int], cost: Mapping[str, int]
    ) -> None:
        if domain.leaf:
            name = domain.name
            number, there, dear = slots.get(name, 0), existing.get(name, 0), cost.get(name, 0)
        else:
            number = there = dear = 0
            for child in domain.children.values():
                self._sum(child, slots, existing, cost)
                number, there = number + self.slots[child], there + self._existing[child]
                dear += self._cost[child]
        self.slots[domain] = self._floored(domain, number)
        self._existing[domain], self._cost[domain] = there, dear

    def _floored(self, domain: Domain, number: int) -> int:
        multiple = self._wishes.multiples.get(domain.layer, 1)
        return number // multiple * multiple


def neighbours_first(root: Domain, candidates: Sequence[str], existing: Mapping[str, int]) -> list[str]:
    """Candidate nodes, those beside most neighbours first; nodes that are not in the tree last (spec 05 §10.4)."""
    planner = Planner(root, dict.fromkeys(candidates, 1), Wishes({}, frozenset()), existing)
    leaves = {one.name: one for one in root.leaves()}
    known = sorted((name for name in candidates if name in leaves), key=lambda name: planner._tightest(leaves[name]))
    return known + sorted(name for name in candidates if name not in leaves)
