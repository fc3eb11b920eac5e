"""What a pod gets on one node: the whole rule for a single node (spec 06 §2.4, §2.6, §2.7).

Reserve asks it for the chosen node. Filter and Score ask it for the few nodes that changed since the last pod: for
these it is faster than columns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from control.numa.accumulator import AllocationFailed
from control.numa.affinity import NodeRoom, NumaRequest, ZoneRoom, allocate, room_for
from control.numa.hints import NO_ZONES, Merged, choose, violates_exclusivity
from control.numa.holdings import Holding
from control.numa.masks import numbers_of
from control.scheduler.plugins.nodenumaresource.book import NumaBook
from control.scheduler.plugins.nodenumaresource.needs import NumaNeed

MAX_CHOICES: Final = 8
"""Needs that are remembered per row."""


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
        """Remembered until the row changes."""
        choices = self._book.choices.setdefault(row, {})
        if len(choices) > MAX_CHOICES:
            choices.clear()
        choice: ZoneChoice | None = choices.get(need)
        if choice is None:
            choice = choices[need] = self._choose(need, row)
        return choice

    def decide(self, need: NumaNeed, row: int) -> NumaDecision:
        """Raises AllocationFailed."""
        choice = self.choice(need, row)
        room, request, merged = choice.room, choice.request, choice.merged
        zones: list[ZoneRoom] | None = None
        if merged is not None:
            if merged.reasons:
                raise AllocationFailed(", ".join(merged.reasons))
            if merged.zones is not None:
                zones = [room.zones[at] for at in numbers_of(merged.zones)]
        if not request.cpus and zones is None:
            return NumaDecision(Holding(), request)
        return NumaDecision(allocate(room, request, zones), request)

    def _choose(self, need: NumaNeed, row: int) -> ZoneChoice:
        book = self._book
        bind, numa, label = book.policies(row)
        request, room = need.on_node(bind, label or self._strategy), book.room(row)
        policy = numa or need.numa_policy
        if not policy:
            return ZoneChoice(room, request, None)
        if not room.zones:
            return ZoneChoice(room, request, Merged(None, reasons=(NO_ZONES,)))
        status = book.zone_status(row)
        merged = choose(
            room,
            request,
            policy,
            lambda chosen: self._score(room, request, chosen),
            lambda chosen: violates_exclusivity(chosen, status, need.single_exclusive),
        )
        return ZoneChoice(room, request, merged)
