"""`koordctl explain pod`, placement: the chosen node, other nodes' scores, and refusals, per plugin.

Evaluated by the scheduler on the present cluster; nothing is decided here.
"""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

import aiohttp
from rich.table import Table
from rich.text import Text

from control.ctl.views.schedulerclient import fetch_page
from koordlet.api.pages.placement import ConsideredReservation, PodPlacement, RejectedNodes, ScoredNode

STATES = {
    "placed": "runs on",
    "assumed": "is being bound to",
    "active": "is in the scheduling queue",
    "out": "is being scheduled",
    "backoff": "is in backoff before the next attempt",
    "error": "is in backoff after an error",
    "unschedulable": "is unschedulable until something changes",
    "gated": "is gated",
}


async def fetch_placement(
    url: str, namespace: str, pod: str, session: aiohttp.ClientSession | None = None
) -> PodPlacement | None:
    """None when this scheduler does not know the pod. Raises CtlError when the scheduler does not respond."""
    path = f"/apis/v1/explain/{quote(namespace, safe='')}/{quote(pod, safe='')}"
    return await fetch_page(url, path, PodPlacement, session)


def placement_page(placement: PodPlacement) -> Iterator[Text | Table]:
    """The output, top to bottom."""
    where = f" {placement.node}" if placement.node else ""
    yield Text.assemble(
        (placement.pod, "bold"), f" {STATES.get(placement.state, placement.state)}{where}", _attempts(placement)
    )
    if placement.gated_by:
        yield Text(f"  Gated by {placement.gated_by}.")
    if placement.nominated:
        yield Text(f"  Pods are being preempted for it on {placement.nominated}.")
    if placement.message:
        yield Text(f"  {placement.message}", style="yellow")
    if placement.rejected_by:
        yield Text(f"  Retried after a change for {', '.join(placement.rejected_by)}, or after 5 minutes.")
    if placement.scored:
        fit = "1 fits" if placement.feasible == 1 else f"{placement.feasible} fit"
        now = ", if it were placed now" if placement.node else ""
        yield Text(f"\nOf {placement.nodes} nodes {fit}{now}; weighted scores by plugin:")
        yield _scores(placement.scored, placement.node)
    if placement.reservations:
        yield Text("\nReservations whose owners match:")
        yield _reservations(placement.reservations)
    if placement.refused:
        yield Text("\nNodes that do not fit, by plugin:")
        yield _refusals(placement.refused)
        for group in placement.refused:
            if group.details:
                yield Text(f"\n{group.plugin} on {group.nodes[0]}:")
                yield from (Text(f"  {line}") for line in group.details)


def _attempts(placement: PodPlacement) -> str:
    return f" ({placement.attempts} attempt{'s' if placement.attempts != 1 else ''})" if placement.attempts else ""


def _scores(scored: list[ScoredNode], own: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    plugins = sorted({name for node in scored for name, score in node.scores.items() if score})
    table.add_column("")
    table.add_column("NODE")
    for name in ("TOTAL", *plugins):
        table.add_column(name, justify="right")
    for node in scored:
        cells = [str(node.scores.get(name, 0)) for name in plugins]
        table.add_row("→" if node.node == own else "", node.node, str(node.total), *cells)
    return table


def _reservations(considered: list[ConsideredReservation]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("RESERVATION", "NODE", "POLICY", "LEFT", "RESULT"):
        table.add_column(name, overflow="fold")
    for considered_reservation in considered:
        table.add_row(
            considered_reservation.name,
            considered_reservation.node,
            considered_reservation.policy,
            considered_reservation.left,
            considered_reservation.result,
        )
    return table


def _refusals(refused: list[RejectedNodes]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("NODES", "PLUGIN", "REASON", "PREEMPTION", "EXAMPLES"):
        table.add_column(name, justify="right" if name == "NODES" else "left", overflow="fold")
    for group in refused:
        helps = "might help" if group.preemption_might_help else "cannot help"
        table.add_row(str(group.count), group.plugin or "-", group.reason, helps, ", ".join(group.nodes[:3]))
    return table
