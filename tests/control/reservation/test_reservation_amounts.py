"""The arithmetic of reservations: worked examples of spec 06 §4.5 and §4.6, and what hostile amounts do."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control.reservation.amounts import (
    MAX_AMOUNT,
    Shortage,
    allocated,
    available,
    restricted_shortages,
    score,
)
from control.reservation.model import parse
from control.reservation.reservepod import DEFAULT_PRIORITY, FAKE_CONTAINER, reserve_pod
from koordlet.api import names
from koordlet.api.core.podresources import is_terminated, pod_requests
from tests.control.reservation.reservationbuild import reservation

GI = 1 << 30


def test_the_worked_example_of_a_node_with_32_cpus() -> None:
    """R1 reserves 8, its owner uses 4, another pod uses 10: the record of the node is 22, and 18 is booked."""
    used = allocated([{"cpu": 4_000}], ["cpu"])
    requested = 10_000 + 4_000 + available({"cpu": 8_000}, used, {})["cpu"]
    remained = available({"cpu": 8_000}, used, {})["cpu"]
    assert (32_000 - requested + remained, 32_000 - requested) == (18_000, 14_000)
    short = restricted_shortages({"cpu": 16_000}, ["cpu"], {"cpu": 8_000}, used, {})
    assert [shortage.text(figures=False) for shortage in short] == ["Reservation(s) Insufficient cpu"]
    assert (
        short[0].text(figures=True) == "Reservation(s) Insufficient cpu, requested: 16000, used: 4000, capacity: 8000"
    )


def test_restricted_amounts() -> None:
    fits = restricted_shortages
    limits: dict[str, Any] = {"resources": ["cpu"], "allocatable": {"cpu": 8, "memory": 4}, "used": {}, "reserved": {}}
    assert fits({"cpu": 8, "memory": 100}, **limits) == []
    assert fits({"cpu": 9}, **limits) == [Shortage("cpu", 9, 0, 8)]
    assert fits({"cpu": 0}, **{**limits, "used": {"cpu": 9}}) == []
    assert fits({"cpu": 7}, **{**limits, "reserved": {"cpu": 2}}) == [Shortage("cpu", 7, 0, 6)]
    with_pods = {**limits, "allocatable": {"cpu": 8, "pods": 1}}
    assert [shortage.text(figures=True) for shortage in fits({"cpu": 1}, **with_pods, owners=1)] == [
        "Reservation(s) Too many pods, requested: 1, used: 1, capacity: 1"
    ]


@pytest.mark.parametrize(
    ("capacity", "used", "requests", "expected"),
    [
        ({"cpu": 4_000, "memory": 8 * GI}, {}, {"cpu": 2_000, "memory": 4 * GI}, 50),
        ({"cpu": 2_000, "memory": 4 * GI}, {}, {"cpu": 2_000, "memory": 4 * GI}, 100),
        (
            {"cpu": 2_000, "memory": 4 * GI},
            {"cpu": 2_000, "memory": 3 * GI},
            {"cpu": 2_000, "memory": 4 * GI},
            0,
        ),
        ({"cpu": 4_000, "gpu": 0}, {"cpu": 1_000}, {}, 25),
        ({}, {}, {"cpu": 1}, 0),
    ],
)
def test_scores(capacity: dict[str, int], used: dict[str, int], requests: dict[str, int], expected: int) -> None:
    assert score(requests, capacity, used) == expected


AMOUNTS = st.dictionaries(st.sampled_from(("cpu", "memory", "gpu", "pods")), st.integers(0, MAX_AMOUNT))


@given(capacity=AMOUNTS, owners=st.lists(AMOUNTS, max_size=4), reserved=AMOUNTS, pod=AMOUNTS)
def test_nothing_is_offered_twice(
    capacity: dict[str, int], owners: list[dict[str, int]], reserved: dict[str, int], pod: dict[str, int]
) -> None:
    used = allocated(owners, capacity)
    rest = available(capacity, used, reserved)
    kept = available(capacity, used, {})
    for name, amount in capacity.items():
        assert 0 <= rest[name] <= kept[name] <= amount
        assert max(used.get(name, 0), amount) == used.get(name, 0) + kept[name]
    assert 0 <= score(pod, capacity, used) <= 100
    if not restricted_shortages(pod, capacity, capacity, used, {}, owners=0):
        assert all(pod.get(name, 0) == 0 or pod[name] <= rest_of for name, rest_of in kept.items() if name != "pods")


def test_the_reserve_pod_of_a_pending_reservation() -> None:
    shown = reserve_pod(
        reservation(
            labels={"a": "1"},
            template={
                "metadata": {"labels": {"a": "0", "b": "2"}, "namespace": "team"},
                "spec": {"nodeName": "n7", "containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]},
            },
        )
    )
    assert (shown.metadata.uid, shown.metadata.namespace) == ("uid-r1", "team")
    assert shown.metadata.labels == {"a": "1", "b": "2"}
    assert (shown.spec.node_name, shown.spec.priority, shown.spec.scheduler_name) == (
        "",
        DEFAULT_PRIORITY,
        "default-scheduler",
    )
    assert shown.metadata.annotations == {
        names.ANNOTATION_RESERVE_POD: "true",
        names.ANNOTATION_RESERVATION_NAME: "r1",
        names.ANNOTATION_RESERVATION_NODE: "n7",
    }


@pytest.mark.parametrize(("label", "priority"), [("7", 7), ("x", DEFAULT_PRIORITY), ("99999999999", DEFAULT_PRIORITY)])
def test_the_priority_label(label: str, priority: int) -> None:
    assert reserve_pod(reservation(labels={names.LABEL_PRIORITY: label})).spec.priority == priority


def test_the_size_of_an_available_reservation_is_its_allocatable() -> None:
    shown = reserve_pod(reservation(cpu=8, node="n1", allocatable={"cpu": "6", "memory": "1Gi"}))
    assert shown.spec.node_name == "n1"
    assert [container.name for container in shown.spec.containers] == ["c", FAKE_CONTAINER]
    assert {name: str(amount) for name, amount in pod_requests(shown).items()} == {"cpu": "6", "memory": "1Gi"}


def test_a_resize_annotation_counts_before_binding() -> None:
    size = {names.ANNOTATION_RESERVATION_RESIZE_ALLOCATABLE: '{"resources": {"cpu": "12"}}'}
    assert parse(reservation(cpu=8, annotations=size)).amounts == {"cpu": 12_000}
    assert {name: str(amount) for name, amount in pod_requests(reserve_pod(reservation(annotations=size))).items()} == {
        "cpu": "12"
    }


@pytest.mark.parametrize("allocatable", [{}, {"cpu": "2"}])
def test_only_the_status_counts_after_binding(allocatable: dict[str, str]) -> None:
    """A later template or resize annotation takes no room. An operator resizes by the status (spec 06 §4.2)."""
    size = {names.ANNOTATION_RESERVATION_RESIZE_ALLOCATABLE: '{"resources": {"cpu": "64"}}'}
    bound = reservation(cpu=32, node="n1", allocatable=allocatable, annotations=size)
    assert parse(bound).amounts == {name: int(amount) * 1000 for name, amount in allocatable.items()}
    assert {name: str(amount) for name, amount in pod_requests(reserve_pod(bound)).items()} == allocatable


@pytest.mark.parametrize("of", [{"owners": []}, {"ttl": None}, {"phase": "Failed"}, {"phase": "Succeeded"}])
def test_what_is_not_scheduled_is_a_terminated_pod(of: dict[str, Any]) -> None:
    assert is_terminated(reserve_pod(reservation(**of)))


@pytest.mark.parametrize(("amount", "counted"), [("-5", 0), ("1e30", MAX_AMOUNT), ("0", 0)])
def test_absurd_amounts_are_bounded(amount: str, counted: int) -> None:
    assert parse(reservation(cpu=amount)).amounts == {"cpu": counted}


def test_restricted_options_narrow_the_counted_resources() -> None:
    options = {names.ANNOTATION_RESERVATION_RESTRICTED_OPTIONS: '{"resources": ["memory", "gpu"]}'}
    model = parse(reservation(memory="4Gi", allocatePolicy="Restricted", annotations=options))
    assert model.restricted == ("memory",)
    nothing = {names.ANNOTATION_RESERVATION_RESTRICTED_OPTIONS: '{"resources": ["gpu"]}'}
    assert parse(reservation(allocatePolicy="Restricted", annotations=nothing)).restricted == ("cpu",)
