"""Gangs that can never be placed: no member is bound, no room stays reserved, other pods are placed, and attempts end.

Whatever such a gang wants, single pods that come after it find every node as empty as it is.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest

from control.scheduler.config.args import CoschedulingArgs
from control.scheduler.plugins.coscheduling import params
from koordlet.api.core import Pod
from koordlet.api.crs.podgroup import PodGroup
from koordlet.api.encoding import wire
from tests.control.scheduler.build import node, pod
from tests.control.scheduler.gangworld import GangWorld

Make = Callable[..., GangWorld]
P = "gang.scheduling.koordinator.sh/"
ROOM = 6
"""Cores of the cluster, on two nodes."""


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    worlds: list[GangWorld] = []

    def made() -> GangWorld:
        worlds.append(GangWorld(node("n1", cpu="4"), node("n2", cpu="2")))
        return worlds[-1]

    yield made
    for world in worlds:
        await world.stop()


def member(name: str, gang: str, minimum: str, cpu: str = "1", **notes: str) -> Pod:
    annotations = {P + "name": gang, P + "min-available": minimum}
    return pod(name, cpu, annotations=annotations | {P + key.replace("_", "-"): value for key, value in notes.items()})


def gang(name: str, members: int, minimum: str, cpu: str = "1", **notes: str) -> list[Pod]:
    return [member(f"{name}{number}", name, minimum, cpu, **notes) for number in range(members)]


BOTH = '["default/g","default/h"]'

IMPOSSIBLE = [
    pytest.param(gang("g", 3, "4"), id="more must be than are"),
    pytest.param(gang("g", 3, "2147483647"), id="more must be than can be counted"),
    pytest.param(gang("g", 7, "7"), id="more than the cluster holds"),
    pytest.param(gang("g", 2, "2", cpu="4"), id="two that need the same node"),
    pytest.param(gang("g", 2, "2", cpu="100"), id="a member that no node ever holds"),
    pytest.param([*gang("g", 3, "4"), member("g-huge", "g", "4", "5")], id="one of them fits nowhere"),
    pytest.param(gang("g", 3, "3", groups=BOTH), id="the other gang of the group does not exist"),
    pytest.param(
        [*gang("g", 3, "3", groups=BOTH), *gang("h", 1, "2", groups=BOTH)], id="the other gang is not complete"
    ),
    pytest.param(
        [*gang("g", 3, "3", groups=BOTH), *gang("h", 4, "4", groups=BOTH)], id="both together are too many"
    ),
    pytest.param(gang("g", 2, "2", groups='["default/other"]'), id="a group that it is not a member of"),
    pytest.param(gang("g", 2, "2", groups='["elsewhere/h","default/g"]'), id="a group in another namespace"),
    pytest.param(gang("g", 2, "many"), id="a minimum that is no number"),
    pytest.param([pod(f"g{n}", labels={"pod-group.scheduling.sigs.k8s.io": "g"}) for n in range(2)],
                 id="a PodGroup that does not exist"),
]  # fmt: skip


@pytest.mark.parametrize("pods", IMPOSSIBLE)
@pytest.mark.parametrize("later", [False, True], ids=["singles after it", "singles beside it"])
async def test_no_member_is_bound_and_other_pods_are_placed(make: Make, pods: list[Pod], later: bool) -> None:
    world = make()
    singles = [pod(f"s{number}", "1") for number in range(ROOM)]
    world.create(*pods, *(singles if later else ()))
    await world.drive()
    if not later:
        world.create(*singles)
    await world.pass_time(15)
    assert set(world.bound()) == {single.metadata.name for single in singles}
    assert world.parked() == []
    assert world.gangs.rounds.current is None
    world.check()
    for member in singles:  # it gets the whole cluster, and can do nothing with it
        world.delete(member.metadata.key)
    await world.pass_time(15)
    assert world.bound() == []
    assert world.parked() == []
    world.check()
    before = world.reporter.cycles
    await world.pass_time(60)
    assert world.reporter.cycles == before, "it is tried again although nothing happened"
    for member in pods:
        world.delete(member.metadata.key)
    await world.drive()
    assert world.cache.pods == {}
    assert world.gangs.gangs.groups == {}


@pytest.mark.parametrize(
    ("notes", "members"),
    [
        pytest.param({"groups": "["}, 2, id="groups that are no list: it is alone"),
        pytest.param({"groups": "[]"}, 2, id="no groups"),
        pytest.param({"groups": '{"a":1}'}, 2, id="groups that are an object"),
        pytest.param({"mode": "Sometimes"}, 2, id="an unknown mode is Strict"),
        pytest.param({"match_policy": "guess"}, 2, id="an unknown policy is the default"),
        pytest.param({"waiting_time": "soon"}, 2, id="a time that is none is the default"),
        pytest.param({"waiting_time": "-5s"}, 2, id="a negative time is the default"),
        pytest.param({"total_number": "1"}, 2, id="fewer in all than must be"),
    ],
)
async def test_other_malformed_annotations_do_not_stop_a_gang(make: Make, notes: dict[str, str], members: int) -> None:
    world = make()
    world.create(*gang("g", members, "2", **notes))
    await world.pass_time(3)
    assert world.bound("g") == ["g0", "g1"]
    world.check()


@pytest.mark.parametrize("minimum", ["0", "-3", "1"])
async def test_a_minimum_below_one_is_a_gang_of_any_size(make: Make, minimum: str) -> None:
    world = make()
    world.create(*gang("g", 3, minimum))
    await world.pass_time(5)
    assert world.bound("g") == ["g0", "g1", "g2"]
    world.check()


async def test_contradicting_groups_are_never_bound_partly(make: Make) -> None:
    """g counts on h, but h says that it is alone: h is placed, g when h has enough who wait … which is never wrong."""
    world = make()
    world.create(*gang("g", 2, "2", groups=BOTH), *gang("h", 2, "2"))
    await world.pass_time(15)
    for name in ("g", "h"):
        assert len(world.bound(name)) in (0, 2)
    assert world.parked() == []
    world.check()


def test_a_pod_group_without_minimum_is_read() -> None:
    body = {"metadata": {"name": "g", "namespace": "ns"}, "spec": {"minMember": -1, "scheduleTimeoutSeconds": -7}}
    gang = params.of_pod_group(wire.convert(body, PodGroup), CoschedulingArgs())
    assert (gang.minimum, gang.wait) == (-1, CoschedulingArgs().default_timeout)
