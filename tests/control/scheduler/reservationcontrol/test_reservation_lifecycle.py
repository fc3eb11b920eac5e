"""Expiry, status and garbage collection of Reservations as tables and as laws (spec 06 §4.8)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from control.reservation.amounts import bounded
from control.reservation.expiry import expiry
from control.scheduler.reservationcontrol.clockjumps import HOLD_S, ClockJumps
from control.scheduler.reservationcontrol.lifecycle import (
    TERMINAL,
    ConsumingPod,
    collectable,
    next_status,
    requeue_after,
)
from control.scheduler.reservationcontrol.metrics import ReservationGauges
from koordlet.api.crs.reservation import FAILED, SUCCEEDED, Reservation
from koordlet.api.encoding import wire
from koordlet.api.encoding.wire import Time
from tests.fakeclock import FakeClock

CREATED = 1_700_000_000
HOUR = 3600


def at(seconds: float) -> str:
    return str(Time.from_unix(CREATED + seconds))


def reservation(phase: str = "Available", *, node: str = "n1", spec: Any = None, **status: Any) -> Reservation:
    """Created at `CREATED`, with 4 cores and 8 Gi on `node`."""
    container = {"name": "c", "resources": {"requests": {"cpu": "4", "memory": "8Gi"}}}
    body = {
        "metadata": {"name": "r", "uid": "u", "creationTimestamp": at(0), "resourceVersion": "1"},
        "spec": {"template": {"spec": {"containers": [container]}}, "owners": [{}], "ttl": "1h", **(spec or {})},
        "status": {
            "phase": phase,
            "nodeName": node,
            "allocatable": {"cpu": "4", "memory": "8Gi"} if node else {},
            "conditions": [
                {"type": "Scheduled", "status": "True", "reason": "Scheduled", "lastTransitionTime": at(1)},
                {
                    "type": "Ready",
                    "status": "True",
                    "reason": "Available",
                    "lastProbeTime": at(1),
                    "lastTransitionTime": at(1),
                },
            ]
            if node
            else [],
            **status,
        },
    }
    return wire.convert(body, Reservation)


def owner(uid: str = "a", **requests: int) -> ConsumingPod:
    return ConsumingPod("default", f"pod-{uid}", uid, requests or {"cpu": 1000})


def ready(status: Any) -> Any:
    return next(condition for condition in status.conditions if condition.type == "Ready")


EXPIRIES: dict[str, tuple[dict[str, Any], float | None]] = {
    "ttl since creation": ({}, HOUR),
    "ttl 0 never": ({"ttl": "0s"}, None),
    "ttl 0 wins over expires": ({"ttl": "0s", "expires": at(60)}, None),
    "the earlier one counts": ({"expires": at(60)}, 60),
    "ttl before expires": ({"expires": at(2 * HOUR)}, HOUR),
    "only expires": ({"ttl": None, "expires": at(3 * HOUR)}, 3 * HOUR),
    "default of the CRD": ({"ttl": None}, 24 * HOUR),
}


@pytest.mark.parametrize(("spec", "seconds"), EXPIRIES.values(), ids=EXPIRIES)
def test_expiry(spec: dict[str, Any], seconds: float | None) -> None:
    room = reservation(spec=spec)
    assert expiry(room) == (None if seconds is None else CREATED + seconds)


@pytest.mark.parametrize(("age", "seconds"), [(0, 15), (HOUR - 20, 15), (HOUR - 10, 10), (HOUR - 1, 3), (HOUR + 5, 3)])
def test_it_is_considered_again(age: float, seconds: float) -> None:
    assert requeue_after(reservation(), CREATED + age) == seconds
    assert requeue_after(reservation(spec={"ttl": "0s"}), CREATED + age) is None
    assert requeue_after(reservation(FAILED), CREATED + age) is None


@pytest.mark.parametrize("node", ["n1", ""], ids=["bound", "without a node"])
def test_expired(node: str) -> None:
    room = reservation("Available" if node else "Pending", node=node)
    assert next_status(room, [], CREATED + HOUR - 1, node_exists=True) == room.status
    status = next_status(room, [], CREATED + HOUR, node_exists=True)
    assert status.phase == FAILED
    condition = ready(status)
    assert (condition.status, condition.reason) == ("False", "Expired")
    assert str(condition.last_transition_time) == at(HOUR)
    assert next_status(room, [], CREATED + HOUR, node_exists=True, may_expire=False) == room.status


def test_a_condition_that_was_false_keeps_its_transition_time() -> None:
    room = reservation(
        conditions=[{"type": "Ready", "status": "False", "reason": "x", "lastTransitionTime": at(7)}],
    )
    condition = ready(next_status(room, [], CREATED + HOUR, node_exists=True))
    assert (str(condition.last_transition_time), str(condition.last_probe_time)) == (at(7), at(HOUR))


def test_a_deleted_node_fails_it_whatever_the_ttl() -> None:
    room = reservation(spec={"ttl": "0s"})
    status = next_status(room, [owner()], CREATED + 5, node_exists=False, may_expire=False)
    assert (status.phase, ready(status).reason) == (FAILED, "Expired")
    assert ready(status).message == "node n1 was deleted"
    pending = reservation("Pending", node="")
    assert next_status(pending, [], CREATED + 5, node_exists=False) == pending.status


def test_owners_and_what_they_use() -> None:
    room = reservation(spec={"allocateOnce": False})
    owners = [owner("b", cpu=1500, memory=1 << 30), owner("a", cpu=500, gpu=1)]
    status = next_status(room, owners, CREATED + 5, node_exists=True)
    assert wire.to_builtins(status.allocated) == {"cpu": "2", "memory": "1Gi"}, "only what is offered"
    assert [reference.uid for reference in status.current_owners] == ["a", "b"]
    assert status.phase == "Available"
    again = msgspec.structs.replace(room, status=status)
    assert next_status(again, owners, CREATED + 9, node_exists=True) == status
    empty = next_status(again, [], CREATED + 9, node_exists=True)
    assert (empty.allocated, empty.current_owners) == ({}, [])


def test_one_that_may_be_used_once_is_over_with_its_first_owner() -> None:
    status = next_status(reservation(), [owner()], CREATED + 9, node_exists=True)
    assert status.phase == SUCCEEDED
    condition = ready(status)
    assert (condition.status, condition.reason) == ("False", "Succeeded")
    assert (str(condition.last_probe_time), str(condition.last_transition_time)) == (at(9), at(1))
    over = msgspec.structs.replace(reservation(), status=status)
    assert next_status(over, [], CREATED + 2 * HOUR, node_exists=False) == status, "a final status stays"


GARBAGE: dict[str, tuple[Reservation, float, bool, bool]] = {
    "living": (reservation(), 9 * HOUR, True, False),
    "pending": (reservation("Pending", node=""), 9 * HOUR, True, False),
    "just succeeded": (reservation(SUCCEEDED), HOUR, True, False),
    "succeeded": (reservation(SUCCEEDED), HOUR + 2, True, True),
    "failed": (reservation(FAILED), HOUR + 2, True, True),
    "failed before it was bound": (reservation(FAILED, node=""), HOUR + 1, True, True),
    "failed and its node is gone": (reservation(FAILED), 2, False, True),
    "living and its node is gone": (reservation(), 2, False, False),
}


@pytest.mark.parametrize(("room", "age", "node_exists", "expected"), GARBAGE.values(), ids=GARBAGE)
def test_garbage(room: Reservation, age: float, node_exists: bool, expected: bool) -> None:
    assert collectable(room, CREATED + age, HOUR, node_exists=node_exists) == expected


owners_lists = st.lists(
    st.builds(
        lambda uid, cpu, memory: owner(uid, cpu=cpu, memory=memory),
        st.text("abcdef", min_size=1, max_size=3),
        st.integers(0, 2**62),
        st.integers(0, 2**62),
    ),
    max_size=5,
    unique_by=lambda owner_ref: owner_ref.uid,
)


@given(
    st.sampled_from(["", "Pending", "Available", "Waiting", "Succeeded", "Failed"]),
    st.sampled_from(["n1", ""]),
    owners_lists,
    st.integers(-HOUR, 3 * HOUR),
    st.booleans(),
    st.booleans(),
)
@settings(deadline=None)
def test_laws(phase: str, node: str, owners: list[ConsumingPod], age: int, node_exists: bool, once: bool) -> None:
    room = reservation(phase, node=node, spec={"allocateOnce": once})
    now = CREATED + age
    status = next_status(room, owners, now, node_exists=node_exists)
    again = next_status(msgspec.structs.replace(room, status=status), owners, now, node_exists=node_exists)
    assert again == status, "a second look changes nothing"
    assert status.node_name == node
    assert status.allocatable == room.status.allocatable
    if phase in TERMINAL:
        assert status == room.status
    if status.phase == "Available" and node:
        assert {reference.uid for reference in status.current_owners} == {each.uid for each in owners}
        assert bounded(status.allocated).keys() <= {"cpu", "memory"}
        assert not (once and owners)
    if status.phase == FAILED and phase not in TERMINAL:
        assert now >= CREATED + HOUR or (node and not node_exists)


def test_nothing_expires_for_a_minute_after_a_jump_of_the_clock() -> None:
    clock = FakeClock()
    jumps = ClockJumps(clock)
    assert jumps.trusted()
    clock.jump(365 * 24 * HOUR)
    assert not jumps.trusted()
    clock._mono += HOLD_S - 1
    assert not jumps.trusted()
    clock.jump(-365 * 24 * HOUR)  # corrected
    assert not jumps.trusted()
    clock._mono += HOLD_S
    assert jumps.trusted()


def test_metrics() -> None:
    registry = CollectorRegistry()
    room = reservation(allocated={"cpu": "1"})
    pending = reservation("", node="")
    pending.metadata.name = "p"
    ReservationGauges.once(registry, lambda: [room, pending])
    ReservationGauges.once(registry, list)

    def value(kind: str, resource: str, unit: str) -> float | None:
        labels = {"type": kind, "name": "r", "resource": resource, "unit": unit}
        return registry.get_sample_value("scheduler_reservation_resource", labels)

    assert value("allocatable", "cpu", "core") == 4
    assert value("allocatable", "memory", "Gi") == 8
    assert (value("allocated", "cpu", "core"), value("utilization", "cpu", "ratio")) == (1, 0.25)
    assert (value("allocated", "memory", "Gi"), value("utilization", "memory", "ratio")) == (0, 0)

    def phases(name: str) -> list[str]:
        return [
            phase
            for phase in ("Pending", "Available", "Succeeded", "Failed")
            if registry.get_sample_value("scheduler_reservation_status_phase", {"name": name, "phase": phase})
        ]

    assert (phases("r"), phases("p")) == (["Available"], ["Pending"])
