"""The place of pods in the queue: order, backoff, gates, activation, updates (spec 05 §3.3)."""

from __future__ import annotations

from typing import Any

import pytest

from control.scheduler.framework.plugin import ClusterEvent, EventInterest
from control.scheduler.framework.status import SUCCESS, PluginStatus, unresolvable
from control.scheduler.queue import QueuePlace
from control.scheduler.state.pods import PodInfo
from tests.control.scheduler.queue.scene import Scene


def nominations(scene: Scene) -> dict[str, list[PodInfo]]:
    return {node: list(scene.queue.nominations.on(node)) for node in scene.queue.nominations.nodes()}


def test_the_more_important_first_then_the_earlier() -> None:
    scene = Scene()
    for name, priority in (("low", 1), ("none", None), ("high", 9), ("high2", 9)):
        scene.add(name, priority=priority)
        scene.now += 0.001
    assert scene.names() == ["high", "high2", "low", "none"]


@pytest.mark.parametrize("rejected", [True, False], ids=["rejections", "errors"])
def test_backoff_doubles_up_to_ten_seconds(rejected: bool) -> None:
    scene = Scene()
    pod = scene.add("a")
    backoffs = []
    for _ in range(6):
        assert scene.queue.pop() is pod or scene.queue.pop() is pod
        scene.queue.requeue(pod, ["Fit"] if rejected else [])
        record = scene.queue.record(pod.uid)
        assert record is not None
        backoffs.append(record.backoff(1.0, 10.0))
        scene.now += 1000
        scene.queue.flush_backoff()
        scene.queue.activate([pod.key])
    assert backoffs == [1, 2, 4, 8, 10, 10]
    assert pod.attempts == 6


def test_a_rejection_ends_a_streak_of_errors() -> None:
    scene = Scene()
    pod = scene.add("a")
    for plugins in ((), (), ("Fit",)):
        scene.queue.pop()
        scene.queue.requeue(pod, plugins)
        scene.queue.activate([pod.key])
    record = scene.queue.record(pod.uid)
    assert record is not None
    assert (record.errors, record.rejections) == (0, 1)
    assert record.backoff(1.0, 10.0) == 1


def test_errors_serve_their_backoff_even_when_nothing_else_is_there() -> None:
    scene = Scene()
    pod = scene.failed("a")
    assert scene.place(pod) == "error"
    assert scene.queue.pop() is None
    scene.now += 0.9
    scene.queue.flush_backoff()
    assert scene.queue.pop() is None
    scene.now += 1.1
    scene.queue.flush_backoff()
    assert scene.queue.pop() is pod


def test_an_idle_scheduler_takes_from_backoff_early() -> None:
    scene = Scene({"Fit": [EventInterest("Node")]})
    pod = scene.failed("a", "Fit")
    scene.queue.move(ClusterEvent("Node", "Add"))
    assert scene.place(pod) == "backoff"
    assert scene.queue.pop() is pod


def test_inside_a_window_the_important_come_out_of_backoff_first() -> None:
    scene = Scene({"Fit": [EventInterest("Node")]})
    scene.now = 100.1
    low = scene.failed("low", "Fit", priority=1)
    scene.now = 100.8
    high = scene.failed("high", "Fit", priority=5)
    scene.queue.move(ClusterEvent("Node", "Add"))
    assert [scene.queue.pop(), scene.queue.pop()] == [high, low]


def test_leftovers_are_tried_after_five_minutes() -> None:
    scene = Scene()
    pod = scene.failed("a", "Fit")
    scene.now += 299
    scene.queue.flush_leftover()
    assert scene.place(pod) == "unschedulable"
    scene.now += 2
    scene.queue.flush_leftover()
    assert scene.place(pod) == "active"


class Gate:
    """A PreEnqueue plugin that can be opened."""

    def __init__(self) -> None:
        self.open = False

    def __call__(self, pod: PodInfo) -> PluginStatus:
        return SUCCESS if self.open else unresolvable("closed")


def gated() -> tuple[Scene, Gate]:
    gate = Gate()
    return Scene({"Gate": [EventInterest("Node", frozenset(("Add",)))]}, [("Gate", gate)]), gate


def test_a_gate_keeps_a_pod_out_until_its_own_event() -> None:
    scene, gate = gated()
    pod = scene.add("a")
    assert scene.place(pod) == "gated"
    assert pod.first_attempt is None
    gate.open = True
    scene.queue.move(ClusterEvent("PersistentVolume", "Add"))
    assert scene.place(pod) == "gated"
    scene.queue.move(ClusterEvent("Node", "Add"))
    assert scene.place(pod) == "active"
    assert pod.first_attempt == 100.0
    assert scene.heard == [("gated", "PodAdd"), ("active", "NodeAdd")]


def test_a_closed_gate_holds_against_flush_event_and_activation() -> None:
    scene, _ = gated()
    pod = scene.add("a")
    scene.queue.move(ClusterEvent("Node", "Add"))
    scene.queue.activate([pod.key])
    scene.now += 1000
    scene.queue.flush_leftover()
    assert scene.place(pod) == "gated"
    assert scene.queue.counts() == {"active": 0, "backoff": 0, "unschedulable": 0, "gated": 1}


def test_pre_enqueue_runs_again_before_backoff() -> None:
    scene, gate = gated()
    gate.open = True
    pod = scene.failed("a", "Fit")
    gate.open = False
    scene.now += 1000
    scene.queue.flush_leftover()
    assert scene.place(pod) == "gated"


@pytest.mark.parametrize("plugins", [(), ("Fit",)], ids=["from-backoff", "from-unschedulable"])
def test_activation_ends_waiting_at_once(plugins: tuple[str, ...]) -> None:
    scene = Scene()
    pod = scene.failed("a", *plugins)
    scene.queue.activate(["default/a", "default/unknown"])
    assert scene.place(pod) == "active"


def test_activation_during_an_attempt_counts_when_it_fails() -> None:
    scene = Scene()
    pod = scene.add("a")
    scene.queue.pop()
    scene.queue.activate([pod.key])
    assert scene.queue.requeue(pod, ["Fit"]) is QueuePlace.ACTIVE


def test_a_queued_pod_is_not_queued_again() -> None:
    scene = Scene()
    pod = scene.failed("a", "Fit")
    assert scene.queue.requeue(pod, ["Other"]) is QueuePlace.WAITING
    record = scene.queue.record(pod.uid)
    assert record is not None
    assert (record.rejections, record.rejected_by) == (1, frozenset({"Fit"}))


def test_a_pod_deleted_during_its_attempt_does_not_come_back() -> None:
    scene = Scene()
    pod = scene.add("a")
    scene.queue.pop()
    scene.queue.delete(pod)
    assert scene.queue.requeue(pod, ["Fit"]) is None
    assert len(scene.queue) == 0
    assert scene.queue.pending(pod.key) is None


def test_a_new_pod_of_the_same_name_replaces_the_old() -> None:
    scene = Scene()
    scene.add("a")
    new = scene.info("a", metadata={"uid": "another"})
    scene.queue.add(new)
    assert scene.names() == ["a"]
    assert scene.queue.pending("default/a") is new


@pytest.mark.parametrize(
    ("change", "helps"),
    [
        ({"labels": {"app": "b"}}, "Label"),
        ({"spec": {"tolerations": [{"operator": "Exists"}]}}, "Toleration"),
        ({"cpu": "500m"}, "ScaleDown"),
        ({"status": {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False"}]}}, None),
        ({"cpu": "2"}, "Update"),
        ({"annotations": {"a": "b"}}, "Update"),
    ],
    ids=["label", "toleration", "scaled-down", "status-only", "scaled-up", "annotation"],
)
def test_an_update_wakes_a_pod_that_waits_for_it(change: dict[str, Any], helps: str | None) -> None:
    actions = ("Label", "Toleration", "ScaleDown", "GatesEliminated", "Update")
    for action in actions:
        scene = Scene({"Fit": [EventInterest("UnscheduledPod", frozenset((action,)))]})
        pod = scene.failed("a", "Fit", cpu="1")
        new = scene.info("a", **({"cpu": "1"} | change))
        scene.now += 50
        scene.queue.update(pod, new)
        waits = scene.place(new) == "unschedulable"
        # a listener to all updates hears of every part of one
        assert waits == (helps is None or action not in (helps, "Update")), action
        assert new.attempts == 1


def test_losing_its_scheduling_gates_frees_a_pod() -> None:
    def gate(pod: PodInfo) -> PluginStatus:
        return unresolvable("gated") if pod.pod.spec.scheduling_gates else SUCCESS

    scene = Scene({"Gates": [EventInterest("UnscheduledPod", frozenset(("GatesEliminated",)))]}, [("Gates", gate)])
    subject = scene.add("a", spec={"schedulingGates": [{"name": "x"}]})
    scene.queue.update(subject, scene.info("a", spec={"schedulingGates": [{"name": "x"}]}, labels={"x": "y"}))
    assert scene.queue.pop() is None
    new = scene.info("a", labels={"x": "y"})
    scene.queue.update(subject, new)
    assert scene.queue.pop() is new


def test_a_new_priority_takes_effect_in_place() -> None:
    scene = Scene()
    pod = scene.add("a", priority=1)
    scene.add("b", priority=2)
    scene.queue.update(pod, scene.info("a", priority=3))
    assert scene.names() == ["a", "b"]


def test_a_pod_taken_out_of_turn_keeps_its_nomination() -> None:
    scene = Scene()
    pod = scene.failed("a", "Fit")
    scene.queue.nominations.set(pod, "n1")
    scene.queue.take(pod)
    assert scene.place(pod) == "out"
    assert nominations(scene) == {"n1": [pod]}
    assert scene.queue.requeue(pod, ["Fit"]) is QueuePlace.WAITING


def test_a_run_has_one_shape_and_keeps_the_order() -> None:
    scene = Scene()
    for name, cpu in (("a", "1"), ("b", "1"), ("c", "2"), ("d", "1")):
        scene.add(name, cpu=cpu)
        scene.now += 1
    assert [pod.name for pod in scene.queue.pop_run(10)] == ["a", "b"]
    assert [pod.name for pod in scene.queue.pop_run(10)] == ["c"]
    assert [pod.name for pod in scene.queue.pop_run(10)] == ["d"]
    assert scene.queue.pop_run(10) == []


@pytest.mark.parametrize(
    ("before", "memory", "after", "expected"),
    [("", "", "n1", "n1"), ("", "n2", "", "n2"), ("n1", "", "", ""), ("n1", "n2", "n3", "n3"), ("n1", "n2", "", "")],
    ids=["named", "in-memory-kept", "cleared", "renamed", "cleared-by-status"],
)
def test_nominations_follow_the_status(before: str, memory: str, after: str, expected: str) -> None:
    scene = Scene()
    pod = scene.add("a", status={"nominatedNodeName": before})
    if memory:
        scene.queue.nominations.set(pod, memory)
    new = scene.info("a", status={"nominatedNodeName": after})
    scene.queue.update(pod, new)
    assert nominations(scene) == ({expected: [new]} if expected else {})
    assert new.nominated == expected
    scene.queue.delete(new)
    assert not nominations(scene)
