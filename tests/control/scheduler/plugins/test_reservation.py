"""Reservation in whole cycles: life cycle, matching, fit, nomination, scores and reasons (spec 06 §4)."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from control.scheduler.config.args import ReservationArgs
from control.scheduler.cycle.failures import FitError
from control.scheduler.explain.podreport import explain
from control.scheduler.framework.plugin import CycleState
from control.scheduler.framework.status import Code
from control.scheduler.plugins.defaultpreemption import DefaultPreemption
from control.scheduler.plugins.reservation.owners import EventOwners
from koordlet.api import names
from koordlet.api.core import Container, Node, Pod
from koordlet.api.crs.reservation import Reservation
from koordlet.api.gates import SCHEDULER
from koordlet.app.gates import FeatureGates
from tests.control.reservation.reservationbuild import pod, reservation
from tests.control.scheduler.build import node
from tests.control.scheduler.plugins.reservationworld import POINTS, ReservationWorld

AFFINITY = names.ANNOTATION_RESERVATION_AFFINITY
WEB = [{"labelSelector": {"matchLabels": {"app": "web"}}}]


def web(name: str = "p", cpu: int = 4, **more: Any) -> Any:
    return pod(name, cpu=cpu, labels={"app": "web", **more.pop("labels", {})}, **more)


def needs(**affinity: Any) -> dict[str, str]:
    return {AFFINITY: json.dumps(affinity)}


# Life cycle


def test_a_reservation_is_scheduled_and_holds_its_room() -> None:
    world = ReservationWorld(4, 16)
    assert world.schedule(reservation(cpu=8, owners=WEB)) == "n1"
    assert world.requested("n1") == 8_000
    assert world.waiting(world.reservation("r1")) is None
    assert "Insufficient cpu" in world.schedule(pod("other", cpu=9))


@pytest.mark.parametrize("phase", ["Failed", "Succeeded"])
def test_a_finished_reservation_releases_its_room(phase: str) -> None:
    world = ReservationWorld(16)
    world.schedule(reservation(cpu=8))
    done = world.reservation("r1")
    world.put(msgspec.structs.replace(done, status=msgspec.structs.replace(done.status, phase=phase)))
    assert world.requested() == 0
    assert world.page() == []
    world.delete(world.reservation("r1"))
    assert world.requested() == 0
    assert not world.book.rooms


def test_a_reservation_that_loses_its_node_is_queued_again() -> None:
    world = ReservationWorld(16)
    world.schedule(reservation(cpu=8))
    world.put(reservation(cpu=8))
    assert world.requested() == 0
    assert world.waiting(world.reservation("r1")) is not None
    assert world.retry(world.reservation("r1")) == "n0"


def test_a_reservation_that_moves_takes_its_room_along() -> None:
    world = ReservationWorld(16, 16)
    world.put(reservation(cpu=8, node="n0"))
    world.put(reservation(cpu=8, node="n1"))
    assert (world.requested("n0"), world.requested("n1")) == (0, 8_000)
    assert [item["name"] for item in world.page("n1")] == ["r1"]
    assert world.page("n0") == []


def test_an_invalid_reservation_is_ignored() -> None:
    world = ReservationWorld(16)
    world.put(reservation(owners=[]))
    assert world.waiting(world.reservation("r1")) is None
    world.put(reservation("r2", cpu=4, node="n0", owners=[{"labelSelector": {"matchLabels": {"a": "!"}}}]))
    assert world.requested() == 4_000  # it holds its room, but no pod matches it
    assert "labelSelector" in world.page()[0]["problem"]
    assert world.schedule(pod(labels={"a": "!"})) == "n0"
    assert world.owner_of("p") == ""


def test_a_reservation_of_another_scheduler_is_not_queued_but_counted() -> None:
    world = ReservationWorld(16)
    world.put(reservation(scheduler="other"))
    assert world.waiting(world.reservation("r1")) is None
    world.put(reservation(scheduler="other", node="n0"))
    assert world.requested() == 8_000


def test_the_template_may_name_the_node() -> None:
    world = ReservationWorld(16, 16)
    template = {
        "spec": {
            "nodeName": "n1",
            "schedulerName": "koord-scheduler",
            "containers": [{"name": "c", "resources": {"requests": {"cpu": "20"}}}],
        }
    }
    text = world.schedule(reservation(template=template))
    assert "1 node(s) didn't match the nodeName specified by reservation" in text or "2 Insufficient cpu" in text
    template["spec"]["containers"] = [{"name": "c", "resources": {"requests": {"cpu": "2"}}}]
    assert world.schedule(reservation("r2", template=template)) == "n1"


# Owners


def test_an_owner_uses_the_room_of_its_reservation() -> None:
    world = ReservationWorld(10)
    world.schedule(reservation(cpu=8, owners=WEB, allocateOnce=False))
    assert "Insufficient cpu" in world.schedule(pod("other", cpu=4))
    assert world.schedule(web(cpu=4)) == "n0"
    assert world.owner_of("p") == "r1"
    assert world.used("r1") == {"cpu": 4_000}
    assert world.requested() == 8_000  # reserved and used are counted once
    assert world.schedule(web("q", cpu=6)) == "n0"  # 4 of the reservation and 2 of the node
    assert world.requested() == 10_000
    world.delete(world.pod("q"))
    world.delete(world.pod("p"))
    assert world.requested() == 8_000
    assert world.used("r1") == {}


def test_an_owner_that_outlives_its_reservation_keeps_what_it_uses() -> None:
    world = ReservationWorld(10)
    world.schedule(reservation(cpu=8, owners=WEB))
    world.schedule(web(cpu=4))
    world.delete(world.reservation("r1"))
    assert world.requested() == 4_000
    world.delete(world.pod("p"))
    assert world.requested() == 0
    assert not world.book.rooms


def test_a_reservation_for_one_pod_is_used_once() -> None:
    """Scenario 5 of spec 06 §8.1."""
    world = ReservationWorld(10)
    world.schedule(reservation(cpu=8, owners=WEB))
    assert world.schedule(web(cpu=4)) == "n0"
    assert "Insufficient cpu" in world.schedule(web("q", cpu=4))
    assert world.schedule(web("s", cpu=2)) == "n0"  # room of the node
    assert world.owner_of("s") == ""


@pytest.mark.parametrize(
    ("policy", "other", "result"),
    [
        ("", 0, "n0"),
        ("Aligned", 0, "n0"),
        ("Restricted", 0, "Reservation(s) Insufficient cpu"),
        ("Aligned", 3, "Insuf"),
    ],
)
def test_the_worked_example_of_the_policies(policy: str, other: int, result: str) -> None:
    """A node with 32 CPUs, R1 reserves 8, P1 uses 4 of them, P2 uses 10: 18 are left for an owner, 14 for others."""
    world = ReservationWorld(32)
    world.schedule(reservation(cpu=8, owners=WEB, allocateOnce=False, allocatePolicy=policy))
    world.schedule(web("p1", cpu=4))
    world.schedule(pod("p2", cpu=10 + other))
    assert "Insufficient" in world.schedule(pod("p4", cpu=15))
    text = world.schedule(web("p3", cpu=16, annotations=needs()))
    assert result in text
    if policy == "Restricted":
        assert world.schedule(pod("p5", cpu=14)) == "n0"


def test_a_restricted_reservation_is_not_exceeded_and_the_node_may_serve_instead() -> None:
    world = ReservationWorld(32)
    world.schedule(reservation(cpu=8, owners=WEB, allocateOnce=False, allocatePolicy="Restricted"))
    assert world.schedule(web("big", cpu=20)) == "n0"
    assert world.owner_of("big") == ""
    assert world.requested() == 28_000
    assert world.schedule(web("small", cpu=8)) == "n0"
    assert world.owner_of("small") == "r1"
    assert "Insufficient cpu" in world.schedule(web("late", cpu=5))


def test_an_ignoring_pod_uses_booked_room_without_consuming_it() -> None:
    """Scenario 10 of spec 06 §8.1."""
    world = ReservationWorld(8)
    world.schedule(reservation(cpu=8, owners=WEB))
    assert "Insufficient cpu" in world.schedule(pod("plain", cpu=1))
    daemon = pod("daemon", cpu=1, labels={names.LABEL_RESERVATION_IGNORED: "true"})
    assert world.schedule(daemon) == "n0"
    assert world.owner_of("daemon") == ""
    assert world.used("r1") == {}


def test_inner_reserved_amounts_are_for_nobody() -> None:
    world = ReservationWorld(8)
    inner = {names.ANNOTATION_NODE_RESERVATION: json.dumps({"resources": {"cpu": "3"}})}
    world.schedule(reservation(cpu=8, owners=WEB, allocateOnce=False, annotations=inner))
    assert "Insufficient cpu by node" in world.schedule(web(cpu=6))
    assert world.schedule(web("q", cpu=5)) == "n0"


def test_pod_slots_and_host_ports_of_a_reservation() -> None:
    world = ReservationWorld(8, pods_per_node=1)
    port = {"name": "c", "ports": [{"containerPort": 80, "hostPort": 80}], "resources": {"requests": {"cpu": "2"}}}
    template = {"spec": {"schedulerName": "koord-scheduler", "containers": [port]}}
    world.schedule(reservation(template=template, owners=WEB, allocateOnce=False))
    owner = web()
    owner.spec.containers = reservation(template=template).spec.template.spec.containers
    assert world.schedule(owner) == "n0"
    assert world.page()[0]["allocatedPorts"] == {"0.0.0.0": [{"protocol": "TCP", "port": 80}]}
    second = web("q")
    second.spec.containers = owner.spec.containers
    assert "free ports" in world.schedule(second)


def test_the_reserve_pod_is_no_obstacle_for_its_own_owner() -> None:
    """Template and owner have the same anti-affinity, as when a pod is migrated."""
    term = {"labelSelector": {"matchLabels": {"app": "web"}}, "topologyKey": "kubernetes.io/hostname"}
    container = {"name": "c", "resources": {"requests": {"cpu": "4"}}}
    body = {
        "schedulerName": "koord-scheduler",
        "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}},
        "containers": [container],
    }
    world = ReservationWorld(8)
    world.schedule(reservation(template={"metadata": {"labels": {"app": "web"}}, "spec": body}, owners=WEB))
    affinity = world.reservation("r1").spec.template.spec.affinity
    stranger, owner = pod("x", cpu=1, labels={"app": "web", "team": "b"}, annotations=needs(name="r2")), web(cpu=4)
    stranger.spec.affinity = owner.spec.affinity = affinity
    assert "no reservations match" in world.schedule(stranger)
    assert world.schedule(owner) == "n0"
    assert world.owner_of("p") == "r1"
    assert world.requested() == 4_000
    second = web("q", cpu=1)
    second.spec.affinity = affinity
    assert "anti-affinity" in world.schedule(second)


# Conditions of the pod


def test_a_pod_with_an_affinity_needs_a_reservation() -> None:
    world = ReservationWorld(32)
    text = world.schedule(web(annotations=needs(name="r1")))
    assert text.startswith("0/1 nodes are available: node(s) no reservations match reservation affinity. ")
    world.schedule(reservation("r1", cpu=8, owners=WEB, labels={"zone": "a"}, allocateOnce=False))
    world.schedule(reservation("r2", cpu=8, owners=WEB, unschedulable=True))
    world.schedule(reservation("r3", cpu=8, owners=[{"object": {"name": "nobody"}}]))
    assert world.schedule(web("q", annotations=needs(reservationSelector={"zone": "a"}))) == "n0"
    assert world.owner_of("q") == "r1"
    text = world.schedule(web("s", annotations=needs(reservationSelector={"zone": "b"})))
    assert text == (
        "0/1 nodes are available: node(s) no reservations match reservation affinity. "
        "1 Reservation(s) didn't match affinity rules, 1 Reservation(s) is unschedulable, "
        "2 Reservation(s) matched owner total, "
        "preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling."
    )
    big = world.schedule(web("t", cpu=40, annotations=needs(name="r1")))
    assert "1 Reservation(s) exactly matches the requested reservation name" in big
    assert "1 Reservation(s) didn't match the requested reservation name" in big


def test_figures_for_a_pod_that_names_the_reservation() -> None:
    world = ReservationWorld(32)
    world.schedule(reservation(cpu=8, owners=WEB, allocateOnce=False, allocatePolicy="Restricted"))
    world.schedule(web(cpu=4))
    text = world.schedule(web("q", cpu=6, annotations=needs(name="r1")))
    assert "Reservation(s) Insufficient cpu, requested: 6000, used: 4000, capacity: 8000" in text


@pytest.mark.parametrize(
    ("annotation", "text"),
    [(AFFINITY, "{"), (names.ANNOTATION_EXACT_MATCH_RESERVATION, '{"resourceNames": 7}')],
)
def test_a_malformed_annotation_ends_only_the_cycle_of_its_pod(annotation: str, text: str) -> None:
    world = ReservationWorld(32)
    assert annotation in world.schedule(pod(annotations={annotation: text}))
    assert world.schedule(pod("q")) == "n0"


def test_a_pending_pod_cannot_claim_a_reservation_by_annotation() -> None:
    world = ReservationWorld(10)
    world.schedule(reservation(cpu=8, owners=WEB))
    claims = {names.ANNOTATION_RESERVATION_ALLOCATED: json.dumps({"name": "r1", "uid": "uid-r1"})}
    assert "Insufficient cpu" in world.schedule(pod("thief", cpu=4, annotations=claims))
    assert world.schedule(pod("small", cpu=2, annotations=claims)) == "n0"
    assert world.owner_of("small") == ""
    assert world.requested() == 10_000


@pytest.mark.parametrize("in_template", [False, True])
def test_a_reservation_is_no_owner_of_another_one(in_template: bool) -> None:
    """Its annotation is its author's. It would take the room of the other reservation, and the node would be full."""
    world = ReservationWorld(8)
    world.schedule(reservation("r1", cpu=8, owners=WEB))
    container = {"name": "c", "resources": {"requests": {"cpu": "6"}}}
    template: dict[str, Any] = {"spec": {"schedulerName": "koord-scheduler", "containers": [container]}}
    if in_template:
        template["metadata"] = {"annotations": allocated("r1")}
    annotations = {} if in_template else allocated("r1")
    world.put(reservation("r2", cpu=6, node="n0", template=template, annotations=annotations))
    assert world.requested() == 14_000
    assert world.used("r1") == {}
    room = world.book.rooms["uid-r1"]
    assert (room.offered, room.owners) == (True, {})
    before = world.page()
    world.restart()
    assert (world.requested(), world.page()) == (14_000, before)


def test_an_owner_on_another_node_takes_no_room() -> None:
    world = ReservationWorld(8, 8)
    world.put(reservation(cpu=8, node="n0", owners=WEB, allocatePolicy="Restricted", extra={"pods": "1"}))
    late = web(cpu=8, annotations=needs())
    world.put(late)
    version = world.book.version
    world.put(web("elsewhere", cpu=2, node="n1", annotations=allocated("r1")))
    assert world.book.version > version
    assert world.book.rooms["uid-r1"].offered
    assert world.requested("n0") == 8_000
    assert world.retry(late) == "n0"
    assert not world.book.rooms["uid-r1"].offered


# Nodes that arrive


@pytest.mark.parametrize("number", [1, 20])
def test_nodes_that_arrive_are_compared_for_a_pod_that_waits(number: int) -> None:
    world = ReservationWorld(16)
    world.schedule(reservation(cpu=4, owners=WEB))
    assert "Insufficient cpu" in world.schedule(web(cpu=20))
    world.put(*(node(f"new{at}", cpu="32", memory="64Gi", pods=110) for at in range(number)))
    assert world.retry(world.pod("p")).startswith("new")


def test_a_pod_that_needs_a_reservation_is_rejected_on_nodes_that_arrive() -> None:
    world = ReservationWorld(16)
    world.schedule(reservation(cpu=4, owners=WEB))
    assert world.schedule(web(cpu=20, annotations=needs())).startswith("0/1 nodes are available: ")
    world.put(*(node(f"new{at}", cpu="32", memory="64Gi", pods=110) for at in range(20)))
    assert world.retry(world.pod("p")).startswith("0/21 nodes are available: ")


# Choice


def test_the_nominated_reservation() -> None:
    world = ReservationWorld(64)
    world.put(reservation("b", cpu=8, owners=WEB, node="n0", allocateOnce=False))
    world.put(reservation("a", cpu=16, owners=WEB, node="n0", allocateOnce=False))
    world.schedule(web("p1", cpu=4))
    assert world.owner_of("p1") == "b"  # fuller afterwards
    world.put(reservation("c", cpu=32, owners=WEB, node="n0", labels={names.LABEL_RESERVATION_ORDER: "5"}))
    world.schedule(web("p2", cpu=4))
    assert world.owner_of("p2") == "c"  # an order comes first
    world.put(reservation("0", cpu=8, owners=WEB, node="n0", allocateOnce=False))
    world.delete(world.pod("p1"))
    world.schedule(web("p3", cpu=4))
    assert world.owner_of("p3") == "0"  # equal scores: the first name


def test_nodes_with_better_reservations_win() -> None:
    world = ReservationWorld(64, 64, 64)
    world.put(reservation("half", cpu=8, owners=WEB, node="n1", allocateOnce=False))
    assert world.schedule(web("p1", cpu=4)) == "n1"
    world.put(reservation("full", cpu=4, owners=WEB, node="n2", allocateOnce=False, allocatePolicy="Restricted"))
    assert world.schedule(web("p2", cpu=4)) in ("n1", "n2")
    world.put(reservation("ordered", cpu=40, owners=WEB, node="n0", labels={names.LABEL_RESERVATION_ORDER: "1"}))
    assert world.schedule(web("p3", cpu=1)) == "n0"
    assert world.owner_of("p3") == "ordered"


def test_the_owner_by_name_is_no_matter_of_the_shape() -> None:
    """Two equal pods share cached results, but only one is the owner."""
    world = ReservationWorld(4, 4)
    world.put(reservation("for-b", cpu=4, owners=[{"object": {"name": "b"}}], node="n1"))
    assert world.schedule(pod("a", cpu=2)) == "n0"
    assert world.schedule(pod("b", cpu=4)) == "n1"
    assert "Insufficient cpu" in world.schedule(pod("c", cpu=4))


@pytest.mark.parametrize(
    "selector",
    [
        {"matchLabels": {"apps.kubernetes.io/pod-index": "1"}},
        {"matchExpressions": [{"key": "apps.kubernetes.io/pod-index", "operator": "In", "values": ["1"]}]},
    ],
)
def test_a_label_of_one_replica_is_no_matter_of_the_shape(selector: dict[str, Any]) -> None:
    world = ReservationWorld(4, 4)
    world.put(reservation("for-1", cpu=4, owners=[{"labelSelector": selector}], node="n1"))
    replicas = [pod(f"p{at}", cpu=2, labels={"apps.kubernetes.io/pod-index": str(at)}) for at in range(2)]
    assert [world.schedule(replica) for replica in replicas] == ["n0", "n1"]
    assert (world.owner_of("p0"), world.owner_of("p1")) == ("", "for-1")


def test_owners_that_come_later_count_for_pods_of_a_known_shape() -> None:
    world = ReservationWorld(2, 8)
    world.put(reservation("other", cpu=1, owners=[{"labelSelector": {"matchLabels": {"app": "db"}}}], node="n0"))
    assert world.schedule(pod("a", cpu=1, labels={"app": "web"})) == "n1"
    world.put(reservation("web", cpu=1, owners=WEB, node="n0"))
    assert world.schedule(web("b", cpu=1)) == "n0"
    assert world.owner_of("b") == "web"


def test_policies_do_not_share_a_node() -> None:
    world = ReservationWorld(32)
    world.schedule(reservation("d", cpu=4))
    assert "policy conflict" in world.schedule(reservation("a", cpu=4, allocatePolicy="Aligned"))
    assert world.schedule(reservation("d2", cpu=4)) == "n0"


def test_policies_do_not_share_a_node_while_they_are_bound() -> None:
    world = ReservationWorld(32)
    world.put(reservation("d", cpu=4))
    world.put(reservation("a", cpu=4, allocatePolicy="Aligned"))
    world.place(world.reservation("d"))
    with pytest.raises(FitError) as failure:
        world.place(world.reservation("a"))
    assert "policy conflict" in failure.value.text()


@pytest.mark.parametrize("ignored", [[], ["example.com"]])
def test_ignored_resources_are_not_compared(ignored: list[str]) -> None:
    """No node has the resource, because another plugin counts it; NodeResourcesFit is off here."""
    points = {**POINTS, "filter": ("Reservation",)}
    world = ReservationWorld(8, args=ReservationArgs(ignored_resource_groups=ignored), points=points)
    gpu = {"example.com/gpu": "4"}
    world.put(reservation(cpu=4, extra=gpu, owners=WEB, allocatePolicy="Restricted", allocateOnce=False, node="n0"))
    text = world.schedule(web(cpu=1, extra={"example.com/gpu": "5"}, annotations=needs()))
    assert text == "n0" if ignored else "Reservation(s) Insufficient example.com/gpu" in text


# Restart, resize


def test_a_restart_rebuilds_the_state_in_any_order() -> None:
    """Scenario 1 of spec 06 §8.1."""
    world = ReservationWorld(32, 16)
    world.schedule(reservation("r1", cpu=8, owners=WEB, allocateOnce=False))
    world.schedule(reservation("r2", cpu=4, owners=WEB))
    for number in range(4):
        world.schedule(web(f"p{number}", cpu=3))
    before = [world.page("n0"), world.page("n1"), world.requested("n0"), world.requested("n1")]
    for order in ((Node, Reservation, Pod), (Pod, Reservation, Node), (Reservation, Pod, Node)):
        world.restart(order)
        assert [world.page("n0"), world.page("n1"), world.requested("n0"), world.requested("n1")] == before


def test_a_resized_reservation_offers_its_new_amount() -> None:
    world = ReservationWorld(32)
    of: dict[str, Any] = {"cpu": 8, "owners": WEB, "allocateOnce": False, "allocatePolicy": "Restricted"}
    world.schedule(reservation(**of))
    world.schedule(web(cpu=4))
    world.put(reservation(**of, node="n0", allocatable={"cpu": "2"}))
    assert world.requested() == 4_000  # the owner uses more than is offered now
    assert "Reservation(s) Insufficient cpu" in world.schedule(web("q", cpu=1, annotations=needs()))
    world.put(reservation(**of, node="n0", allocatable={"cpu": "12"}))
    assert world.requested() == 12_000
    assert world.schedule(web("s", cpu=8, annotations=needs())) == "n0"


def test_a_pod_is_woken_when_its_reservation_is_offered_again() -> None:
    """Until then NodeResourcesFit rejects it, and no plugin but Reservation knows what it waits for."""
    world = ReservationWorld(8)
    closed: dict[str, Any] = {"cpu": 8, "owners": WEB, "node": "n0"}
    world.put(reservation(unschedulable=True, **closed))
    late = web(cpu=4)
    world.put(late)
    info = world.waiting(late)
    assert info is not None
    with pytest.raises(FitError) as failure:
        world.cycle.place(info)
    assert failure.value.plugins() == {"NodeResourcesFit", "Reservation"}
    plugin = world.plugin
    assert not plugin._may_help(info, None, reservation("r2", owners=[{"object": {"name": "q"}}]))
    opened = reservation(**closed)
    old = world.reservation("r1")
    world.put(opened)
    assert plugin._may_help(info, old, opened)
    counted = msgspec.structs.replace(opened, status=msgspec.structs.replace(opened.status, allocated={}))
    world.put(counted)
    assert not plugin._may_help(info, opened, counted)
    assert world.retry(late) == "n0"


def test_a_malformed_reservation_wakes_no_pod() -> None:
    """The hint is called for every waiting shape, so the owners are parsed once per version."""
    world = ReservationWorld(2)
    world.put(web(cpu=4))
    info = world.waiting(world.pod("p"))
    assert info is not None
    malformed = reservation(owners=[*WEB, {"labelSelector": {"matchExpressions": [{"key": "a", "operator": "Near"}]}}])
    good = reservation("r2", owners=WEB)
    hint = world.plugin._may_help
    assert not hint(info, None, malformed)
    assert hint(info, malformed, good)
    owners = EventOwners()
    assert owners.of(malformed) == ()
    assert owners.of(good) is owners.of(good)


# Preemption


class Evictions:
    """Deletes victims from the world at once."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def evict(self, victims: Any, *, by: Any, message: str) -> None:
        self.names += [victim.name for victim in victims]

    def clear_nominations(self, pods: Any) -> None:
        return

    def evicting_for(self, uid: str) -> bool:
        return False


def preempting(*cpus: int) -> tuple[ReservationWorld, Evictions]:
    points = {**POINTS, "postFilter": ("Reservation",)}
    evictions = Evictions()
    args = ReservationArgs(enable_preemption=True)
    return ReservationWorld(*cpus, args=args, points=points, evictor=evictions), evictions


def important(subject: Any) -> Any:
    subject.spec.priority = 1000
    return subject


def test_an_owner_preempts_another_owner_of_a_restricted_reservation() -> None:
    world, evictions = preempting(16)
    world.schedule(reservation(cpu=8, owners=WEB, allocateOnce=False, allocatePolicy="Restricted"))
    world.schedule(web("low", cpu=6))
    world.schedule(pod("stranger", cpu=8))
    incoming = important(web("high", cpu=8, annotations=needs()))
    assert "Insufficient cpu" in world.schedule(incoming)
    assert evictions.names == ["low"]  # room of the stranger would not be room of the reservation
    world.delete(world.pod("low"))
    assert world.retry(incoming) == "n0"
    assert world.owner_of("high") == "r1"


def test_a_reservation_preempts_pods_and_is_never_a_victim() -> None:
    world, evictions = preempting(8)
    world.schedule(reservation("old", cpu=2, owners=WEB))
    world.schedule(pod("low", cpu=3))
    world.schedule(pod("kept", cpu=3, labels={names.LABEL_DISABLE_PREEMPTIBLE: "true"}))
    assert "Insufficient cpu" in world.schedule(reservation("new", cpu=3, owners=WEB))
    assert evictions.names == ["low"]
    text = world.schedule(important(pod("high", cpu=8)))
    assert text.endswith("preemption: 0/1 nodes are available: 1 Insufficient cpu.")


@pytest.mark.parametrize("points", [POINTS, {**POINTS, "postFilter": ("DefaultPreemption",)}])
def test_without_the_argument_no_pod_is_removed_for_a_reservation(points: Any) -> None:
    evictions = Evictions()
    world = ReservationWorld(8, points=points, evictor=evictions)
    world.schedule(pod("low", cpu=6))
    new = reservation("new", cpu=6, owners=WEB)
    text = world.schedule(new)
    assert text == "0/1 nodes are available: 1 Insufficient cpu."
    assert evictions.names == []
    info = world.waiting(new)
    assert info is not None
    with pytest.raises(FitError) as failure:
        world.cycle.place(info)
    preemption = world.cycle.framework.plugins["DefaultPreemption"]
    assert isinstance(preemption, DefaultPreemption)
    assert preemption.would_displace(CycleState(), info, failure.value) == []
    assert "Insufficient cpu" in world.schedule(important(pod("high", cpu=6)))
    assert evictions.names == ["low"]  # a pod still preempts


# Without the fit of the node


def inner_reserved(cpu: int) -> dict[str, str]:
    return {names.ANNOTATION_NODE_RESERVATION: json.dumps({"resources": {"cpu": str(cpu)}})}


def test_the_gate_decides_alike_in_filter_and_choice() -> None:
    """Else the pod would be bound without the reservation, beside all that the reservation holds."""
    gates = FeatureGates(SCHEDULER)
    gates.set("SkipReservationFitsNode=true")
    world = ReservationWorld(8, gates=gates)
    world.put(reservation(cpu=8, node="n0", owners=WEB, allocateOnce=False, annotations=inner_reserved(4)))
    assert world.schedule(web(cpu=6)) == "n0"
    assert world.owner_of("p") == "r1"
    assert world.requested() == 8_000
    assert "Insufficient cpu" in world.schedule(web("q", cpu=6))


def test_a_pod_takes_no_room_of_a_reservation_that_it_does_not_use() -> None:
    world = ReservationWorld(8)
    world.put(reservation(cpu=8, node="n0", owners=WEB, allocateOnce=False))
    late = web("late", cpu=6)
    world.put(late)
    info, state = world.waiting(late), CycleState()
    assert info is not None
    assert world.plugin.before_pre_filter(state, info).ok
    assert world.plugin.nominate(state, info, 0).ok
    assert world.schedule(web(cpu=6)) == "n0"
    status = world.plugin.nominate(state, info, 0)
    assert (status.code, status.reasons) == (Code.UNSCHEDULABLE, ("Insufficient cpu by node",))


# Pre-allocation; more in test_preallocation.py

REQUIRED = {names.LABEL_PRE_ALLOCATION_REQUIRED: "true"}


@pytest.mark.parametrize(
    ("of", "result"),
    [
        ({}, "unsupported with current attributes"),
        ({"allocatePolicy": "Restricted"}, "n0"),
        ({"allocatePolicy": "Restricted", "labels": REQUIRED}, "no pod match reservation with pre allocation required"),
        ({"allocatePolicy": "Restricted", "preAllocationPolicy": {"mode": "Cluster"}}, "cluster mode"),
    ],
)
def test_attributes_of_pre_allocation(of: dict[str, Any], result: str) -> None:
    world = ReservationWorld(8)
    assert result in world.schedule(reservation(cpu=4, preAllocation=True, **of))
    assert "Insufficient cpu" in world.schedule(
        reservation("r2", cpu=9, preAllocation=True, allocatePolicy="Restricted")
    )


# Pods in operating mode


def holder(phase: str = "Running", ready: str = "True", owners: str = '[{"object": {"name": "p"}}]') -> Any:
    running = pod(
        "holder",
        cpu=6,
        node="n0",
        labels={names.LABEL_OPERATING_MODE: "Reservation"},
        annotations={names.ANNOTATION_RESERVATION_OWNERS: owners},
    )
    running.status = msgspec.convert(
        {"phase": phase, "conditions": [{"type": "Ready", "status": ready}]}, type(running.status), strict=False
    )
    return running


def test_a_running_pod_in_operating_mode_is_a_reservation() -> None:
    world = ReservationWorld(8)
    world.put(holder(ready="False"))
    assert "Insufficient cpu" in world.schedule(pod(cpu=6))
    world.put(holder())
    assert world.page()[0]["kind"] == "Pod"
    assert world.retry(world.pod("p")) == "n0"
    assert world.owner_of("p") == "holder"
    assert world.requested() == 6_000
    world.restart((Pod, Node, Reservation))
    assert world.requested() == 6_000
    world.put(holder(phase="Succeeded"))
    assert world.requested() == 6_000
    world.delete(world.pod("p"))
    assert world.requested() == 0


def test_malformed_owners_of_a_pod_in_operating_mode() -> None:
    world = ReservationWorld(8)
    world.put(holder(owners="{"))
    assert names.ANNOTATION_RESERVATION_OWNERS in world.page()[0]["problem"]
    assert "Insufficient cpu" in world.schedule(pod(cpu=6))


# Explanation


def test_the_explanation_names_reservations_and_figures() -> None:
    world = ReservationWorld(16, 16)
    of: dict[str, Any] = {"cpu": 4, "owners": WEB, "allocatePolicy": "Restricted"}
    world.put(reservation("small", node="n0", allocateOnce=False, **of))
    world.put(reservation("closed", node="n0", unschedulable=True, **of))
    world.put(reservation("spent", node="n1", **of))
    world.put(reservation("wide", node="n1", allocateOnce=False, **{**of, "cpu": 8, "memory": "1Gi"}))
    world.put(web("first", cpu=3, node="n0", annotations=allocated("small")))
    world.put(web("second", cpu=3, node="n1", annotations=allocated("spent")))
    world.put(web("third", cpu=2))
    info = world.waiting(world.pod("third"))
    assert info is not None
    report = explain(world.cycle.framework, info, "active")
    assert [
        (reservation.name, reservation.node, reservation.left, reservation.result)
        for reservation in report.reservations
    ] == [
        ("wide", "n1", "cpu:8,memory:1Gi", "fits"),
        ("closed", "n0", "cpu:4", "is unschedulable"),
        ("small", "n0", "cpu:1", "Insufficient cpu, requested: 2000, used: 3000, capacity: 4000"),
        ("spent", "n1", "cpu:1", "is not offered: it is for one pod, which has used it"),
    ]


def allocated(name: str) -> dict[str, str]:
    return {names.ANNOTATION_RESERVATION_ALLOCATED: json.dumps({"name": name, "uid": f"uid-{name}"})}


def test_a_pod_without_requests_uses_a_reservation_of_nothing() -> None:
    """Descheduling makes such a Reservation for the replacement of a pod without requests."""
    spec = {"schedulerName": "koord-scheduler", "containers": [{"name": "c"}]}
    order = {"scheduling.koordinator.sh/reservation-order": "1"}
    world = ReservationWorld(16, 16, 16)
    world.put(reservation("r1", node="n1", owners=WEB, template={"spec": spec}, allocatable={}, labels=order))
    world.put(reservation("r2", node="n2", cpu=4, owners=WEB))
    bare = web("p")
    bare = msgspec.structs.replace(bare, spec=msgspec.structs.replace(bare.spec, containers=[Container(name="c")]))
    assert world.schedule(bare) == "n1"
    assert world.owner_of("p") == "r1"
    assert world.schedule(web("q", cpu=2)) == "n2"
    assert world.owner_of("q") == "r2"
