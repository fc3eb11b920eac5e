"""The reservations that a pod could use, with figures, for `koordctl explain pod` (spec 06 §4.5)."""

from __future__ import annotations

from collections.abc import Callable

from control.quota.amounts import shown
from control.scheduler.plugins.reservation.book import ReservedRoom
from control.scheduler.plugins.reservation.fitting import Fitting, by_node
from control.scheduler.plugins.reservation.match import PodMatch
from control.scheduler.state.table import NodeTable
from koordlet.api.pages.placement import ConsideredReservation

FITS = "fits"


def considered(
    match: PodMatch, fitting: Fitting, table: NodeTable, limit: int, refusal: Callable[[ReservedRoom], str]
) -> list[ConsideredReservation]:
    """The reservations on nodes whose owners match, at most `limit`: those that fit first, then by name."""
    rows = [
        ConsideredReservation(
            name=room.model.name,
            node=table.names[room.row],
            policy=room.model.policy or "Default",
            left=shown(room.remaining),
            result=_result(match, fitting, room, refusal),
        )
        for room in match.owner_matched()
        if room.model is not None
    ]
    return sorted(rows, key=lambda considered: (considered.result != FITS, considered.name))[:limit]


def _result(match: PodMatch, fitting: Fitting, room: ReservedRoom, refusal: Callable[[ReservedRoom], str]) -> str:
    """`fits`, or why the pod cannot use the reservation."""
    rooms = match.on(room.row)
    if room not in rooms:
        judged = match.judge(room)
        if judged.mismatch is not None:
            return f"{judged.mismatch.value} {judged.taint}".strip()
        return "is not offered: it is for one pod, which has used it" if room.owners_here else "is not offered"
    if not fitting.usable(match, room):
        return "reserves nothing that the pod requests"
    fit = fitting.with_room(match, room.row, room, rooms)
    reasons = [short.text(figures=True).removeprefix("Reservation(s) ") for short in fit.in_room]
    reasons += map(by_node, fit.by_node)
    return ", ".join(reasons) or refusal(room) or FITS
