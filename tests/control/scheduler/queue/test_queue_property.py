"""After any history every pod is in exactly one place of the queue, and all counts match (spec 05 §3.3)."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from control.scheduler.framework.plugin import ClusterEvent, EventInterest
from control.scheduler.framework.status import SUCCESS, PluginStatus, unschedulable
from control.scheduler.state.pods import PodInfo
from tests.control.scheduler.queue.scene import Scene
from tests.present import present

PLUGINS = ("A", "B", "Silent")
EVENTS = (ClusterEvent("Node", "Add"), ClusterEvent("Node", "Label"), ClusterEvent("AssignedPod", "Delete"))


class Queue(RuleBasedStateMachine):
    """Drives a queue as a scheduler would, beside a plain account of what must hold."""

    def __init__(self) -> None:
        super().__init__()
        self.closed: set[str] = set()
        self.scene = Scene(
            {
                "A": [EventInterest("Node", frozenset(("Add",)))],
                "B": [EventInterest("*", hint=lambda pod, old, new: pod.priority > 2)],
                "Gate": [EventInterest("Node")],
            },
            [("Gate", self.gate)],
        )
        self.known: dict[str, PodInfo] = {}
        self.out: dict[str, PodInfo] = {}
        self.popped: dict[str, int] = {}
        self.number = 0

    def gate(self, pod: PodInfo) -> PluginStatus:
        return unschedulable("closed") if pod.uid in self.closed else SUCCESS

    pods = Bundle("pods")

    @rule(target=pods, priority=st.integers(0, 4), closed=st.booleans())
    def add(self, priority: int, closed: bool) -> str:
        self.number += 1
        name = f"p{self.number}"
        if closed:
            self.closed.add(f"uid-{name}")
        pod = self.scene.add(name, priority=priority)
        self.known[pod.uid] = pod
        self.popped[pod.uid] = 0
        return name

    @rule(name=pods, priority=st.integers(0, 4), label=st.sampled_from(["", "x"]))
    def update(self, name: str, priority: int, label: str) -> None:
        old = self.known.get(f"uid-{name}")
        if old is not None:
            new = self.scene.info(name, priority=priority, labels={"l": label})
            self.scene.queue.update(old, new)
            self.known[new.uid] = new

    @rule(target=pods, name=consumes(pods), gone=st.booleans())
    def delete(self, name: str, gone: bool) -> object:
        uid = f"uid-{name}"
        if not gone or uid not in self.known:
            return name
        self.scene.queue.delete(self.known.pop(uid))
        return multiple()

    @rule(limit=st.integers(1, 4))
    def pop(self, limit: int) -> None:
        counts = self.scene.queue.counts()
        before = {uid: self.scene.place(pod) for uid, pod in self.known.items()}
        run = self.scene.queue.pop_run(limit)
        assert bool(run) == (counts["active"] > 0 or "backoff" in before.values())
        for pod in run:
            assert pod is self.known[pod.uid]
            assert before[pod.uid] in ("active", "backoff")
            assert pod.shape is run[0].shape
            self.popped[pod.uid] += 1
            assert pod.attempts == self.popped[pod.uid]
            self.out[pod.uid] = pod
        if counts["active"] and run:
            assert before[run[0].uid] == "active"

    @rule(data=st.data(), plugins=st.sets(st.sampled_from(PLUGINS)), pending=st.booleans())
    def fail(self, data: st.DataObject, plugins: set[str], pending: bool) -> None:
        if not self.out:
            return
        uid = data.draw(st.sampled_from(sorted(self.out)))
        pod = self.out.pop(uid)
        before = self.scene.queue.record(uid)
        failures = (before.errors, before.rejections) if before is not None else (0, 0)
        place = self.scene.queue.requeue(pod, plugins, plugins if pending else ())
        assert (place is None) == (uid not in self.known)
        after = self.scene.queue.record(uid)
        if after is not None:
            expected = (0, failures[1] + 1) if plugins else (failures[0] + 1, failures[1])
            assert (after.errors, after.rejections) == expected
            assert after.backoff(1, 10) == min(10, 2 ** ((after.errors or after.rejections) - 1))

    @rule(data=st.data())
    def bind(self, data: st.DataObject) -> None:
        if self.out:
            uid = data.draw(st.sampled_from(sorted(self.out)))
            pod = self.out.pop(uid)
            self.scene.queue.done(uid)
            self.scene.queue.delete(self.known.pop(uid, pod))

    @rule(event=st.sampled_from(EVENTS))
    def move(self, event: ClusterEvent) -> None:
        self.scene.queue.move(event)

    @rule(name=pods)
    def activate(self, name: str) -> None:
        self.scene.queue.activate([f"default/{name}"])

    @rule(name=pods)
    def open(self, name: str) -> None:
        self.closed.discard(f"uid-{name}")

    @rule(seconds=st.sampled_from([0.3, 1.0, 5.0, 400.0]))
    def time(self, seconds: float) -> None:
        self.scene.now += seconds
        self.scene.queue.flush_backoff()
        self.scene.queue.flush_leftover()
        for pod in self.known.values():
            record = self.scene.queue.record(pod.uid)
            assert record is not None
            if self.scene.place(pod) in ("backoff", "error"):
                assert record.timestamp + record.backoff(1, 10) > self.scene.now - 1
            if self.scene.place(pod) == "unschedulable":
                assert record.timestamp >= self.scene.now - 300

    @invariant()
    def everybody_is_somewhere(self) -> None:
        queue = self.scene.queue
        places = [self.scene.place(pod) for pod in self.known.values()]
        counts = queue.counts()
        assert len(queue) == len(self.known)
        assert counts["active"] == places.count("active")
        assert counts["backoff"] == places.count("backoff") + places.count("error")
        assert counts["unschedulable"] == places.count("unschedulable")
        assert counts["gated"] == places.count("gated")
        assert {
            uid for uid in self.known if present(queue.record(uid)).place.value == "out"
        } == self.out.keys() & self.known.keys()
        if not self.out:
            assert queue.inflight_events == 0


Queue.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestQueue = Queue.TestCase
