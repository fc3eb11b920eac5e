"""Whether a pod fits on a row with a reservation, and which reservation it takes there (spec 06 §4.5, §4.6).

Amounts are read from the table and the book as they are, so all of this also holds in trials.
"""

from __future__ import annotations

from collections.abc import Sequence

from control.reservation.amounts import restricted_shortages, score
from control.scheduler.config.args import ReservationArgs
from control.scheduler.plugins.reservation.book import ReservationBook, ReservedRoom
from control.scheduler.plugins.reservation.fit import Fit
from control.scheduler.plugins.reservation.match import PodMatch
from control.scheduler.state.table import PODS
from koordlet.api.crs.reservation import RESTRICTED
from koordlet.api.resources import is_extended


def by_node(resource: str) -> str:
    """The reason for a resource of which the node has too little."""
    return "Too many pods" if resource == "pods" else f"Insufficient {resource} by node"


class Fitting:
    """The rules of one profile."""

    def __init__(self, book: ReservationBook, args: ReservationArgs, *, skips_node_fit: bool) -> None:
        """`skips_node_fit`: feature gate SkipReservationFitsNode."""
        self._book = book
        self._table = book.table
        self._skips_node_fit = skips_node_fit
        self._ignored = frozenset(args.ignored_resources)
        self._ignored_groups = frozenset(args.ignored_resource_groups)

    def compares(self, resource: str) -> bool:
        """Whether arguments leave the resource to other plugins."""
        if not (self._ignored or self._ignored_groups) or not is_extended(resource):
            return True
        return resource not in self._ignored and resource.partition("/")[0] not in self._ignored_groups

    def usable(self, match: PodMatch, room: ReservedRoom) -> bool:
        """Whether the reservation has anything that the pod requests, or the pod must have a reservation.

        An empty one is for pods without requests: one that descheduling makes for the replacement of such a pod.
        """
        if match.required:
            return True
        requests, amounts = match.pod.requests, room.model.amounts if room.model is not None else {}
        return any(name in amounts for name in requests) or not (requests or amounts)

    def with_room(self, match: PodMatch, row: int, room: ReservedRoom, matched: Sequence[ReservedRoom]) -> Fit:
        """`matched`: all matching reservations of the row."""
        fits = match.fits
        fit = fits.get(room.uid)
        if fit is None:
            fit = fits[room.uid] = self._fit(match, row, room, matched)
        return fit

    def _fit(self, match: PodMatch, row: int, room: ReservedRoom, matched: Sequence[ReservedRoom]) -> Fit:
        model = room.model
        if model is None:
            return Fit(by_node=["pods"])
        on_node = not (self._skips_node_fit and len(matched) == 1)
        fit = Fit(by_node=self.short_on_node(match, row, matched, room) if on_node else [])
        if model.policy == RESTRICTED:
            names = [name for name in model.restricted if self.compares(name)]
            fit.in_room = restricted_shortages(
                match.pod.requests, names, model.amounts, room.used, model.inner_reserved, owners=room.owners_here
            )
        return fit

    def short_on_node(
        self, match: PodMatch, row: int, matched: Sequence[ReservedRoom], room: ReservedRoom | None = None
    ) -> list[str]:
        """Resources of which the node has too little for the pod, with what is left in `room`."""
        table = self._table
        lifted = [room.room for room in matched if room.lifted]
        counted = match.pod.row == row  # in a trial
        slots = table.requested.item(PODS, row) - (len(matched) - len(lifted)) + (not counted)
        short = ["pods"] if slots > table.allocatable.item(PODS, row) else []
        for name, amount in sorted(match.pod.requests.items()):
            if amount <= 0 or name == "pods" or not self.compares(name):
                continue
            column = table.resource(name)
            requested = table.requested.item(column, row) - (amount if counted else 0)
            if lifted:
                requested += sum(amounts.get(column, 0) for amounts in lifted)
            left = 0 if room is None else room.remaining.get(name, 0)
            if amount > table.allocatable.item(column, row) - requested + left:
                short.append(name)
        return short

    def candidates(self, match: PodMatch, row: int) -> list[ReservedRoom]:
        """The reservations on a row whose amounts fit the pod."""
        matched = match.on(row)
        return [room for room in matched if self.usable(match, room) and self.with_room(match, row, room, matched).ok]

    def best(self, match: PodMatch, rooms: Sequence[ReservedRoom]) -> tuple[ReservedRoom, int] | None:
        """(the one of `rooms` that the pod takes, its score); None: it takes none."""
        if not rooms:
            return None
        rated = [(room, self.score(match, room)) for room in rooms]
        return rated[0] if len(rated) == 1 else min(rated, key=lambda rating: _rank(*rating))

    def score(self, match: PodMatch, room: ReservedRoom) -> int:
        """0 to 100."""
        return score(match.pod.requests, room.model.amounts, room.used) if room.model is not None else 0


def _rank(room: ReservedRoom, score: int) -> tuple[bool, int, int, str]:
    """Smaller is better: an order, then the smallest; the highest score; the first name."""
    order = room.model.order if room.model is not None else 0
    return (order == 0, order, -score, room.model.name if room.model is not None else "")
