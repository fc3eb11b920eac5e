"""What a pod gets on one node: the whole rule for a single node (spec 06 §2.4, §2.6, §2.7).

Reserve calls it for the chosen node. Filter and Score call it for the few nodes that changed since the last pod: for
these it is faster than columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from control.numa.accumulator import NOT_ENOUGH_CPUS, AllocationFailed
from control.numa.affinity import NodeRoom, NumaRequest, ZoneRoom, allocate, room_for
from control.numa.hints import NO_ZONES, Merged, choose, choose_with, violates_exclusivity
from control.numa.holdings import Holding
from control.numa.masks import numbers_of
from control.numa.reserved import within
from control.scheduler.plugins.nodenumaresource.book import NumaBook
from control.scheduler.plugins.nodenumaresource.needs import NumaNeed
from control.scheduler.state.credit import Offer

MAX_CHOICES: Final = 32
"""Choices that are remembered per state of a node."""
MAX_OFFERS: Final = 8
"""Choices through reservations that are remembered per row."""


@dataclass(frozen=True)
class ZoneChoice:
    """The zones of a node that a pod would get. `merged`: None without a NUMA topology policy."""

    room: NodeRoom
    request: NumaRequest
    merged: Merged | None

    def lacking(self) -> str:
        """For BestEffort: the first resource of which all zones together have too little."""
        for name, amount in self.request.amounts.items():
            if self.room.publishes(name):
                rooms = [room_for(self.room, self.request, zone, name) for zone in self.room.zones]
                if sum(rooms) < amount:
                    return name
        return ""


@dataclass(frozen=True)
class NumaDecision:
    """What a pod gets on a node."""

    holding: Holding
    request: NumaRequest


class RowDecisions:
    """`strategy`: of nodes without a label; `score`: of a set of zones. Call `NumaBook.sync` before."""

    def __init__(self, book: NumaBook, strategy: str, score: Callable[[NodeRoom, NumaRequest, int], int]) -> None:
        self._book = book
        self._strategy = strategy
        self._score = score

    def choice(self, need: NumaNeed, row: int) -> ZoneChoice:
        """Remembered for all nodes that are in the same state."""
        state = self._book.state(row)
        choices, key = state.choices, (need, None if need.provider is None else need.provider.key(row))
        choice: ZoneChoice | None = choices.get(key)
        if choice is None:
            if len(choices) >= MAX_CHOICES:
                choices.clear()
            choice = choices[key] = self._choose(need, row, state.room, state.status)
        return choice

    def offered(self, need: NumaNeed, row: int, offer: Offer) -> ZoneChoice | None:
        """`choice` through reservations; None if they hold neither CPUs nor zones on the node."""
        choices, key = self._book.offers.setdefault(row, {}), (need, offer)
        if key not in choices:
            if len(choices) >= MAX_OFFERS:
                choices.clear()
            offered = self._book.offered(row, offer)
            choices[key] = None if offered is None else self._choose(need, row, offered.room, offered.status, offer)
        choice: ZoneChoice | None = choices[key]
        return choice

    def affinity(self, need: NumaNeed, row: int, offer: Offer | None) -> frozenset[int] | None:
        """Ids of the zones that all resources must be from; None: any."""
        choice = self._taken(need, row, offer)
        if choice.merged is None or choice.merged.zones is None:
            return None
        return frozenset(choice.room.zones[at].id for at in numbers_of(choice.merged.zones))

    def _taken(self, need: NumaNeed, row: int, offer: Offer | None) -> ZoneChoice:
        """Through an offer that has CPUs or zones, else from the node."""
        choice = None if offer is None else self.offered(need, row, offer)
        return self.choice(need, row) if choice is None else choice

    def decide(self, need: NumaNeed, row: int, offer: Offer | None = None) -> NumaDecision:
        """Through an offer, or from the node. Raises AllocationFailed."""
        choice = None if offer is None else self.offered(need, row, offer)
        if choice is None:
            choice = self.choice(need, row)
        elif choice.request.cpus > choice.room.free.bit_count():
            raise AllocationFailed(NOT_ENOUGH_CPUS)
        room, request, merged = choice.room, choice.request, choice.merged
        zones: list[ZoneRoom] | None = None
        if merged is not None:
            if merged.reasons:
                raise AllocationFailed(", ".join(merged.reasons))
            if merged.zones is not None:
                zones = [room.zones[at] for at in numbers_of(merged.zones)]
        holding = allocate(room, request, zones) if request.cpus or zones is not None else Holding()
        designated = need.designated
        if designated is not None and (holding.cpus, holding.zones) != (designated.cpus, designated.zones):
            raise AllocationFailed(NOT_ENOUGH_CPUS)
        return NumaDecision(holding, request)

    def _choose(
        self, need: NumaNeed, row: int, room: NodeRoom, status: Sequence[str], offer: Offer | None = None
    ) -> ZoneChoice:
        bind, numa, label = self._book.policies(row)
        request = need.on_node(bind, label or self._strategy)
        policy = numa or need.numa_policy
        if need.designated is not None:
            room = within(room, need.designated, need.designated, need.amounts)
        if not policy:
            return ZoneChoice(room, request, None)
        if not room.zones:
            return ZoneChoice(room, request, Merged(None, reasons=(NO_ZONES,)))

        def score(chosen: int) -> int:
            return self._score(room, request, chosen)

        def violates(chosen: int) -> bool:
            return violates_exclusivity(chosen, status, need.single_exclusive)

        if need.provider is not None:
            ids = [zone.id for zone in room.zones]
            provided, refused = need.provider.hints(row, ids, offer)
            if refused:
                return ZoneChoice(room, request, Merged(None, reasons=refused))
            if provided:
                return ZoneChoice(room, request, choose_with(provided, room, request, policy, score, violates))
        return ZoneChoice(room, request, choose(room, request, policy, score, violates))
