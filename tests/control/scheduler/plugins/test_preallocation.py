"""Reservations that take over running pods (spec 06 §4.9)."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from control.reservation.model import parse
from control.reservation.preallocation import choose, score_of
from control.scheduler.config.args import PreAllocationConfig, ReservationArgs
from control.scheduler.cycle.failures import FitError
from control.scheduler.cycle.placement import Placement
from koordlet.api import names
from koordlet.api.core import Pod
from koordlet.api.crs.reservation import Reservation
from koordlet.kube import Conflict, PatchKind
from tests.control.reservation.reservationbuild import pod, reservation
from tests.control.scheduler.plugins.reservationworld import ReservationWorld, available

REQUIRED = {names.LABEL_PRE_ALLOCATION_REQUIRED: "true"}
SEVERAL = {"enableMultiple": True}
WEB = [{"labelSelector": {"matchLabels": {"app": "web"}}}]
CLUSTER = ReservationArgs(pre_allocation_config=PreAllocationConfig(enable_cluster_mode=True))
ALONE = ReservationArgs(pre_allocation_config=PreAllocationConfig(prefer_no_pre_allocated_pods=True))


class PatchingWorld(ReservationWorld):
    """Its client patches the annotations of the stored pods like the API server. `refuse`: names of pods."""

    def __init__(self, *cpus: int, args: ReservationArgs | None = None) -> None:
        self.refuse: set[str] = set()
        self.registry = CollectorRegistry()
        super().__init__(*cpus, args=args, client=self)

    async def patch(self, of: type[Any], name: str, namespace: str, *, body: Any, kind: PatchKind) -> Pod:
        assert (of, kind) == (Pod, PatchKind.MERGE)
        live = self.stored[Pod][f"{namespace}/{name}"]
        meta, change = live.metadata, body["metadata"]
        if name in self.refuse or change["resourceVersion"] != meta.resource_version or change["uid"] != meta.uid:
            raise Conflict(409)
        merged = {**meta.annotations, **change["annotations"]}
        annotations = {key: text for key, text in merged.items() if text is not None}
        changed = msgspec.structs.replace(
            meta, annotations=annotations, resource_version=str(int(meta.resource_version) + 1)
        )
        patched: Pod = msgspec.structs.replace(live, metadata=changed)
        self.put(patched)
        return patched

    def running(self, name: str, cpu: int = 2, app: str = "web", node: str = "n0", **more: Any) -> None:
        labels = {"app": app, **more.pop("labels", {})}
        self.put(pod(name, cpu=cpu, node=node, labels=labels, **more))

    def taken(self, **of: Any) -> list[str] | str:
        """Schedule a reservation: the pods that it takes over, or why it has no node."""
        taker = taking(**of)
        self.put(taker)
        try:
            placement = self.place(taker)
        except FitError as failure:
            return failure.text()
        status = asyncio.run(self.plugin.pre_bind(placement.state, placement.pod, placement.row, placement.pod.pod))
        assert status.ok, status
        self.put(available(self.reservation(taker.metadata.name), placement.node))
        return self.owners()

    def owners(self) -> list[str]:
        return [pod.metadata.name for pod in self.stored[Pod].values() if self.owner_of(pod.metadata.name)]


def taking(name: str = "r1", cpu: int = 6, several: bool = False, **of: Any) -> Reservation:
    policy = {**(SEVERAL if several else {}), **of.pop("mode", {})}
    spec = {"owners": WEB, "allocateOnce": False, "labels": REQUIRED, "allocatePolicy": "Restricted", **of}
    return reservation(name, cpu=cpu, preAllocation=True, preAllocationPolicy=policy, **spec)


def two_running(**more: Any) -> PatchingWorld:
    """A node with 8 CPUs, of which a and b use 5."""
    world = PatchingWorld(8, **more)
    world.running("a", 2)
    world.running("b", 3)
    return world


@pytest.mark.parametrize(
    ("of", "result"),
    [
        pytest.param({}, ["b"], id="the fullest reservation"),
        pytest.param({"cpu": 8}, "node(s) no pod(s) to meet the pre-allocation requirements", id="none is enough"),
        pytest.param({"cpu": 8, "several": True}, ["a", "b"], id="several together"),
        pytest.param({"cpu": 6, "several": True}, ["b"], id="not more than needed"),
        pytest.param({"cpu": 2}, ["a"], id="a larger pod is left"),
        pytest.param({"cpu": 1}, "Reservation(s) Insufficient cpu", id="too small"),
        pytest.param({"owners": [{"object": {"name": "a"}}]}, "no pod match reservation", id="no selector"),
        pytest.param({"cpu": 9, "labels": {}}, "Insufficient cpu", id="larger than the node"),
        pytest.param({"cpu": 3, "labels": {}, "owners": [{"object": {"name": "x"}}]}, [], id="free room is enough"),
        pytest.param({"cpu": 3, "labels": {}}, ["b"], id="not required, but taken"),
        pytest.param({"taints": [{"key": "t", "effect": "NoSchedule"}]}, "no pod match", id="taint"),
    ],
)
def test_which_pods_are_taken_over(of: dict[str, Any], result: list[str] | str) -> None:
    world = two_running()
    taken = world.taken(**of)
    assert taken == result if isinstance(result, list) else result in taken
    if isinstance(result, list):
        used = sum({"a": 2000, "b": 3000}[name] for name in result)
        assert world.requested() == 5000 + 1000 * of.get("cpu", 6) - used
        assert world.used("r1") == ({"cpu": used} if used else {})


def test_without_pods_if_the_node_has_room_and_that_is_preferred() -> None:
    assert two_running(args=ALONE).taken(cpu=3, labels={}) == []
    assert two_running(args=ALONE).taken(cpu=6, labels={}) == ["b"]


def test_cluster_mode_takes_labelled_pods_by_priority() -> None:
    world = PatchingWorld(8, args=CLUSTER)
    marked = {names.LABEL_IS_PRE_ALLOCATABLE: "true"}
    for name, cpu, priority in (("a", 1, "5"), ("b", 2, "9223372036854775808"), ("c", 3, "-1"), ("d", 1, "6")):
        annotations = {names.ANNOTATION_PRE_ALLOCATABLE_PRIORITY: priority}
        world.running(name, cpu, app="any", labels=marked, annotations=annotations)
    world.running("e", 1, app="web")
    assert world.taken(cpu=4, several=True, mode={"mode": "Cluster"}) == ["a", "b", "d"]


def test_pods_of_other_reservations_stay_with_them() -> None:
    world = two_running()
    assert world.taken() == ["b"]
    assert "no pod(s) to meet" in world.taken(name="r2", cpu=6)
    assert world.taken(name="r3", cpu=2) == ["a", "b"]
    assert [world.owner_of(name) for name in ("a", "b")] == ["r3", "r1"]


def test_a_pod_that_needs_another_reservation_is_no_candidate() -> None:
    world = PatchingWorld(8)
    world.running("a", annotations={names.ANNOTATION_RESERVATION_AFFINITY: json.dumps({"name": "other"})})
    assert "no pod match" in world.taken(cpu=6)
    world.running("b", annotations={names.ANNOTATION_RESERVATION_AFFINITY: json.dumps({"name": "r2"})})
    assert world.taken(name="r2", cpu=6) == ["b"]


def test_nodes_where_fewer_pods_are_taken_over_are_preferred() -> None:
    world = PatchingWorld(8, 8)
    world.running("a", 2)
    world.running("b", 2)
    world.running("c", 4, node="n1")
    assert [score_of(count) for count in (0, 1, 3)] == [100, 50, 25]
    assert world.taken(cpu=7, several=True) == ["c"]


def placed(world: PatchingWorld, taker: Reservation) -> Placement:
    world.put(taker)
    return world.place(taker)


async def test_a_failed_binding_leaves_nothing() -> None:
    world = two_running()
    before = world.requested()
    placement = placed(world, taking(cpu=8, several=True))
    assert world.requested() == 8000
    world.refuse.add("a")
    status = await world.plugin.pre_bind(placement.state, placement.pod, placement.row, placement.pod.pod)
    assert "pod default/a to be taken over" in status.message
    assert world.owners() == ["b"]
    world.refuse.clear()
    world.cycle.release(placement)
    await asyncio.gather(*world.plugin._annotations._tasks)
    assert world.owners() == []
    assert world.requested() == before


async def test_a_killed_scheduler_takes_the_annotated_pods_again() -> None:
    """Some annotations are written, the reservation has no node yet."""
    world = two_running()
    placement = placed(world, taking(cpu=8, several=True))
    world.refuse.add("a")
    await world.plugin.pre_bind(placement.state, placement.pod, placement.row, placement.pod.pod)
    world.refuse.clear()
    world.restart()
    assert world.owners() == ["b"]
    again = world.place(world.reservation("r1"))
    status = await world.plugin.pre_bind(again.state, again.pod, again.row, again.pod.pod)
    assert status.ok
    world.put(available(world.reservation("r1"), again.node))
    assert world.owners() == ["a", "b"]
    assert world.requested() == 8000


async def test_a_pod_that_another_scheduler_gave_away_is_not_taken() -> None:
    world = two_running()
    placement = placed(world, taking())
    foreign = {names.ANNOTATION_RESERVATION_ALLOCATED: '{"name": "foreign", "uid": "uid-foreign"}'}
    world.running("b", 3, annotations=foreign)
    status = await world.plugin.pre_bind(placement.state, placement.pod, placement.row, placement.pod.pod)
    assert "uses reservation foreign" in status.message


def test_a_changed_reservation_is_evaluated_again() -> None:
    world = two_running()
    world.put(taking(cpu=6, owners=[{"labelSelector": {"matchLabels": {"app": "none"}}}]))
    with pytest.raises(FitError):
        world.place(world.reservation("r1"))
    world.put(taking(cpu=6))
    info = world.cluster.info(world.plugin.subject.current(world.waiting(world.reservation("r1"))))  # type: ignore[arg-type]
    info.subject = "Reservation"
    assert world.cycle.place(info).node == "n0"


@given(
    st.lists(st.integers(0, 6), max_size=5),
    st.integers(1, 8),
    st.integers(0, 8),
    st.booleans(),
)
def test_what_is_chosen_fits(cpus: list[int], amount: int, free: int, several: bool) -> None:
    """The choice fits the reservation and the node; without one no single pod would do."""
    model = parse(taking(cpu=amount, several=several))
    choice = choose(
        model, [{"cpu": 1000 * cpu} for cpu in cpus], lambda used: 1000 * amount - used["cpu"] <= 1000 * free
    )
    total = sum(cpus[at] for at in choice.chosen)
    if choice.chosen:
        assert total <= amount <= free + total
        assert len(set(choice.chosen)) == len(choice.chosen) and (several or len(choice.chosen) == 1)
    else:
        assert not any(cpu <= amount <= free + cpu for cpu in cpus)
