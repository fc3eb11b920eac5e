"""CPUs and NUMA zones inside reservations (spec 06 §2.9, §8.1 scenarios 2 and 3)."""

from __future__ import annotations

import itertools
import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from control.numa.holdings import Holding, NodeHoldings, left_by
from control.numa.masks import cpu_list, numbers_of
from control.scheduler.cycle.evaluation import prepare
from control.scheduler.cycle.failures import FitError
from control.scheduler.cycle.placement import CycleFailed
from control.scheduler.framework.plugin import CycleState
from koordlet.api import names
from koordlet.api.core import Node, Pod
from koordlet.api.cpus import format_cpus, parse_cpus
from koordlet.api.crs.reservation import Reservation
from tests.control.scheduler.plugins.numaworld import lsr
from tests.control.scheduler.plugins.sharedworld import SharedWorld, bound_cpus

OWNERS = [{"labelSelector": {"matchLabels": {"app": "web"}}}]
NEEDS = {names.ANNOTATION_RESERVATION_AFFINITY: "{}"}
ORDERS = list(itertools.permutations((Node, Reservation, Pod)))
SHAPE = (2, 1, 8, 2)
"""32 CPUs."""


def web(name: str, cpu: int, **more: Any) -> Pod:
    return lsr(str(cpu), name=name, labels={"app": "web"}, **more)


def reserved(policy: str, cpu: int = 8, once: bool = False, **more: Any) -> Reservation:
    return bound_cpus("r1", cpu, owners=OWNERS, allocatePolicy=policy, allocateOnce=once, **more)


def test_an_owner_gets_reserved_cpus_and_others_get_the_rest() -> None:
    shared_world = SharedWorld(SHAPE)
    assert shared_world.schedule(reserved("Restricted")) == "n0"
    assert shared_world.cpus("r1").bit_count() == 8
    assert shared_world.schedule(web("p1", 4)) == "n0"
    assert shared_world.owner_of("p1") == "r1"
    assert shared_world.cpus("p1").bit_count() == 4
    assert shared_world.cpus("p1") & ~shared_world.cpus("r1") == 0
    assert shared_world.schedule(lsr("24", name="other")) == "n0"
    assert shared_world.cpus("other") & shared_world.cpus("r1") == 0


def test_a_pod_that_is_no_owner_gets_no_reserved_cpu() -> None:
    shared_world = SharedWorld(SHAPE)
    shared_world.schedule(reserved("Restricted"))
    assert "not enough cpus available to satisfy request" in shared_world.schedule(lsr("25", name="large"))
    assert shared_world.numa_page()["availableCPUs"] == cpu_list((1 << 32) - 1 & ~shared_world.cpus("r1"))


@pytest.mark.parametrize("cpus", [4, 8, 10, 32])
def test_an_owner_of_an_aligned_reservation_takes_the_rest_from_the_node(cpus: int) -> None:
    shared_world = SharedWorld(SHAPE)
    shared_world.schedule(reserved("Aligned"))
    assert shared_world.schedule(web("p1", cpus)) == "n0"
    assert (shared_world.cpus("p1") & shared_world.cpus("r1")).bit_count() == min(cpus, 8)
    assert shared_world.cpus("p1").bit_count() == cpus


def test_owners_of_a_restricted_reservation_share_its_cpus() -> None:
    shared_world = SharedWorld(SHAPE)
    shared_world.schedule(reserved("Restricted"))
    for name in ("p1", "p2"):
        assert shared_world.schedule(web(name, 4, annotations=NEEDS)) == "n0"
    assert shared_world.cpus("p1") & shared_world.cpus("p2") == 0
    assert shared_world.cpus("p1") | shared_world.cpus("p2") == shared_world.cpus("r1")
    assert "Reservation(s) Insufficient cpu" in shared_world.schedule(web("p3", 2, annotations=NEEDS))
    shared_world.delete(shared_world.pod("p1"))
    assert shared_world.retry(shared_world.pod("p3")) == "n0"
    assert shared_world.cpus("p3") & ~shared_world.cpus("r1") == 0


def designating(name: str, cpus: str, count: int = 4, **more: Any) -> Pod:
    """It designates these CPUs."""
    annotations = {
        names.ANNOTATION_SCHEDULING_HINT: json.dumps({"extensions": {"NodeNUMAResource": {}}}),
        names.ANNOTATION_RESOURCE_STATUS: json.dumps({"cpuset": cpus}),
        **more.pop("annotations", {}),
    }
    return lsr(str(count), name=name, annotations=annotations, **more)


WEB = {"app": "web"}


@pytest.mark.parametrize("policy", ["Aligned", "Restricted"])
def test_an_owner_gets_the_reserved_cpus_that_it_designates(policy: str) -> None:
    shared_world = SharedWorld(SHAPE)
    shared_world.schedule(reserved(policy))
    last = format_cpus(sorted(numbers_of(shared_world.cpus("r1")))[4:])
    assert shared_world.schedule(designating("p1", last, labels=WEB)) == "n0"
    assert (cpu_list(shared_world.cpus("p1")), shared_world.owner_of("p1")) == (last, "r1")
    again = shared_world.schedule(designating("p2", last, labels=WEB, annotations=NEEDS))
    assert "not enough cpus available to satisfy request" in again


def test_an_owner_of_a_restricted_reservation_cannot_designate_other_cpus() -> None:
    shared_world = SharedWorld(SHAPE)
    shared_world.schedule(reserved("Restricted"))
    others = format_cpus(sorted(parse_cpus(shared_world.numa_page()["availableCPUs"]))[:4])
    refused = shared_world.schedule(designating("p1", others, labels=WEB, annotations=NEEDS))
    assert "Reservation(s) not enough cpus available to satisfy request" in refused
    assert shared_world.schedule(designating("p2", others)) == "n0"
    assert cpu_list(shared_world.cpus("p2")) == others


def test_reserved_cpus_cannot_be_designated_by_others() -> None:
    shared_world = SharedWorld(SHAPE)
    shared_world.schedule(reserved("Restricted"))
    first = format_cpus(sorted(numbers_of(shared_world.cpus("r1")))[:4])
    assert "not enough cpus available to satisfy request" in shared_world.schedule(designating("other", first))


def test_cores_that_owners_split_serve_no_pod_that_needs_whole_ones() -> None:
    """SpreadByPCPUs takes one CPU of each core; then none of the reserved cores is whole."""
    shared_world = SharedWorld(SHAPE)
    shared_world.schedule(reserved("Restricted"))
    spread = {"requiredCPUBindPolicy": "SpreadByPCPUs"}
    assert shared_world.schedule(web("p1", 4, annotations=NEEDS, spec=spread)) == "n0"
    refused = shared_world.schedule(web("p2", 4, annotations=NEEDS, spec={"requiredCPUBindPolicy": "FullPCPUs"}))
    assert "Reservation(s) not enough cpus available to satisfy request" in refused


def test_a_pod_that_must_use_a_reservation_fits_where_all_other_cpus_are_held() -> None:
    shared_world = SharedWorld(SHAPE)
    shared_world.schedule(reserved("Aligned"))
    assert shared_world.schedule(lsr("24", name="other")) == "n0"
    assert shared_world.schedule(web("p1", 8, annotations=NEEDS)) == "n0"
    assert shared_world.cpus("p1") == shared_world.cpus("r1")


def test_a_pod_that_ignores_reservations_uses_reserved_cpus_without_owning_them() -> None:
    shared_world = SharedWorld(SHAPE)
    shared_world.schedule(reserved("Restricted"))
    shared_world.schedule(lsr("24", name="other"))
    assert shared_world.schedule(lsr("4", name="daemon", labels={names.LABEL_RESERVATION_IGNORED: "true"})) == "n0"
    assert shared_world.cpus("daemon") & ~shared_world.cpus("r1") == 0
    assert shared_world.owner_of("daemon") == ""
    assert shared_world.schedule(web("p1", 4)) == "n0"
    assert shared_world.cpus("p1") & shared_world.cpus("daemon") == 0


def test_an_owner_gets_the_zone_of_its_reservation() -> None:
    shared_world = SharedWorld(SHAPE, labels={names.LABEL_NUMA_TOPOLOGY_POLICY: "SingleNUMANode"})
    shared_world.schedule(lsr("2", name="first"))
    shared_world.schedule(reserved("Restricted", 12))
    (zone,) = shared_world.zones("r1")
    assert zone != shared_world.zones("first")[0]
    assert shared_world.schedule(web("p1", 12, memory=None)) == "n0"
    assert shared_world.zones("p1") == [zone]
    assert shared_world.cpus("p1") == shared_world.cpus("r1")
    assert "n0" not in shared_world.schedule(lsr("16", name="large"))


@pytest.mark.parametrize("order", ORDERS)
def test_a_restart_gives_the_same_page_in_any_order(order: tuple[type[Any], ...]) -> None:
    shared_world = SharedWorld(SHAPE)
    shared_world.schedule(reserved("Restricted"))
    shared_world.schedule(web("p1", 4))
    before = shared_world.numa_page()
    assert before["availableCPUs"] == cpu_list((1 << 32) - 1 & ~shared_world.cpus("r1"))
    shared_world.restart(order)
    assert shared_world.numa_page() == before
    assert shared_world.numa.book.malformed == {}


def test_cpus_that_the_author_of_a_reservation_wrote_do_not_count() -> None:
    shared_world = SharedWorld(SHAPE)
    forged = {names.ANNOTATION_RESOURCE_STATUS: '{"cpuset": "0-7"}'}
    shared_world.put(reserved("Restricted", annotations=forged))
    assert shared_world.numa_page()["availableCPUs"] == "0-31"
    shared_world.schedule(bound_cpus("plain", 1, owners=OWNERS, annotations=forged))
    assert shared_world.cpus("plain").bit_count() == 1


def test_an_explanation_says_why_a_reservation_cannot_give_its_cpus() -> None:
    shared_world = SharedWorld(SHAPE)
    shared_world.schedule(reserved("Restricted"))
    shared_world.schedule(web("p1", 4, spec={"requiredCPUBindPolicy": "SpreadByPCPUs"}))
    waiting = web("p2", 4, annotations=NEEDS, spec={"requiredCPUBindPolicy": "FullPCPUs"})
    info = shared_world.cluster.info(waiting)
    state = CycleState(trial=True)
    prepare(shared_world.cycle.framework, state, info)
    (considered,) = shared_world.plugin.considered(state, info, 5)
    state.run_undo()
    assert considered.result == "not enough cpus available to satisfy request"


STEPS = st.lists(
    st.tuples(
        st.sampled_from(("reserve", "owner", "must", "other", "ignoring", "gone", "expire", "restart", "killed")),
        st.integers(1, 6),
        st.sampled_from(("Aligned", "Restricted", "")),
    ),
    min_size=4,
    max_size=16,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(STEPS, st.sampled_from(("", "SingleNUMANode", "Restricted")), st.randoms(use_true_random=False))
def test_no_cpu_has_two_holders(steps: list[tuple[str, int, str]], numa: str, rng: Any) -> None:
    """After every step of a random history."""
    shared_world = SharedWorld((2, 1, 4, 2), labels={names.LABEL_NUMA_TOPOLOGY_POLICY: numa} if numa else None)
    fresh_names = (f"x{number}" for number in itertools.count())
    ignored: set[str] = set()
    for kind, cpu, policy in steps:
        name = next(fresh_names)
        match kind:
            case "reserve":
                shared_world.schedule(bound_cpus(name, cpu, owners=OWNERS, allocatePolicy=policy, allocateOnce=False))
            case "owner" | "must":
                shared_world.schedule(web(name, cpu, memory=None, annotations=NEEDS if kind == "must" else {}))
            case "other":
                shared_world.schedule(lsr(str(cpu), name=name, memory=None))
            case "ignoring":
                labels = {names.LABEL_RESERVATION_IGNORED: "true"}
                if shared_world.schedule(lsr(str(cpu), name=name, memory=None, labels=labels)) == "n0":
                    ignored.add(name)
            case "gone" | "expire":
                kept = list(shared_world.stored[Pod if kind == "gone" else Reservation].values())
                if kept:
                    shared_world.delete(rng.choice(kept))
            case "restart":
                shared_world.restart(rng.choice(ORDERS))
            case _:  # killed between Reserve and the binding
                shared_world.put(consumer := web(name, cpu, memory=None))
                with suppress(FitError, CycleFailed):
                    shared_world.place(consumer)
                shared_world.delete(consumer)
                shared_world.restart()
        check(shared_world, ignored)


def check(shared_world: SharedWorld, ignored: set[str]) -> None:
    pods = [bound.metadata.name for bound in shared_world.stored[Pod].values() if bound.spec.node_name]
    reservations = [held.metadata.name for held in shared_world.stored[Reservation].values() if held.status.node_name]
    used = 0
    for name in pods:
        assert shared_world.cpus(name) & used == 0, name
        used |= shared_world.cpus(name)
        owner_of = shared_world.owner_of(name)
        if owner_of in reservations and shared_world.reservation(owner_of).spec.allocate_policy == "Restricted":
            assert shared_world.cpus(name) & ~shared_world.cpus(owner_of) == 0
    for name in reservations:
        foreign_cpus = 0
        for pod in pods:
            foreign_cpus |= shared_world.cpus(pod) if shared_world.owner_of(pod) != name and pod not in ignored else 0
        assert shared_world.cpus(name) & foreign_cpus == 0
        used |= shared_world.cpus(name)
    assert shared_world.numa_page()["availableCPUs"] == cpu_list((1 << 16) - 1 & ~used)
    before = shared_world.numa_page()
    if not ignored:  # such a pod takes what a reservation holds, and both count
        assert all(cpu["refCount"] == 1 for cpu in before["allocatedCPUs"].values())
        remaining = before["remainingNUMANodeResources"]
        assert all(not amount.startswith("-") for amounts in remaining.values() for amount in amounts.values())
    shared_world.restart()
    assert shared_world.numa_page() == before


def test_a_reservation_counts_with_what_its_owners_left() -> None:
    holdings = NodeHoldings()
    holdings.add("r", Holding(0b1111, {0: {"cpu": 4000, "memory": 10}, 1: {"cpu": 0}}))
    holdings.add("p", Holding(0b10011, {0: {"cpu": 3000, "memory": 20}}, reservation="r"))
    assert holdings.counted["r"] == Holding(0b1100, {0: {"cpu": 1000, "memory": 0}, 1: {"cpu": 0}})
    assert holdings.refs == dict.fromkeys(range(5), 1)
    assert holdings.zones == {0: {"cpu": 4000, "memory": 20}, 1: {"cpu": 0}}
    holdings.remove("r")
    assert holdings.zones[0] == {"cpu": 3000, "memory": 20}


@given(st.permutations(range(4)), st.data())
def test_the_order_in_which_holdings_arrive_does_not_matter(order: list[int], data: st.DataObject) -> None:
    masks = st.integers(0, 255)
    reserved = Holding(data.draw(masks), {0: {"cpu": 8000}})
    owners = [Holding(data.draw(masks), {0: {"cpu": 1000 * n}}, reservation="r") for n in range(3)]
    entries = [("r", reserved), *((f"p{at}", owner) for at, owner in enumerate(owners))]
    holdings = NodeHoldings()
    for at in order:
        holdings.add(*entries[at])
    assert holdings.counted["r"] == left_by(reserved, owners)
    with holdings.without(["r"]):
        assert "r" not in holdings.counted
    assert holdings.counted["r"] == left_by(reserved, owners)
    for at in order:
        holdings.remove(entries[at][0])
    assert (holdings.cpus, holdings.refs, holdings.counted, holdings.given) == (0, {}, {}, {})
    assert not any(amount for amounts in holdings.zones.values() for amount in amounts.values())
