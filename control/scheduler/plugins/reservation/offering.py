"""The reservations that a pod may take, with what other plugins decide about its share of CPUs and devices (spec 06
§2.9, §4.6)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from control.scheduler.framework.plugin import CycleState, Plugin, overrides
from control.scheduler.plugins.reservation.book import ReservedRoom
from control.scheduler.plugins.reservation.fitting import Fitting
from control.scheduler.plugins.reservation.match import PodMatch
from control.scheduler.state.credit import Offer
from koordlet.api.crs.reservation import RESTRICTED

SCORE_BITS: Final = 7
_MAX_ORDER: Final = 1 << 54
"""Larger orders count as this one: a raw score holds the order above the bits of the score."""


class Offering:
    """The offers of one profile."""

    def __init__(self, fitting: Fitting) -> None:
        self._fitting = fitting
        self._dividing: Sequence[Plugin] = ()
        """Plugins that give pods a share of a reservation beside its amounts."""

    def connect(self, plugins: Iterable[Plugin]) -> None:
        self._dividing = [plugin for plugin in plugins if overrides(plugin, "refuses_offer")]

    def refusal(self, state: CycleState, match: PodMatch, room: ReservedRoom) -> str:
        """Why a plugin cannot give the pod its share of the reservation; empty if all can."""
        return self._refusal(state, match, room.row, offer_of(room)) if self._dividing else ""

    def _refusal(self, state: CycleState, match: PodMatch, row: int, offer: Offer) -> str:
        refusals = (plugin.refuses_offer(state, match.pod, row, offer) for plugin in self._dividing)
        return next(filter(None, refusals), "")

    def candidates(self, state: CycleState, match: PodMatch, row: int) -> list[ReservedRoom]:
        """The reservations on a row that the pod may take."""
        if match.conditions.ignores:
            return []
        return [room for room in self._fitting.candidates(match, row) if not self.refusal(state, match, room)]

    def offers(self, state: CycleState, match: PodMatch, row: int) -> Sequence[Offer]:
        """See `RowCredit`."""
        if not match.conditions.ignores:
            return [offer_of(room) for room in self.candidates(state, match, row)]
        offer = everything(match, row)
        return [] if self._refusal(state, match, row, offer) else [offer]

    def best(self, state: CycleState, match: PodMatch, row: int) -> tuple[ReservedRoom, int] | None:
        """(the reservation that the pod takes on a row, its score); None: it takes none."""
        return self._fitting.best(match, self.candidates(state, match, row)) if match.on(row) else None

    def rate(self, state: CycleState, match: PodMatch, row: int) -> int:
        """The raw score of a row: the score of the reservation that the pod would take, below its order."""
        best = self.best(state, match, row)
        if best is None or best[0].model is None:
            return 0
        order = min(max(best[0].model.order, -_MAX_ORDER), _MAX_ORDER)
        return (order << SCORE_BITS) + best[1]


def offer_of(room: ReservedRoom) -> Offer:
    """The offer of one reservation."""
    model = room.model
    restricted = model.restricted if model is not None and model.policy == RESTRICTED else ()
    return Offer((room.uid,), frozenset(restricted))


def everything(match: PodMatch, row: int) -> Offer:
    """The offer to a pod that ignores reservations."""
    return Offer(tuple(sorted(room.uid for room in match.on(row))), owned=False)
