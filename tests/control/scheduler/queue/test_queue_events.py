"""The pods that an event wakes: hints, prechecks, events during an attempt (spec 05 §3.3-4, -7)."""

from __future__ import annotations

from typing import Any

import pytest

from control.scheduler.framework.plugin import ClusterEvent, EventInterest
from control.scheduler.queue import QueuePlace
from control.scheduler.queue.changes import node_changes
from control.scheduler.queue.inflight import InFlight
from control.scheduler.queue.interests import concerns
from control.scheduler.state.pods import PodInfo
from tests.control.scheduler.build import node
from tests.control.scheduler.queue.scene import Scene

ADD, LABEL, TAINT = ClusterEvent("Node", "Add"), ClusterEvent("Node", "Label"), ClusterEvent("Node", "Taint")


@pytest.mark.parametrize(
    ("resource", "actions", "event", "expected"),
    [
        ("Node", (), ADD, True),
        ("Node", ("Add",), ADD, True),
        ("Node", ("Update",), ADD, False),
        ("Node", ("Update",), LABEL, True),
        ("Node", ("Taint",), LABEL, False),
        ("*", (), ADD, True),
        ("Pod", ("Delete",), ClusterEvent("AssignedPod", "Delete"), True),
        ("Pod", (), ClusterEvent("UnscheduledPod", "Label"), True),
        ("AssignedPod", (), ClusterEvent("UnscheduledPod", "Label"), False),
        ("nodemetrics.v1alpha1.slo.koordinator.sh", (), ADD, False),
    ],
)
def test_interests_name_events(resource: str, actions: tuple[str, ...], event: ClusterEvent, expected: bool) -> None:
    assert concerns(EventInterest(resource, frozenset(actions)), event) is expected


def says(answer: bool | Exception) -> list[EventInterest]:
    def hint(pod: PodInfo, old: Any, new: Any) -> bool:
        if isinstance(answer, Exception):
            raise answer
        return answer

    return [EventInterest("Node", frozenset(("Add",)), hint)]


@pytest.mark.parametrize(
    ("answers", "pending", "expected"),
    [
        ({"A": False}, [], "unschedulable"),
        ({"A": True}, [], "backoff"),
        ({"A": ValueError("broken")}, [], "backoff"),
        ({"A": False, "B": True}, [], "backoff"),
        ({"A": True}, ["A"], "active"),
        ({"A": True, "B": True}, ["B"], "active"),
        ({"A": True, "B": False}, ["B"], "backoff"),
        ({}, [], "unschedulable"),
    ],
    ids=["skip", "queue", "raises", "one-of-two", "pending", "pending-too", "pending-not", "no-interest"],
)
@pytest.mark.parametrize("during", [False, True], ids=["waiting", "in-flight"])
def test_hints_decide(answers: dict[str, bool | Exception], pending: list[str], expected: str, *, during: bool) -> None:
    scene = Scene({name: says(answer) for name, answer in answers.items()} | {"Other": says(True)})
    pod = scene.add("a")
    scene.queue.pop()
    plugins = list(answers) or ["Unknown"]
    if during:
        scene.queue.move(ADD)
        scene.queue.requeue(pod, plugins, pending)
    else:
        scene.queue.requeue(pod, plugins, pending)
        scene.queue.move(ADD)
    assert scene.place(pod) == expected


def test_after_the_backoff_an_event_makes_active() -> None:
    scene = Scene({"A": says(True)})
    pod = scene.failed("a", "A")
    scene.now += 2
    scene.queue.move(ADD)
    assert scene.place(pod) == "active"


def test_events_before_an_attempt_are_not_replayed() -> None:
    scene = Scene({"A": says(True)})
    other, pod = scene.add("o", priority=9), scene.add("a")
    assert scene.queue.pop() is other
    scene.queue.move(ADD)
    scene.queue.pop()
    assert scene.queue.requeue(pod, ["A"]) is QueuePlace.WAITING
    assert scene.queue.requeue(other, ["A"]) is QueuePlace.BACKOFF
    assert scene.queue.inflight_events == 0


def test_events_after_done_are_not_recorded() -> None:
    scene = Scene({"A": says(True)})
    pod = scene.add("a")
    scene.queue.pop()
    scene.queue.done(pod.uid)
    scene.queue.move(ADD)
    assert scene.queue.inflight_events == 0
    assert scene.queue.requeue(pod, ["A"]) is QueuePlace.WAITING


def test_a_change_of_the_pod_itself_during_its_attempt_counts() -> None:
    scene = Scene({"A": [EventInterest("UnscheduledPod", frozenset(("Label",)))]})
    pod = scene.add("a")
    scene.queue.pop()
    new = scene.info("a", labels={"x": "y"})
    scene.queue.update(pod, new)
    assert scene.queue.requeue(pod, ["A"]) is QueuePlace.BACKOFF
    assert scene.queue.pop() is new
    assert new.attempts == 2


def test_a_log_that_is_too_short_counts_as_help(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(InFlight, "MAX_EVENTS", 4)
    scene = Scene({"A": says(False)})
    pod = scene.add("a")
    scene.queue.pop()
    for _ in range(20):
        scene.queue.move(ADD)
    assert scene.queue.inflight_events <= 4
    assert scene.queue.requeue(pod, ["A"]) is QueuePlace.BACKOFF


def test_prechecks_rule_pods_out() -> None:
    scene = Scene({"A": says(True)})
    small, big = scene.failed("small", "A", cpu="1"), scene.failed("big", "A", cpu="9")
    scene.queue.move(ADD, precheck=lambda pod: pod.requests["cpu"] < 5000)
    assert (scene.place(small), scene.place(big)) == ("backoff", "unschedulable")


def test_a_precheck_tells_equal_pods_apart() -> None:
    scene = Scene({"A": says(True)})
    first, second = scene.failed("first", "A"), scene.failed("second", "A")
    assert first.shape is second.shape
    scene.queue.move(ADD, precheck=lambda pod: pod.uid != first.uid)
    assert (scene.place(first), scene.place(second)) == ("unschedulable", "backoff")


def test_a_wildcard_event_wakes_every_rejected_pod() -> None:
    scene = Scene()
    pod = scene.failed("a", "Unknown")
    scene.queue.move(ClusterEvent("*", "*"))
    assert scene.place(pod) == "backoff"


def test_a_hint_is_called_once_for_equal_pods() -> None:
    hinted = []
    scene = Scene({"A": [EventInterest("Node", hint=lambda pod, old, new: hinted.append(pod) is not None)]})  # type: ignore[func-returns-value]
    for number in range(10):
        scene.failed(f"p{number}", "A")
    scene.queue.move(ADD)
    assert len(hinted) == 1


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, []),
        ({"labels": {"zone": "a"}}, ["Label"]),
        ({"taints": [{"key": "k", "effect": "NoSchedule"}]}, ["Taint"]),
        ({"unschedulable": True}, ["Taint"]),
        ({"cpu": "9", "annotations": {"a": "b"}}, ["Allocatable", "Annotation"]),
    ],
    ids=["heartbeat", "label", "taint", "cordon", "two"],
)
def test_node_updates_become_events_by_part(change: dict[str, Any], expected: list[str]) -> None:
    assert [event.action for event in node_changes(node("n"), node("n", **change))] == expected
