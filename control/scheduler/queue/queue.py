"""The scheduling queue as a data structure (spec 05 §3.3). For one thread; `now` supplies the time.

A pod is in one place: active (to be scheduled next), one of two backoff lanes, waiting for an event, or out for an
attempt. It is in the queue from `add` until `delete`, which is called when it is deleted, bound or handed to another
scheduler.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from control.scheduler.framework.plugin import ClusterEvent
from control.scheduler.queue.changes import pod_changes
from control.scheduler.queue.inflight import InFlight, InFlightEvent
from control.scheduler.queue.interests import HintTimed, Interests, QueueHint, QueueProfile
from control.scheduler.queue.lane import Lane
from control.scheduler.queue.record import QueuedPod, QueuePlace
from control.scheduler.queue.waiting import ANY_PLUGIN, UnschedulablePods
from control.scheduler.state.nominations import Nominations
from control.scheduler.state.pods import PodInfo

BACKOFF_WINDOW_S: Final = 1.0
"""Resolution of backoff ends. Pods whose backoffs end in the same window are ordered by importance."""
LEFTOVER_S: Final = 300.0

Precheck = Callable[[PodInfo], bool]


class SchedulingQueue:
    """See the module text."""

    def __init__(
        self,
        profiles: Mapping[str, QueueProfile],
        now: Callable[[], float],
        *,
        initial_backoff: float = 1.0,
        max_backoff: float = 10.0,
        leftover_seconds: float = LEFTOVER_S,
        incoming: Callable[[str, str], None] | None = None,
        hint_timed: HintTimed | None = None,
    ) -> None:
        """`profiles`: by scheduler name. `ready` is called when there is a pod to pop. `incoming(queue, event)` is
        called for every pod that enters a queue (active, backoff, unschedulable or gated), with the reason.

        A pod without an event for `leftover_seconds` is retried."""
        self._profiles = profiles
        self._now = now
        self._initial_backoff = initial_backoff
        self._max_backoff = max_backoff
        self._leftover_seconds = leftover_seconds
        self.ready: Callable[[], None] | None = None
        self._incoming = incoming
        self._interests = Interests(profiles, hint_timed)
        self._records: dict[str, QueuedPod] = {}
        """By uid."""
        self._uids: dict[str, str] = {}
        """`namespace/name` -> uid."""
        self._active = Lane(QueuePlace.ACTIVE)
        self._backoff = Lane(QueuePlace.BACKOFF)
        self._errors = Lane(QueuePlace.ERROR_BACKOFF)
        self._waiting = UnschedulablePods()
        self._inflight = InFlight()
        self.nominations = Nominations()

    # Reading

    def __len__(self) -> int:
        """Number of pods, including those out for an attempt."""
        return len(self._records)

    def __contains__(self, uid: str) -> bool:
        return uid in self._records

    def pending(self, key: str) -> PodInfo | None:
        """A pod in the queue, by `namespace/name`."""
        uid = self._uids.get(key)
        return self._records[uid].pod if uid is not None else None

    def pods(self) -> Iterable[PodInfo]:
        return [record.pod for record in self._records.values()]

    def record(self, uid: str) -> QueuedPod | None:
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
        """(plugin, profile) -> waiting pods that the plugin rejected."""
        return self._waiting.counts()

    @property
    def inflight_events(self) -> int:
        return len(self._inflight.events)

    # Adding and removing pods

    def add(self, pod: PodInfo) -> None:
        """Add a pod to be scheduled, or update it if it is in the queue."""
        if pod.uid in self._records:
            self.update(self._records[pod.uid].pod, pod)
            return
        before = self._uids.get(pod.key)
        if before is not None:
            self.delete(self._records[before].pod)  # an older pod of the same name, which was deleted
        record = self._records[pod.uid] = QueuedPod(pod, self._now())
        self._uids[pod.key] = pod.uid
        self.nominations.replaced(None, pod)
        self._enter_active(record, "PodAdd")

    def update(self, old: PodInfo | None, new: PodInfo) -> None:
        """Apply a new version of a pod, or add it."""
        record = self._records.get(new.uid)
        if record is None:
            self.add(new)
            return
        before = record.pod
        new.attempts, new.first_attempt = before.attempts, before.first_attempt
        self.nominations.replaced(old or before, new)
        place = record.place
        if place is QueuePlace.OUT:
            record.pod = new
            if new.uid in self._inflight:
                for event in pod_changes(before, new, "UnscheduledPod"):
                    self._inflight.note_for(new.uid, InFlightEvent(event, before, new))
        elif place is QueuePlace.WAITING:
            self._waiting.remove(record)
            record.pod = new
            self._reconsider(record, before, new)
        else:
            lane = self._lane(place)
            lane.remove(record)
            record.pod = new
            self._put(lane, record)

    def delete(self, pod: PodInfo) -> None:
        """Remove a pod. An attempt in progress ends with `done` as usual and does not requeue it."""
        record = self._records.pop(pod.uid, None)
        self.nominations.remove(pod.uid)
        if record is not None:
            self._leave(record)
            if self._uids.get(record.pod.key) == pod.uid:
                del self._uids[record.pod.key]

    def _reconsider(self, record: QueuedPod, before: PodInfo, new: PodInfo) -> None:
        """Release a waiting pod if its own update may help it."""
        best = QueueHint.SKIP
        for event in pod_changes(before, new, "UnscheduledPod"):
            best = max(best, self._interests.evaluate(record, event, before, new))
        if best is QueueHint.SKIP:
            self._waiting.put(record)
        else:
            self._release(record, best, "PodUpdate")

    # Attempts

    def pop(self) -> PodInfo | None:
        """Take the next pod for an attempt. If the active queue is empty, a pod in backoff is taken early."""
        record = self._active.pop() or self._backoff.pop()
        return None if record is None else self._begin(record)

    def pop_run(self, limit: int) -> list[PodInfo]:
        """Take up to `limit` pods of one shape from the head, in order. A nominated pod is taken alone."""
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
        """Take a pod for an attempt out of order. Its nomination is kept."""
        record = self._records.get(pod.uid)
        if record is not None and record.place is not QueuePlace.OUT:
            self._leave(record)
            self._begin(record)

    def done(self, uid: str) -> None:
        """Events no longer matter to the attempt: binding began, or the pod was dropped."""
        self._inflight.end(uid)

    def requeue(
        self, pod: PodInfo, rejected_by: Iterable[str] = (), pending_by: Iterable[str] = ()
    ) -> QueuePlace | None:
        """An attempt was rejected by plugins, or (both empty) failed with an error.

        Returns the place of the pod, None for an unknown pod."""
        missed, forced = self._inflight.end(pod.uid)
        record = self._records.get(pod.uid)
        if record is None:
            return None
        if record.place is not QueuePlace.OUT:
            return record.place
        record.timestamp = self._now()
        record.pending_by = frozenset(pending_by)
        record.rejected_by = record.pending_by | frozenset(rejected_by)
        if record.rejected_by:
            record.rejections += 1
            record.errors = 0
        else:
            record.errors += 1
        hint = QueueHint.NOW if forced else self._replayed(record, missed)
        if hint is QueueHint.SKIP:
            self._wait(record, "ScheduleAttemptFailure")
        else:
            self._release(record, hint, "ScheduleAttemptFailure")
        return record.place

    def _replayed(self, record: QueuedPod, missed: Iterable[InFlightEvent] | None) -> QueueHint:
        """Evaluate the events during the attempt against the plugins that rejected it."""
        if not record.rejected_by or missed is None:
            return QueueHint.AFTER_BACKOFF
        best = QueueHint.SKIP
        for event in missed:
            best = max(best, self._interests.evaluate(record, event.event, event.old, event.new))
            if best is QueueHint.NOW:
                break
        return best

    def _begin(self, record: QueuedPod) -> PodInfo:
        pod = record.pod
        pod.attempts += 1
        record.rejected_by = record.pending_by = frozenset()
        record.gated_by = ""
        self._inflight.begin(pod.uid)
        return pod

    # Events

    def move(self, event: ClusterEvent, old: Any = None, new: Any = None, precheck: Precheck | None = None) -> None:
        """Release the waiting pods that the event may help. `precheck` may exclude single pods."""
        if not self._interests.covers(event):
            return
        self._inflight.note(InFlightEvent(event, old, new))
        for plugin in self._waiting.plugins():
            for group in self._waiting.groups(plugin):
                first = next(iter(group.values())).pod
                helps = (
                    plugin == ANY_PLUGIN
                    or event.resource == "*"
                    or self._interests.helps(first, plugin, event, old, new)
                )
                if not helps:
                    continue
                for record in list(group.values()):
                    if record.place is QueuePlace.WAITING and (precheck is None or precheck(record.pod)):
                        hint = QueueHint.AFTER_BACKOFF
                        if record.pending_by:  # rare: a plugin that returned Pending may skip the backoff
                            hint = self._interests.evaluate(record, event, old, new)
                        self._waiting.remove(record)
                        self._release(record, hint, event.resource + event.action)

    def activate(self, keys: Iterable[str]) -> None:
        """Move pods (`namespace/name`) to the active queue immediately; pods out for an attempt when they are
        requeued."""
        for key in keys:
            uid = self._uids.get(key)
            if uid is None:
                continue
            record = self._records[uid]
            if record.place is QueuePlace.OUT:
                if uid in self._inflight:
                    self._inflight.force(uid)
            elif record.place is QueuePlace.WAITING:
                self._waiting.remove(record)
                self._enter_active(record, "ForceActivate")
            elif record.place is not QueuePlace.ACTIVE:
                self._lane(record.place).remove(record)
                self._push_active(record, "ForceActivate")

    def flush_backoff(self) -> None:
        """Activate pods whose backoff has ended. Called every second."""
        for lane in (self._backoff, self._errors):
            while (record := lane.head()) is not None and not self._backing_off(record):
                lane.remove(record)
                self._push_active(record, "BackoffComplete")

    def flush_leftover(self) -> None:
        """Retry pods that have waited long for an event, unless they are gated. Called every 30 seconds."""
        oldest = self._now() - self._leftover_seconds
        for record in [record for record in self._waiting if record.timestamp < oldest]:
            self._waiting.remove(record)
            self._release(record, QueueHint.AFTER_BACKOFF, "UnschedulableTimeout")

    # Places

    def _release(self, record: QueuedPod, hint: QueueHint, event: str) -> None:
        """Move a pod from waiting or from an attempt to the active queue, or to the rest of its backoff."""
        if hint is QueueHint.NOW or not self._backing_off(record):
            self._enter_active(record, event)
        elif self._passes(record, event):
            lane = self._errors if record.errors else self._backoff
            self._put(lane, record)
            self._count_incoming("backoff", event)

    def _enter_active(self, record: QueuedPod, event: str) -> None:
        if self._passes(record, event):
            self._push_active(record, event)

    def _push_active(self, record: QueuedPod, event: str) -> None:
        if record.pod.first_attempt is None:
            record.pod.first_attempt = self._now()
        self._put(self._active, record)
        self._count_incoming("active", event)

    def _put(self, lane: Lane, record: QueuedPod) -> None:
        key = self._profile(record.pod).sort_key(record.pod, record.timestamp)
        lane.put(record, key if lane is self._active else (self._backoff_window(record), key))
        if self.ready is not None and lane is not self._errors:
            self.ready()

    def _passes(self, record: QueuedPod, event: str) -> bool:
        """Whether every PreEnqueue plugin accepts the pod. Otherwise it waits for the events of the rejecting
        plugin."""
        for plugin, gate in self._profile(record.pod).gates:
            if not gate(record.pod).ok:
                record.gated_by = plugin
                self._wait(record, event)
                return False
        record.gated_by = ""
        return True

    def _wait(self, record: QueuedPod, event: str) -> None:
        self._waiting.put(record)
        self._count_incoming("gated" if record.gated_by else "unschedulable", event)

    def _leave(self, record: QueuedPod) -> None:
        if record.place is QueuePlace.WAITING:
            self._waiting.remove(record)
        elif record.place is not QueuePlace.OUT:
            self._lane(record.place).remove(record)

    def _lane(self, place: QueuePlace) -> Lane:
        return {
            QueuePlace.ACTIVE: self._active,
            QueuePlace.BACKOFF: self._backoff,
            QueuePlace.ERROR_BACKOFF: self._errors,
        }[place]

    def _backoff_window(self, record: QueuedPod) -> int:
        return math.floor(
            (record.timestamp + record.backoff(self._initial_backoff, self._max_backoff)) / BACKOFF_WINDOW_S
        )

    def _backing_off(self, record: QueuedPod) -> bool:
        if not record.errors and not record.rejections:
            return False
        return self._backoff_window(record) >= math.floor(self._now() / BACKOFF_WINDOW_S)

    def _profile(self, pod: PodInfo) -> QueueProfile:
        return self._profiles[pod.shape.scheduler]

    def _count_incoming(self, queue: str, event: str) -> None:
        if self._incoming is not None:
            self._incoming(queue, event)
