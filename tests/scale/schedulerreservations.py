"""Reservations on nodes and the pods that use them, for the scheduler's benchmark."""

from __future__ import annotations

from control.reservation.model import RESERVATION
from control.reservation.reservepod import reserve_pod
from koordlet.api.core import Pod
from tests.control.reservation.reservationbuild import reservation
from tests.control.scheduler.build import pod
from tests.scale.schedulerprofile import Bench

APPS = 10
"""Reservations and pods are of this number of apps, one after another."""


def owners(count: int) -> list[Pod]:
    """Every second pod must use a reservation, the others may."""
    needs = {"scheduling.koordinator.sh/reservation-affinity": "{}"}
    return [
        pod(cpu="500m", memory="512Mi", labels={"app": f"app-{at % APPS}"}, annotations=needs if at % 2 else {})
        for at in range(count)
    ]


def reserve(bench: Bench, count: int) -> None:
    """`count` reservations for one pod each, dealt out to the nodes; they leave each node nearly full."""
    for at in range(count):
        room = reservation(
            f"r{at}",
            cpu="500m",
            memory="512Mi",
            owners=[{"labelSelector": {"matchLabels": {"app": f"app-{at % APPS}"}}}],
            node=f"node-{at % bench.nodes}",
            allocatePolicy="Restricted" if at % 2 else "Aligned",
        )
        bench.cycle.cache.set_pod(reserve_pod(room), RESERVATION)
        bench.reports.tell(room)
