"""Gangs and reservations: Reservations as members, and members that use reservations (spec 05 §9.1, §11, 06 §4)."""

from __future__ import annotations

import numpy as np
import pytest

from control.scheduler.config.args import CoschedulingArgs
from control.scheduler.framework.victimpolicy import JobVictims
from control.scheduler.plugins.coscheduling.cache import GangCache
from control.scheduler.plugins.coscheduling.jobplanner import JobPlanner, NotHelpful, PreemptingJob
from control.scheduler.state.pods import PodInfo
from koordlet.api.core import Pod
from tests.control.reservation.reservationbuild import pod, reservation
from tests.control.scheduler.build import pod as ranked
from tests.control.scheduler.plugins.reservationworld import ReservationWorld

WEB = [{"labelSelector": {"matchLabels": {"app": "web"}}}]
GANG = {"gang.scheduling.koordinator.sh/name": "g", "gang.scheduling.koordinator.sh/min-available": "2"}


def waiting(world: ReservationWorld, pod: Pod) -> PodInfo:
    world.put(pod)
    info = world.waiting(pod)
    assert info is not None
    return info


def world_with_victims() -> ReservationWorld:
    """8 CPUs: a reservation for 4, and two pods of 2 that may be removed."""
    world = ReservationWorld(8)
    world.put(reservation(cpu=4, node="n0", owners=WEB, allocateOnce=False, allocatePolicy="Aligned"))
    for name in ("low-1", "low-2"):
        world.put(ranked(name, "2", None, priority=-5, on="n0"))
    return world


def web(world: ReservationWorld, name: str, cpu: str = "2") -> PodInfo:
    return waiting(world, ranked(name, cpu, None, labels={"app": "web"}, priority=10))


@pytest.mark.parametrize(("members", "victims"), [(3, 1), (4, 2), (5, None)])
def test_members_are_planned_with_the_room_of_their_reservations(members: int, victims: int | None) -> None:
    world = world_with_victims()
    job = [web(world, f"m{at}") for at in range(members)]
    planner = JobPlanner(world.cluster.table, JobVictims())
    planner.connect(world.plugin.runtime)
    before = world.requested()
    of = PreemptingJob(job[0], job, lambda other: other.name.startswith("m"))
    rows = world.cluster.table.rows["n0"]

    if victims is None:
        with pytest.raises(NotHelpful):
            planner.plan(of, np.array([rows]))
    else:
        plan = planner.plan(of, np.array([rows]))
        assert len(plan.victims[rows]) == victims
    assert world.requested() == before
    assert world.used("r1") == {}


def test_a_pod_on_trial_counts_in_the_reservation_that_it_would_take() -> None:
    world = world_with_victims()
    info = web(world, "m", "3")
    before = world.requested()
    with world.cluster.table.what_if() as trial:
        trial.add(info, world.cluster.table.rows["n0"])
        assert world.used("r1") == {"cpu": 3000}
        assert world.requested() == before
    assert world.used("r1") == {}


def test_a_reservation_and_a_pod_of_its_name_are_different_members() -> None:
    gangs = GangCache(CoschedulingArgs())
    first, second = pod("same", annotations=GANG), pod("same", annotations=GANG)
    gangs.pod_added(first, "Reservation")
    assert not gangs.gangs["default/g"].complete
    assert gangs.pod_added(second) == ["default/same"]
    gang = gangs.gangs["default/g"]
    assert gang.complete and sorted(gang.pending) == ["Reservation/same", "default/same"]
    gangs.pod_deleted(first, "Reservation")
    assert sorted(gang.pending) == ["default/same"]
