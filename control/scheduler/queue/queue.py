"""The scheduling queue as a data structure (spec 05 §3.3). Not for several threads; time comes from `now`.

A pod is in one place: active (next to be scheduled), one of two backoff lanes, waiting for an event, or out for an
attempt. It is known from `add` until `delete`, which is called when it is deleted, bound or no longer ours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from control.scheduler.framework.plugin import Event
from control.scheduler.queue.changes import EVERYTHING, pod_changes
from control.scheduler.queue.inflight import Happening, InFlight
from control.scheduler.queue.interests import HintTimed, Interests, QueueProfile, Verdict
from control.scheduler.queue.lane import Lane
from control.scheduler.queue.nominations import Nominations
from control.scheduler.queue.record import Place, Record
from control.scheduler.queue.waiting import ANYTHING, Waiting
from control.scheduler.state.pods import PodInfo

WINDOW: Final = 1.0
"""Seconds: ends of backoffs are told apart no finer, so that inside a window the important pods come first."""
LEFTOVER_SECONDS: Final = 300.0

Precheck = Callable[[PodInfo], bool]


class SchedulingQueue:
    """See the module text. `profiles` are by scheduler name; `ready` is called when there is something to pop."""

    def __init__(
        self,
        profiles: Mapping[str, QueueProfile],
        now: Callable[[], float],
        *,
        initial_backoff: float = 1.0,
        max_backoff: float = 10.0,
        leftover_seconds: float = LEFTOVER_SECONDS,
        ready: Callable[[], None] | None = None,
        incoming: Callable[[str, str], None] | None = None,
        hint_timed: HintTimed | None = None,
    ) -> None:
        """`incoming(queue, event)` is told of every arrival: active, backoff, unschedulable or gated, and why."""
        self._profiles = profiles
        self._now = now
        self._initial, self._longest, self._leftover = initial_backoff, max_backoff, leftover_seconds
        self.ready = ready
        self._incoming = incoming
        self._interests = Interests(profiles, hint_timed)
        self._records: dict[str, Record] = {}
        self._uids: dict[str, str] = {}
        self._active = Lane(Place.ACTIVE)
        self._backoff = Lane(Place.BACKOFF)
        self._errors = Lane(Place.ERROR_BACKOFF)
        self._waiting = Waiting()
        self._inflight = InFlight()
        self._nominations = Nominations()

    # -- reading -----------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Pods known, those out for an attempt included."""
        return len(self._records)

    def __contains__(self, uid: str) -> bool:
        return uid in self._records

    def pending(self, key: str) -> PodInfo | None:
        """A pod that the queue knows, by `namespace/name`."""
        uid = self._uids.get(key)
        return self._records[uid].pod if uid is not None else None

    def pods(self) -> Iterable[PodInfo]:
        return [record.pod for record in self._records.values()]

    def record(self, uid: str) -> Record | None:
        return self._records.get(uid)

    def counts(self) -> dict[str, int]:
        """Pods by queue: active, backoff, unschedulable, gated."""
        return {
            "active": len(self._active),
            "backoff": len(self._backoff) + len(self._errors),
            "unschedulable": len(self._waiting) - self._waiting.gated,
            "gated": self._waiting.gated,
        }

    def rejected_counts(self) -> dict[tuple[str, str], int]:
        """(plugin, profile) -> waiting pods that it rejected."""
        return self._waiting.counts()

    @property
    def inflight_events(self) -> int:
        return len(self._inflight.events)

    # -- pods come and go --------------------------------------------------------------------------------------------

    def add(self, pod: PodInfo) -> None:
        """A pod to be scheduled. One that is known already is updated."""
        if pod.uid in self._records:
            self.update(self._records[pod.uid].pod, pod)
            return
        before = self._uids.get(pod.key)
        if before is not None:
            self.delete(self._records[before].pod)  # a new pod of the same name: the old one is gone
        record = self._records[pod.uid] = Record(pod, self._now())
        self._uids[pod.key] = pod.uid
        self._nominations.replaced(None, pod)
        self._enter_active(record, "PodAdd")

    def update(self, old: PodInfo | None, new: PodInfo) -> None:
        """A new version of a pod; unknown pods are added."""
        record = self._records.get(new.uid)
        if record is None:
            self.add(new)
            return
        before = record.pod
        new.attempts, new.first_attempt = before.attempts, before.first_attempt
        self._nominations.replaced(old or before, new)
        place = record.place
        if place is Place.OUT:
            record.pod = new
            if new.uid in self._inflight:
                for event in pod_changes(before, new, "UnscheduledPod"):
                    self._inflight.note_for(new.uid, Happening(event, before, new))
        elif place is Place.WAITING:
            self._waiting.remove(record)
            record.pod = new
            self._reconsider(record, before, new)
        else:
            lane = self._lane(place)
            lane.remove(record)
            record.pod = new
            self._put(lane, record)

    def delete(self, pod: PodInfo) -> None:
        """Forget a pod. An attempt that is under way ends with `done` as usual, and can't bring it back."""
        record = self._records.pop(pod.uid, None)
        self._nominations.remove(pod.uid)
        if record is not None:
            self._leave(record)
            if self._uids.get(record.pod.key) == pod.uid:
                del self._uids[record.pod.key]

    def _reconsider(self, record: Record, before: PodInfo, new: PodInfo) -> None:
        """A waiting pod changed itself: does that help?"""
        best = Verdict.SKIP
        for event in pod_changes(before, new, "UnscheduledPod"):
            best = max(best, self._interests.verdict(record, event, before, new))
        if best is Verdict.SKIP:
            self._waiting.put(record)
        else:
            self._release(record, best, "PodUpdate")

    # -- attempts ----------------------------------------------------------------------------------------------------

    def pop(self) -> PodInfo | None:
        """The next pod, out for an attempt from now on; None when there is none. Out of backoff early if idle."""
        record = self._active.pop() or self._backoff.pop()
        return None if record is None else self._begin(record)

    def pop_run(self, limit: int) -> list[PodInfo]:
        """Up to `limit` pods of one shape from the head, in the order of the queue; nominated ones come alone."""
        first = self.pop()
        if first is None:
            return []
        run = [first]
        while len(run) < limit and not first.nominated:
            record = self._active.head()
            if record is None or record.pod.shape is not first.shape or record.pod.nominated:
                break
            self._active.pop()
            run.append(self._begin(record))
        return run

    def take(self, pod: PodInfo) -> None:
        """Remove a pod that is scheduled out of turn, keeping its nomination; it is out for an attempt."""
        record = self._records.get(pod.uid)
        if record is not None and record.place is not Place.OUT:
            self._leave(record)
            self._begin(record)

    def done(self, uid: str) -> None:
        """The attempt is past the point where events matter: binding began, or the pod was dropped."""
        self._inflight.end(uid)

    def requeue(self, pod: PodInfo, rejected_by: Iterable[str] = (), pending_by: Iterable[str] = ()) -> Place | None:
        """An attempt failed: by plugins, or (both empty) by an error. Where it is now; None for an unknown pod."""
        missed, forced = self._inflight.end(pod.uid)
        record = self._records.get(pod.uid)
        if record is None:
            return None
        if record.place is not Place.OUT:
            return record.place
        record.timestamp = self._now()
        record.pending_by = frozenset(pending_by)
        record.rejected_by = record.pending_by | frozenset(rejected_by)
        if record.rejected_by:
            record.rejections += 1
            record.errors = 0
        else:
            record.errors += 1
        verdict = Verdict.NOW if forced else self._replayed(record, missed)
        if verdict is Verdict.SKIP:
            self._wait(record, "ScheduleAttemptFailure")
        else:
            self._release(record, verdict, "ScheduleAttemptFailure")
        return record.place

    def _replayed(self, record: Record, missed: Iterable[Happening] | None) -> Verdict:
        """What happened during the attempt, held against why it failed."""
        if not record.rejected_by or missed is None:
            return Verdict.AFTER_BACKOFF
        best = Verdict.SKIP
        for one in missed:
            best = max(best, self._interests.verdict(record, one.event, one.old, one.new))
            if best is Verdict.NOW:
                break
        return best

    def _begin(self, record: Record) -> PodInfo:
        pod = record.pod
        pod.attempts += 1
        record.rejected_by = record.pending_by = frozenset()
        record.gated_by = ""
        self._inflight.begin(pod.uid)
        return pod

    # -- events ------------------------------------------------------------------------------------------------------

    def move(self, event: Event, old: Any = None, new: Any = None, precheck: Precheck | None = None) -> None:
        """Something happened: wake the pods that it may help. `precheck` rules pods out, one by one."""
        if not self._interests.wanted(event):
            return
        self._inflight.note(Happening(event, old, new))
        for plugin in self._waiting.plugins():
            for group in self._waiting.groups(plugin):
                first = next(iter(group.values())).pod
                helps = (
                    plugin == ANYTHING or event.resource == "*" or self._interests.helps(first, plugin, event, old, new)
                )
                if not helps:
                    continue
                for record in list(group.values()):
                    if record.place is Place.WAITING and (precheck is None or precheck(record.pod)):
                        verdict = Verdict.AFTER_BACKOFF
                        if record.pending_by:  # rare: whether one of those is convinced, too
                            verdict = self._interests.verdict(record, event, old, new)
                        self._waiting.remove(record)
                        self._release(record, verdict, event.resource + event.action)

    def activate(self, keys: Iterable[str]) -> None:
        """Bring pods (`namespace/name`) into the active queue at once; those out for an attempt when they come back."""
        for key in keys:
            uid = self._uids.get(key)
            if uid is None:
                continue
            record = self._records[uid]
            if record.place is Place.OUT:
                if uid in self._inflight:
                    self._inflight.force(uid)
            elif record.place is Place.WAITING:
                self._waiting.remove(record)
                self._enter_active(record, "ForceActivate")
            elif record.place is not Place.ACTIVE:
                self._lane(record.place).remove(record)
                self._push_active(record, "ForceActivate")

    def flush_backoff(self) -> None:
        """Pods whose backoff is over become active; due every second."""
        for lane in (self._backoff, self._errors):
            while (record := lane.head()) is not None and not self._backing_off(record):
                lane.remove(record)
                self._push_active(record, "BackoffComplete")

    def flush_leftover(self) -> None:
        """Pods that have waited long for an event are tried anyway, unless still gated; due every 30 seconds."""
        oldest = self._now() - self._leftover
        for record in [record for record in self._waiting if record.timestamp < oldest]:
            self._waiting.remove(record)
            self._release(record, Verdict.AFTER_BACKOFF, "UnschedulableTimeout")

    def wake_all(self) -> None:
        """Try every waiting pod again, after its backoff."""
        self.move(EVERYTHING)

    # -- nominations -------------------------------------------------------------------------------------------------

    def nominate(self, pod: PodInfo, node: str) -> None:
        """Note a nomination in memory; "" clears it."""
        self._nominations.set(pod, node)

    def renominate(self, pod: PodInfo) -> None:
        """The pod lost a node that it was given: its nomination is again what it was before."""
        self._nominations.set(pod, self._nominations.of(pod.uid) or pod.pod.status.nominated_node_name)

    def nominations(self) -> Mapping[str, Sequence[PodInfo]]:
        """Nodes that pods are nominated to, and the pods."""
        return self._nominations.by_node()

    def nominated_on(self, node: str) -> Iterable[PodInfo]:
        return self._nominations.by_node().get(node, ())

    def nominated_nodes(self) -> Iterable[str]:
        """Nodes that some pod is nominated to."""
        return self._nominations.by_node().keys()

    # -- places ------------------------------------------------------------------------------------------------------

    def _release(self, record: Record, verdict: Verdict, event: str) -> None:
        """Out of waiting, or back from an attempt: to the active queue, or to serve what is left of the backoff."""
        if verdict is Verdict.NOW or not self._backing_off(record):
            self._enter_active(record, event)
        elif self._passes(record, event):
            lane = self._errors if record.errors else self._backoff
            self._put(lane, record)
            self._told("backoff", event)

    def _enter_active(self, record: Record, event: str) -> None:
        if self._passes(record, event):
            self._push_active(record, event)

    def _push_active(self, record: Record, event: str) -> None:
        if record.pod.first_attempt is None:
            record.pod.first_attempt = self._now()
        self._put(self._active, record)
        self._told("active", event)

    def _put(self, lane: Lane, record: Record) -> None:
        key = self._profile(record.pod).sort_key(record.pod, record.timestamp)
        lane.put(record, key if lane is self._active else (self._backoff_window(record), key))
        if self.ready is not None and lane is not self._errors:
            self.ready()

    def _passes(self, record: Record, event: str) -> bool:
        """Whether every gate lets the pod in; else it waits for the gate's events."""
        for plugin, gate in self._profile(record.pod).gates:
            if not gate(record.pod).ok:
                record.gated_by = plugin
                self._wait(record, event)
                return False
        record.gated_by = ""
        return True

    def _wait(self, record: Record, event: str) -> None:
        self._waiting.put(record)
        self._told("gated" if record.gated_by else "unschedulable", event)

    def _leave(self, record: Record) -> None:
        if record.place is Place.WAITING:
            self._waiting.remove(record)
        elif record.place is not Place.OUT:
            self._lane(record.place).remove(record)

    def _lane(self, place: Place) -> Lane:
        return {Place.ACTIVE: self._active, Place.BACKOFF: self._backoff, Place.ERROR_BACKOFF: self._errors}[place]

    def _backoff_window(self, record: Record) -> int:
        return math.floor((record.timestamp + record.backoff(self._initial, self._longest)) / WINDOW)

    def _backing_off(self, record: Record) -> bool:
        if not record.errors and not record.rejections:
            return False
        return self._backoff_window(record) >= math.floor(self._now() / WINDOW)

    def _profile(self, pod: PodInfo) -> QueueProfile:
        return self._profiles[pod.shape.scheduler]

    def _told(self, queue: str, event: str) -> None:
        if self._incoming is not None:
            self._incoming(queue, event)
