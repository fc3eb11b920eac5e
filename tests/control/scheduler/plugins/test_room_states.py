"""Nodes that are equal in what decisions depend on share a state, and only these (NodeNUMAResource)."""

from __future__ import annotations

from typing import Any

import pytest

from control.numa.accumulator import HeldCPUs
from control.numa.affinity import NodeRoom, ZoneRoom
from control.numa.layout import layout_of
from control.scheduler.plugins.nodenumaresource.roomstates import RoomStates
from tests.control.scheduler.plugins.numaworld import lsr, world

LAYOUT = layout_of((cpu, cpu, 0, 0) for cpu in range(4))
ZONE = ZoneRoom(0, {"cpu": 4000}, {"cpu": 4000}, 0b1111)
GIVEN: dict[str, Any] = {"layout": LAYOUT, "free": 0b1111, "zones": [ZONE]}


@pytest.mark.parametrize(
    "changed",
    [
        {"layout": layout_of((cpu, cpu // 2, 0, 0) for cpu in range(4))},
        {"free": 0b0111},
        {"zones": [ZoneRoom(0, {"cpu": 3000}, {"cpu": 4000}, 0b1111)]},
        {"zones": [ZoneRoom(0, {"cpu": 4000}, {"cpu": 5000}, 0b1111)]},
        {"zones": [ZoneRoom(1, {"cpu": 4000}, {"cpu": 4000}, 0b1111)]},
        {"zones": [ZoneRoom(0, {"cpu": 4000}, {"cpu": 4000}, 0b0111)]},
        {"held": HeldCPUs(exclusive_cores=1)},
        {"held": HeldCPUs(exclusive_nodes=1)},
        {"status": ("single",)},
        {"policies": ("FullPCPUsOnly", "", "")},
        {"policies": ("None", "Restricted", "")},
        {"policies": ("None", "", "MostAllocated")},
    ],
)
def test_what_tells_states_apart(changed: dict[str, Any]) -> None:
    states = RoomStates()

    def state(
        *, status: tuple[str, ...] = ("idle",), policies: tuple[str, str, str] = ("None", "", ""), **room: Any
    ) -> Any:
        return states.of(NodeRoom(**{**GIVEN, **room}), status, policies)

    known = state()
    assert state() is known
    assert state(**changed) is not known


def test_nodes_leave_a_state_and_come_back() -> None:
    scene = world(count=3)
    book = scene.plugin.book
    book.sync()
    assert book.state(0) is book.state(1) is book.state(2)
    bound = scene.bind(scene.place(lsr("2", numa={"numaTopologyPolicy": "SingleNUMANode"})))
    book.sync()
    row = scene.cluster.table.rows[bound.spec.node_name]
    others = {0, 1, 2} - {row}
    assert len({id(book.state(other)) for other in others}) == 1
    assert all(book.state(row) is not book.state(other) for other in others)
    assert all(book.state(other).choices for other in others)
    scene.remove(bound.metadata.uid)
    book.sync()
    assert book.state(0) is book.state(1) is book.state(2)
