"""How requests are divided among NUMA zones (spec 06 §2.7)."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control.numa.accumulator import AllocationFailed, CPUSearchRules, satisfies, usable
from control.numa.affinity import NodeRoom, NumaRequest, allocate, room_for
from control.numa.hints import choose, merge, node_hints, subsets
from control.numa.masks import cpu_list, numbers_of
from tests.control.numa.rooms import GIB, room

FULL, SPREAD = "FullPCPUs", "SpreadByPCPUs"


def _cpu(zones: Mapping[int, Mapping[str, int]]) -> dict[int, int]:
    return {zone: amounts["cpu"] for zone, amounts in zones.items()}


@pytest.mark.parametrize(
    ("taken", "requested", "split"),
    [
        ("", NumaRequest({"cpu": 3500}), {0: 1750, 1: 1750}),
        ("", NumaRequest({"cpu": 4000}, 4, CPUSearchRules(FULL), required=True), {0: 2000, 1: 2000}),
        ("10-15", NumaRequest({"cpu": 4000}, 4, CPUSearchRules(SPREAD), required=True), {0: 3000, 1: 1000}),
        ("", NumaRequest({"cpu": 5000}, 5, CPUSearchRules(SPREAD), required=True), {0: 2000, 1: 3000}),
        ("", NumaRequest({"cpu": 6000}, 6, CPUSearchRules(FULL), required=True), {0: 2000, 1: 4000}),
    ],
    ids=["shared", "whole cores", "one zone has 1 core", "odd number", "cores are not divided"],
)
def test_examples(taken: str, requested: NumaRequest, split: dict[int, int]) -> None:
    node = room((2, 1, 4, 2), [{"cpu": 8000}, {"cpu": 8000}], taken=taken)
    holding = allocate(node, requested, node.zones)
    assert _cpu(holding.zones) == split
    if requested.cpus:
        for zone, milli in split.items():
            assert (holding.cpus & node.layout.nodes[zone]).bit_count() * 1000 == milli


def test_the_listed_zones_are_compared_not_their_positions() -> None:
    node = room((4, 1, 4, 2), [{"cpu": 8000}] * 4, used={2: {"cpu": 2000}})
    holding = allocate(node, NumaRequest({"cpu": 13000}), [node.zones[1], node.zones[2]])
    assert _cpu(holding.zones) == {1: 7000, 2: 6000}


def test_a_resource_that_no_zone_publishes_is_not_divided() -> None:
    node = room((2, 1, 4, 2), [{"cpu": 8000}, {"cpu": 8000}])
    assert allocate(node, NumaRequest({"cpu": 2000, "memory": GIB}), node.zones).zones == {
        0: {"cpu": 1000},
        1: {"cpu": 1000},
    }


def test_too_little_of_a_resource_is_named() -> None:
    node = room((2, 1, 4, 2), [{"cpu": 8000, "memory": GIB}, {"cpu": 8000, "memory": GIB}])
    with pytest.raises(AllocationFailed, match=r"^Insufficient NUMA memory$"):
        allocate(node, NumaRequest({"cpu": 2000, "memory": 3 * GIB}), node.zones)


def test_without_zones_the_cpus_come_from_the_whole_node() -> None:
    node = room((2, 1, 4, 2), [])
    assert (
        cpu_list(allocate(node, NumaRequest({"cpu": 4000}, 4, CPUSearchRules(FULL), required=True), None).cpus) == "0-3"
    )


@st.composite
def requests(draw: st.DrawFn) -> tuple[NodeRoom, NumaRequest, list[int]]:
    zones = draw(st.integers(1, 3))
    shape = (1, zones, draw(st.integers(1, 4)), draw(st.integers(1, 2)))
    cpus = shape[2] * shape[3]
    taken = draw(st.sets(st.integers(0, zones * cpus - 1)))
    used = {
        zone: {"cpu": draw(st.integers(0, cpus * 1000)), "memory": draw(st.integers(0, 8))} for zone in range(zones)
    }
    node = room(shape, [{"cpu": cpus * 1000, "memory": 8}] * zones, taken=",".join(map(str, sorted(taken))), used=used)
    bound = draw(st.integers(0, zones * cpus))
    required = draw(st.booleans())
    policy = draw(st.sampled_from((FULL, SPREAD)))
    if policy == FULL and required:
        bound -= bound % node.layout.cpus_per_core
    milli = bound * 1000 or draw(st.integers(1, zones * cpus * 1000))
    request = NumaRequest(
        {"cpu": milli, "memory": draw(st.integers(1, 24))}, bound, CPUSearchRules(policy), required=required
    )
    chosen = draw(st.sets(st.integers(0, zones - 1), min_size=1))
    return node, request, sorted(chosen)


@given(requests())
def test_a_request_is_served_exactly_when_the_rooms_of_the_zones_suffice(
    case: tuple[NodeRoom, NumaRequest, list[int]],
) -> None:
    node, request, chosen = case
    zones = [node.zones[at] for at in chosen]
    rooms = {name: sum(room_for(node, request, zone, name) for zone in zones) for name in request.amounts}
    try:
        holding = allocate(node, request, zones)
    except AllocationFailed:
        assert any(rooms[name] < amount for name, amount in request.amounts.items())
        return
    for name, amount in request.amounts.items():
        parts = {zone: amounts.get(name, 0) for zone, amounts in holding.zones.items()}
        assert sum(parts.values()) == amount <= rooms[name]
        assert set(parts) <= set(chosen)
        assert all(part <= room_for(node, request, node.zones[zone], name) for zone, part in parts.items())
    assert holding.cpus.bit_count() == request.cpus
    assert holding.cpus & ~node.free == 0
    if request.cpus and request.required:
        assert satisfies(node.layout, holding.cpus, request.rules.policy)
        assert holding.cpus & ~usable(node.layout, node.free, request.rules.policy) == 0
    if request.cpus:
        assert {node.layout.core_of[cpu].node for cpu in numbers_of(holding.cpus)} <= set(chosen)


@given(requests())
def test_hints_are_the_sets_of_zones_on_which_a_trial_allocation_succeeds(
    case: tuple[NodeRoom, NumaRequest, list[int]],
) -> None:
    node, request, _ = case
    hints = node_hints(node, request, "Restricted", lambda _: 0)
    for name in request.amounts:
        served = []
        for chosen in subsets(len(node.zones)):
            zones = [node.zones[at] for at in numbers_of(chosen)]
            try:
                allocate(node, request, zones)
            except AllocationFailed:
                continue
            if all(room_for(node, request, zone, name) > 0 for zone in zones):
                served.append(chosen)
        assert [hint.zones for hint in hints[name]] == served


@given(
    requests(),
    st.sampled_from(("BestEffort", "Restricted", "SingleNUMANode")),
    st.frozensets(st.sampled_from(subsets(3)), max_size=3),
    st.lists(st.integers(0, 3), min_size=8, max_size=8),
)
def test_the_short_way_chooses_as_all_hints_do(
    case: tuple[NodeRoom, NumaRequest, list[int]], policy: str, banned: frozenset[int], scores: list[int]
) -> None:
    node, request, _ = case
    hints = node_hints(node, request, policy, scores.__getitem__)
    merged = merge([hints], [zone.id for zone in node.zones], policy, banned.__contains__)
    assert choose(node, request, policy, scores.__getitem__, banned.__contains__) == merged
