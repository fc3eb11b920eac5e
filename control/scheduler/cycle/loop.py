"""The scheduling loop: pods from the queue, one cycle each, bindings in the background (spec 05 §3.5, §5.2, §5.6).

A cycle is synchronous; between cycles the loop lets others run once it has worked for a few milliseconds. Failures go
to `Reporter`, which tells the user, and back to the queue with the plugins whose events may help.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import Protocol

from msgspec.structs import replace

from control.scheduler.cycle.binding import Binder, Current
from control.scheduler.cycle.cycle import Cycle, CycleFailed, Placement
from control.scheduler.cycle.extenders import ExtenderError, Extenders
from control.scheduler.cycle.failures import FitError
from control.scheduler.cycle.nominationloss import takeover
from control.scheduler.framework.status import Code, Status, error, unschedulable
from control.scheduler.queue.changes import POD_DELETE
from control.scheduler.queue.feed import Feed
from control.scheduler.queue.queue import SchedulingQueue
from control.scheduler.state.cache import Cache, CacheError
from control.scheduler.state.pods import PodInfo
from koordlet.app.clock import SYSTEM_CLOCK, Clock
from koordlet.app.logging import get_logger

log = get_logger(__name__)

SLICE_SECONDS = 0.005
"""How long cycles may follow each other before others on the event loop get their turn."""
RUN = 64
"""Pods of one shape that are taken from the queue at once."""


class Reporter(Protocol):
    """Tells users and metrics what became of a pod. Must return at once."""

    def scheduled(self, placement: Placement, seconds: float) -> None:
        """Bound; `seconds` since the pod was first tried."""

    def failed(self, pod: PodInfo, status: Status, message: str, nominated: str | None) -> None:
        """Not scheduled. `nominated`: node to write to the pod's status, "" to clear, None to leave."""

    def attempt(self, profile: str, result: str, seconds: float) -> None:
        """One cycle ended: scheduled, unschedulable or error."""


class Silent:
    """A reporter that says nothing."""

    def scheduled(self, placement: Placement, seconds: float) -> None:
        return

    def failed(self, pod: PodInfo, status: Status, message: str, nominated: str | None) -> None:
        return

    def attempt(self, profile: str, result: str, seconds: float) -> None:
        return


class Loop:
    """See the module text. `cycles` by profile (scheduler name)."""

    def __init__(
        self,
        cycles: Mapping[str, Cycle],
        cache: Cache,
        queue: SchedulingQueue,
        *,
        clock: Clock = SYSTEM_CLOCK,
        reporter: Reporter | None = None,
        current: Current | None = None,
        suppressed: Callable[[PodInfo, Status], bool] | None = None,
    ) -> None:
        """`suppressed(pod, status)`: whether somebody else has dealt with this failure already (spec 05 §5.6)."""
        self.cycles, self.cache, self.queue = cycles, cache, queue
        self._clock = clock
        self._reporter: Reporter = reporter or Silent()
        self._current = current
        self._suppressed = suppressed
        self.extenders: Extenders | None = None
        self._failures = 0
        self._last_failed: deque[PodInfo] = deque(maxlen=256)
        self.binders = {name: Binder(cycle, self, current) for name, cycle in cycles.items()}
        self._next_pod = next((c.framework.next_pod for c in cycles.values() if c.framework.next_pod is not None), None)

    async def run(self, feed: Feed) -> None:
        """Schedule until cancelled."""
        while True:
            pods = await feed.pop_run(RUN)
            until = self._clock.monotonic() + SLICE_SECONDS
            for pod in pods:
                if self.extenders is not None:
                    await self._work_extended(self.extenders, pod)
                else:
                    self.work([pod])
                if self._clock.monotonic() >= until:
                    await asyncio.sleep(0)
                    until = self._clock.monotonic() + SLICE_SECONDS
            await asyncio.sleep(0)

    def work(self, pods: list[PodInfo]) -> None:
        """Cycles for these pods, and for those that plugins want next."""
        for pod in pods:
            self.schedule(pod)
            if self._next_pod is not None:
                while (other := self._next_pod.next_pod()) is not None:
                    self.queue.take(other)
                    other.attempts, other.first_attempt = pod.attempts, pod.first_attempt
                    self.schedule(other)

    async def _work_extended(self, extenders: Extenders, pod: PodInfo) -> None:
        """`work` for one pod, with extenders asked before each cycle."""
        await self._schedule_extended(extenders, pod)
        while self._next_pod is not None and (other := self._next_pod.next_pod()) is not None:
            self.queue.take(other)
            other.attempts, other.first_attempt = pod.attempts, pod.first_attempt
            await self._schedule_extended(extenders, other)

    async def _schedule_extended(self, extenders: Extenders, pod: PodInfo) -> None:
        cycle = self.cycles.get(pod.shape.scheduler)
        if cycle is not None and pod.uid in self.queue and not pod.terminating and pod.uid not in self.cache.pods:
            begun = self._clock.monotonic()
            try:
                cycle.extended = await extenders.ask(cycle, pod)
            except ExtenderError as failure:
                self._ended(cycle, "error", begun)
                self._failed(pod, error(str(failure)), str(failure), set(), None)
                return
        try:
            self.schedule(pod)
        finally:
            if cycle is not None:
                cycle.extended = None

    def schedule(self, pod: PodInfo) -> Placement | None:
        """One cycle. None: the pod was dropped, or goes back to the queue."""
        cycle = self.cycles.get(pod.shape.scheduler)
        if cycle is None or pod.terminating or pod.uid in self.cache.pods or pod.uid not in self.queue:
            self.queue.done(pod.uid)
            return None
        begun = self._clock.monotonic()
        try:
            placement = cycle.place(pod)
        except FitError as failure:
            status = failure.pre_filter or _unschedulable(failure)
            self._ended(cycle, "unschedulable", begun)
            self._failed(pod, status, failure.text(), failure.plugins(), failure.nominated)
            return None
        except CycleFailed as failure:
            status = failure.status
            self._ended(cycle, "unschedulable" if status.rejected else "error", begun)
            plugins = {status.plugin} - {""} if status.rejected else set()
            self._failed(pod, status, status.message, plugins, None)
            return None
        except CacheError as failure:
            self._ended(cycle, "error", begun)
            self._failed(pod, error(str(failure)), str(failure), set(), None)
            return None
        except Exception as failure:  # a plugin's fault must not end scheduling
            log.exception("Scheduling failed", pod=pod.key, err=failure)
            self._ended(cycle, "error", begun)
            text = f"{type(failure).__name__}: {failure}"
            self._failed(pod, error(text), text, set(), None)
            return None
        self._ended(cycle, "scheduled", begun)
        for one in placement.job or (placement,):
            one.after = self._failures
            if one is not placement:  # placed with the pod whose turn it was
                self.queue.take(one.pod)
                one.pod.attempts, one.pod.first_attempt = pod.attempts, pod.first_attempt
            self.binders[cycle.framework.name].start(one)
        return placement

    # -- outcomes of bindings (`binding.Outcomes`) -------------------------------------------------------------------

    def binding(self, placement: Placement) -> None:
        self.queue.done(placement.pod.uid)

    def bound(self, placement: Placement) -> None:
        pod = placement.pod
        if placement.bindings is not None:
            placement.bindings.ended(placement, True)
        self.queue.delete(pod)
        first = pod.first_attempt
        self._reporter.scheduled(placement, self._clock.monotonic() - first if first is not None else 0.0)

    def not_bound(self, placement: Placement, status: Status) -> None:
        plugins = {status.plugin} - {""} if status.rejected else set()
        event, released = POD_DELETE, _placed(placement)
        if not status.rejected:
            self.queue.move(event, released, None)
        nominated = takeover(status, placement.node)
        if nominated is None:
            self.queue.renominate(placement.pod)
        self._failed(placement.pod, status, status.message, plugins, nominated)
        if status.rejected and self._kept_from_others(placement):  # the pod's own release must not wake itself
            uid, ours = placement.pod.uid, placement.state.of_job
            self.queue.move(
                event, released, None, lambda other: other.uid != uid and not (ours is not None and ours(other))
            )
        if placement.bindings is not None:
            placement.bindings.ended(placement, False)
            self.queue.activate([placement.pod.key])  # its job has nodes: it is not to wait behind a backoff

    def _kept_from_others(self, placement: Placement) -> bool:
        """Whether others may have failed for what this pod held.

        A job that fails holds its nodes for a moment only, and who failed before that moment gains nothing by their
        release: two jobs would wake each other for ever."""
        ours, missed = placement.state.of_job, self._failures - placement.after
        if ours is None or missed > len(self._last_failed):
            return True
        recent = [self._last_failed[-1 - back] for back in range(missed)]
        return not all(map(ours, recent))

    # -- failures ----------------------------------------------------------------------------------------------------

    def _failed(self, pod: PodInfo, status: Status, message: str, plugins: set[str], nominated: str | None) -> None:
        self._failures += 1
        self._last_failed.append(pod)
        if self._suppressed is not None and self._suppressed(pod, status):
            self.queue.done(pod.uid)
            return
        if self._current is not None:
            now = self._current(pod.key)
            if now is None or now.metadata.uid != pod.uid or now.spec.node_name:
                self.queue.done(pod.uid)
                self.queue.delete(pod)
                return
        pending = {status.plugin} if status.code is Code.PENDING else ()
        self.queue.requeue(pod, plugins, pending)
        if nominated is not None:
            self.queue.nominate(pod, nominated)
        self._reporter.failed(pod, status, message, nominated)

    def _ended(self, cycle: Cycle, result: str, begun: float) -> None:
        self._reporter.attempt(cycle.framework.name, result, self._clock.monotonic() - begun)


def _unschedulable(failure: FitError) -> Status:
    return unschedulable(failure.text(bare=True))


def _placed(placement: Placement) -> PodInfo:
    """The pod as it was while it was assumed: hints ask where a pod was that is gone."""
    pod, shape = placement.pod.pod, placement.pod.shape
    return PodInfo(replace(pod, spec=replace(pod.spec, node_name=placement.node)), shape)
