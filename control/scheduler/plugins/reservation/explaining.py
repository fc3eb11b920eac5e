"""The reservations that a pod could use, with figures, for `koordctl explain pod` (spec 06 §4.5)."""

from __future__ import annotations

from control.quota.amounts import shown
from control.scheduler.plugins.reservation.book import ReservedRoom
from control.scheduler.plugins.reservation.fitting import Fitting, by_node
from control.scheduler.plugins.reservation.match import PodMatch
from control.scheduler.state.table import NodeTable
from koordlet.api.pages.placement import ConsideredReservation

FITS = "fits"


def considered(match: PodMatch, fitting: Fitting, table: NodeTable, limit: int) -> list[ConsideredReservation]:
    """The reservations on nodes whose owners match, at most `limit`: those that fit first, then by name."""
    found = [
        ConsideredReservation(
            name=room.model.name,
            node=table.names[room.row],
            policy=room.model.policy or "Default",
            left=shown(room.remaining),
            result=_result(match, fitting, room),
        )
        for room in match.owner_matched()
        if room.model is not None
    ]
    return sorted(found, key=lambda one: (one.result != FITS, one.name))[:limit]


def _result(match: PodMatch, fitting: Fitting, room: ReservedRoom) -> str:
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
    return ", ".join(reasons) or FITS
