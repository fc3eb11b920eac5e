"""What a pod gets on a node: the whole rule for one state of a node's devices, remembered by state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar
from weakref import WeakKeyDictionary

from control.devices.allocate import allocate
from control.devices.designated import check_designated, designated_sets, only_designated
from control.devices.needs import DeviceNeed
from control.devices.numahints import NumaSet, numa_sets
from control.devices.rating import DeviceStrategy
from control.devices.room import DeviceHolding
from control.devices.search import DevicesLacking
from control.scheduler.plugins.deviceshare.book import DeviceBook
from control.scheduler.plugins.deviceshare.sharing import SharingTemplates, with_template
from control.scheduler.state.credit import Offer

K = TypeVar("K")
V = TypeVar("V")

MAX_DECISIONS = 4096
"""Decisions that are remembered per need."""
NOTHING: DeviceHolding = {}


class StateDecisions:
    """One per profile. Call `DeviceBook.sync` before."""

    def __init__(self, book: DeviceBook, strategy: DeviceStrategy, templates: SharingTemplates) -> None:
        self._book = book
        self.templates = templates
        self.strategy = strategy
        self._decided: WeakKeyDictionary[
            DeviceNeed, dict[tuple[int, frozenset[int] | None], DeviceHolding | DevicesLacking]
        ] = WeakKeyDictionary()
        self._hinted: WeakKeyDictionary[DeviceNeed, dict[int, Mapping[str, Sequence[NumaSet]] | DevicesLacking]] = (
            WeakKeyDictionary()
        )
        self._generation = book.generation

    def number(self, row: int, offer: Offer | None) -> int:
        """Of the state of a row, through reservations if they hold devices."""
        offered = None if offer is None else self._book.offered(row, offer)
        number: int = self._book.columns.state.data.item(row)
        return number if offered is None else offered

    def of_row(
        self, need: DeviceNeed, row: int, numa: frozenset[int] | None, offer: Offer | None = None
    ) -> DeviceHolding:
        """Raises DevicesLacking. Empty if the node has no Device object: its devices are left to the kubelet."""
        decision = self.verdict(need, self.number(row, offer), numa)
        if isinstance(decision, DevicesLacking):
            raise decision.copy()
        return decision

    def hints(self, need: DeviceNeed, row: int, offer: Offer | None = None) -> Mapping[str, Sequence[NumaSet]]:
        """The NUMA hints of a row; empty if it has none. Raises DevicesLacking."""
        number = self.number(row, offer)
        if not number:
            return {}
        hinted = self._remembered(self._hinted, need)
        hints = hinted.get(number)
        if hints is None:
            try:
                state = self._book.states[number]
                if need.designated is None:
                    hints = numa_sets(state.inventory, need, lambda nodes: self.verdict(need, number, nodes))
                else:
                    hints = designated_sets(state, need.designated, [*need.requests])
            except DevicesLacking as lacking:
                hints = lacking.with_traceback(None)
            hinted[number] = hints
        if isinstance(hints, DevicesLacking):
            raise hints.copy()
        return hints

    def _remembered(self, decided: WeakKeyDictionary[DeviceNeed, dict[K, V]], need: DeviceNeed) -> dict[K, V]:
        """What was decided for a need, unless numbers have started again."""
        if self._generation != self._book.generation:
            self._generation = self._book.generation
            self._decided.clear()
            self._hinted.clear()
        known = decided.setdefault(need, {})
        if len(known) >= MAX_DECISIONS:
            known.clear()
        return known

    def verdict(self, need: DeviceNeed, number: int, numa: frozenset[int] | None) -> DeviceHolding | DevicesLacking:
        """For the state with this number."""
        if not number:
            return NOTHING
        decided = self._remembered(self._decided, need)
        decision = decided.get((number, numa))
        if decision is None:
            try:
                state = self._book.states[number]
                template = self.templates.template(need, state.traits)
                if need.designated is not None:
                    state = only_designated(state, need.designated)
                decision = with_template(allocate(state, need, self.strategy, numa), template)
                if need.designated is not None:
                    check_designated(decision, need.designated)
            except DevicesLacking as lacking:
                decision = lacking.with_traceback(None)
            decided[number, numa] = decision
        return decision
