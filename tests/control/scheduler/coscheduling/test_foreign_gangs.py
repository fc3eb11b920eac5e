"""A tenant's gang group cannot include gangs of other tenants: they must name the group themselves."""

from __future__ import annotations

import json
from typing import cast

import pytest

from control.scheduler.cycle.failures import FitError
from control.scheduler.framework.plugin import CycleState
from koordlet.api.core import Pod
from tests.control.scheduler.coscheduling.test_gang_decisions import World, member

VICTIM, ATTACKER = "victim/train", "attacker/g"


def train(number: int, **notes: str) -> Pod:
    return member(f"train{number}", "train", 2, "victim", **notes)


def attack(*ids: str, minimum: int = 1) -> Pod:
    return member("intruder", "g", minimum, "attacker", groups=json.dumps(ids))


def parked_victim() -> World:
    """A member of the victim's gang is held at Permit; another one is missing."""
    world = World()
    world.add(train(0), train(1))
    assert world.permit(train(0)) is not None
    return world


def fail(world: World, pod: Pod) -> None:
    """The pod fits on no node."""
    info = world.cluster.info(pod)
    world.plugin.after_post_filter(CycleState(), info, cast(FitError, None), None)


@pytest.mark.parametrize("ids", [(ATTACKER, VICTIM), (VICTIM,), (VICTIM, "victim/other")])
def test_a_pod_that_does_not_fit_rejects_no_pods_of_another_tenant(ids: tuple[str, ...]) -> None:
    world = parked_victim()
    intruder = attack(*ids)
    world.add(intruder)
    fail(world, intruder)
    assert world.parking.rejected == {}
    assert world.permit(train(1)) is None, "the victim's gang is placed"


def test_a_group_that_its_gangs_do_not_share_waits(seconds: float = 600.0) -> None:
    world = parked_victim()
    intruder = attack(ATTACKER, VICTIM)
    world.add(intruder)
    message = world.enqueued(intruder)
    assert f"memberGangs [{VICTIM}] of other namespaces don't name the group" in message
    assert world.permit(intruder) == seconds
    assert world.plugin.members(f"{ATTACKER},{VICTIM}") == ["attacker/intruder"]


def test_gangs_that_name_each_other_are_one_group() -> None:
    world = World()
    both = json.dumps([ATTACKER, VICTIM])
    partner = attack(ATTACKER, VICTIM)
    world.add(train(0, groups=both), train(1, groups=both), partner)
    assert world.permit(partner) is not None
    assert world.permit(train(0, groups=both)) is not None
    assert world.permit(train(1, groups=both)) is None
    assert sorted(world.parking.allowed) == ["intruder", "train0"]


def test_in_one_namespace_one_gang_may_name_the_others() -> None:
    world = World()
    first = member("a0", "a", 1, "ns", groups='["ns/a","ns/b"]')
    second = member("b0", "b", 1, "ns")
    world.add(first, second)
    assert world.enqueued(first) == ""
    assert world.plugin.group_of(first) == ("ns/a,ns/b", True)
