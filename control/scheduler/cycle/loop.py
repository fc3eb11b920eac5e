"""The scheduling loop: pods from the queue, one cycle each, bindings in the background (spec 05 §3.5, §5.2, §5.6).

A cycle is synchronous. Between cycles the loop yields to other tasks after a few milliseconds of work. A failed pod is
reported to users by `Reporter` and requeued with the plugins whose events may help.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from time import perf_counter

from msgspec.structs import replace

from control.scheduler.cycle.binding import Binder, BindTimings, CurrentPod, Expect
from control.scheduler.cycle.cycle import Cycle
from control.scheduler.cycle.extenders import ExtenderError, Extenders
from control.scheduler.cycle.failurefilters import FailureFilters
from control.scheduler.cycle.failures import FitError
from control.scheduler.cycle.nominationloss import nomination_after_loss
from control.scheduler.cycle.placement import CycleFailed, Placement, refusal_text
from control.scheduler.framework.plugin import AttemptFailure, ExtenderResult
from control.scheduler.framework.runtime import Timed, untimed
from control.scheduler.framework.status import Code, PluginStatus, error, unschedulable
from control.scheduler.queue.changes import POD_DELETE
from control.scheduler.queue.feed import Feed
from control.scheduler.queue.queue import SchedulingQueue
from control.scheduler.state.cache import Cache, CacheError
from control.scheduler.state.pods import PodInfo
from koordlet.app.clock import SYSTEM_CLOCK, Clock
from koordlet.app.logging import get_logger

log = get_logger(__name__)

TIME_SLICE_S = 0.005
"""Cycles run for this time before other tasks of the event loop run."""
MAX_RUN_PODS = 64
"""Pods of one shape that are taken from the queue at once."""
RECENT_FAILURES = 256


class Reporter:
    """Receives what happens to each pod, for users and metrics. Methods must return at once; these do nothing."""

    def started(self, pod: PodInfo) -> None:
        """A cycle for the pod begins. Ended by `scheduled`, `failed` or `abandoned`."""

    def attempt(self, profile: str, result: str, seconds: float) -> None:
        """A cycle ended: scheduled, unschedulable or error."""

    def scheduled(self, placement: Placement, seconds: float) -> None:
        """The pod is bound, `seconds` after it was first tried."""

    def failed(self, pod: PodInfo, status: PluginStatus, message: str, nominated: str | None) -> None:
        """The pod was not scheduled. `nominated`: node for the pod's status, "" to remove it, None to keep it."""

    def taken_over(self, pod: PodInfo) -> None:
        """The pod was not scheduled, and a plugin handles that."""

    def abandoned(self, pod: PodInfo) -> None:
        """The attempt ended without a result to report, because the pod is gone or was bound by another scheduler."""


class Loop:
    """See the module text."""

    def __init__(
        self,
        cycles: Mapping[str, Cycle],
        cache: Cache,
        queue: SchedulingQueue,
        *,
        clock: Clock = SYSTEM_CLOCK,
        reporter: Reporter | None = None,
        current: CurrentPod | None = None,
        extenders: Extenders | None = None,
        timings: Mapping[str, BindTimings] | None = None,
        taken: Callable[[float], object] | None = None,
        expect: Expect | None = None,
        timed: Timed = untimed,
    ) -> None:
        """`cycles` and `timings` by profile (scheduler name). `taken(seconds)` receives how long it took to remove a
        pod from the queue that a plugin wanted to be next. `expect`: see `Binder`. `timed` measures
        the calls of NextPod."""
        self.cycles = cycles
        self.cache = cache
        self.queue = queue
        self._clock = clock
        self._reporter = reporter or Reporter()
        self._taken = taken or (lambda seconds: None)
        self._current = current
        self._extenders = extenders
        self._failures = 0
        self._last_failed: deque[PodInfo] = deque(maxlen=RECENT_FAILURES)
        self.binders = {
            name: Binder(cycle, self, current, (timings or {}).get(name), extenders, expect)
            for name, cycle in cycles.items()
        }
        self._filters = {name: FailureFilters(cycle.framework) for name, cycle in cycles.items()}
        wanting = next((c.framework.next_pod for c in cycles.values() if c.framework.next_pod is not None), None)
        self._next_pod = None if wanting is None else timed(wanting, "NextPod", wanting.next_pod)

    async def run(self, feed: Feed) -> None:
        """Schedule until cancelled."""
        while True:
            pods = await feed.pop_run(MAX_RUN_PODS)
            until = self._clock.monotonic() + TIME_SLICE_S
            for pod in pods:
                if self._extenders is not None:
                    await self.work_extended(self._extenders, pod)
                else:
                    self.work([pod])
                if self._clock.monotonic() >= until:
                    await asyncio.sleep(0)
                    until = self._clock.monotonic() + TIME_SLICE_S
            await asyncio.sleep(0)

    def work(self, pods: list[PodInfo]) -> None:
        """Run cycles for these pods, and for the pods that plugins want next."""
        for pod in pods:
            self.schedule(pod)
            while (other := self._take_next(pod)) is not None:
                self.schedule(other)

    async def work_extended(self, extenders: Extenders, pod: PodInfo) -> None:
        """`work` for one pod, with the extenders called before each cycle."""
        await self._schedule_extended(extenders, pod)
        while (other := self._take_next(pod)) is not None:
            await self._schedule_extended(extenders, other)

    def _take_next(self, pod: PodInfo) -> PodInfo | None:
        """The pod that a plugin wants to be scheduled next, in the same attempt as `pod`."""
        other = self._next_pod() if self._next_pod is not None else None
        if other is not None:
            self._join(other, pod)
        return other

    def _join(self, other: PodInfo, pod: PodInfo) -> None:
        """`other` is scheduled together with `pod`, the head of the queue."""
        begun = perf_counter()
        self.queue.take(other)
        self._taken(perf_counter() - begun)
        other.attempts, other.first_attempt = pod.attempts, pod.first_attempt

    async def _schedule_extended(self, extenders: Extenders, pod: PodInfo) -> None:
        cycle = self._cycle_of(pod)
        if cycle is None:
            self.schedule(pod)
            return
        begun = self._clock.monotonic()
        try:
            result = await extenders.query(cycle.framework, pod)
        except ExtenderError as failure:
            self._ended(cycle, "error", begun)
            self._failed(pod, error(str(failure)), str(failure), set(), None)
            return
        self.schedule(pod, result)

    def _cycle_of(self, pod: PodInfo) -> Cycle | None:
        """None: the pod need not be scheduled any more."""
        if pod.terminating or pod.uid in self.cache.pods or pod.uid not in self.queue:
            return None
        return self.cycles.get(pod.shape.scheduler)

    def schedule(self, pod: PodInfo, extenders: ExtenderResult | None = None) -> Placement | None:
        """Run one cycle. None: the pod was dropped, or requeued."""
        cycle = self._cycle_of(pod)
        if cycle is None:
            self.queue.done(pod.uid)
            return None
        self._reporter.started(pod)
        begun = self._clock.monotonic()
        try:
            placement = cycle.place(pod, extenders)
        except FitError as failure:
            status = failure.pre_filter or unschedulable(failure.text(bare=True))
            self._ended(cycle, "unschedulable", begun)
            self._failed(pod, status, failure.text(), failure.plugins(), failure.nominated)
            return None
        except CycleFailed as failure:
            status = failure.status
            self._ended(cycle, "unschedulable" if status.rejected else "error", begun)
            self._failed(pod, status, failure.text, _rejecting(status), None)
            return None
        except CacheError as failure:
            self._ended(cycle, "error", begun)
            self._failed(pod, error(str(failure)), str(failure), set(), None)
            return None
        except Exception as failure:  # a bug in a plugin must not end scheduling
            log.exception("Scheduling failed", pod=pod.key, err=failure)
            self._ended(cycle, "error", begun)
            text = f"{type(failure).__name__}: {failure}"
            self._failed(pod, error(text), text, set(), None)
            return None
        self._ended(cycle, "scheduled", begun)
        for member in placement.job or (placement,):
            member.failures_before = self._failures
            if member is not placement:
                self._join(member.pod, pod)
            self.binders[cycle.framework.name].start(member)
        return placement

    # Results of bindings (`BindingOutcomes`)

    def binding(self, placement: Placement) -> None:
        self.queue.done(placement.pod.uid)

    def bound(self, placement: Placement) -> None:
        pod = placement.pod
        if placement.bindings is not None:
            placement.bindings.ended(placement, True)
        self.queue.delete(pod)
        first = pod.first_attempt
        self._reporter.scheduled(placement, self._clock.monotonic() - first if first is not None else 0.0)

    def not_bound(self, placement: Placement, status: PluginStatus) -> None:
        released = _as_placed(placement)
        if not status.rejected:
            self.queue.move(POD_DELETE, released, None)
        nominated = nomination_after_loss(status, placement.node)
        if nominated is None:
            self.queue.nominations.restore(placement.pod)
        self._failed(placement.pod, status, refusal_text(status), _rejecting(status), nominated)
        if status.rejected and self._may_help_others(placement):
            self.queue.move(POD_DELETE, released, None, _outside_job(placement))
        if placement.bindings is not None:
            placement.bindings.ended(placement, False)
            self.queue.activate([placement.pod.key])  # its job has nodes, so the pod must not wait for a backoff

    def _may_help_others(self, placement: Placement) -> bool:
        """Whether pods outside the job may have failed because of what this pod held.

        A job that fails holds its nodes only for a moment. A pod that failed before that moment gains nothing from
        their release: two jobs would wake each other endlessly."""
        of_job, failures_since = placement.state.of_job, self._failures - placement.failures_before
        if of_job is None or failures_since > len(self._last_failed):
            return True
        recent = [self._last_failed[-1 - back] for back in range(failures_since)]
        return not all(map(of_job, recent))

    # Failures

    def _failed(
        self, pod: PodInfo, status: PluginStatus, message: str, plugins: set[str], nominated: str | None
    ) -> None:
        self._failures += 1
        self._last_failed.append(pod)
        failure = AttemptFailure(pod, status, message, frozenset(plugins), nominated)
        filters = self._filters[pod.shape.scheduler]
        if filters.take_over(failure):
            self.queue.done(pod.uid)
            self._reporter.taken_over(pod)
        else:
            self._handle(failure)
        filters.after(failure)

    def _handle(self, failure: AttemptFailure) -> None:
        pod, status = failure.pod, failure.status
        if self._current is not None:
            now = self._current(pod)
            if now is None or now.metadata.uid != pod.uid or now.spec.node_name:
                self.queue.done(pod.uid)
                self.queue.delete(pod)
                self._reporter.abandoned(pod)
                return
        pending = {status.plugin} if status.code is Code.PENDING else ()
        self.queue.requeue(pod, failure.rejected_by, pending)
        if failure.nominated is not None:
            self.queue.nominations.set(pod, failure.nominated)
        self._reporter.failed(pod, status, failure.message, failure.nominated)

    def _ended(self, cycle: Cycle, result: str, begun: float) -> None:
        self._reporter.attempt(cycle.framework.name, result, self._clock.monotonic() - begun)


def _rejecting(status: PluginStatus) -> set[str]:
    """The plugin whose events may help; none after an error."""
    return {status.plugin} - {""} if status.rejected else set()


def _outside_job(placement: Placement) -> Callable[[PodInfo], bool]:
    """Which pods the release may wake: neither the pod itself nor the members of its job."""
    uid, of_job = placement.pod.uid, placement.state.of_job
    return lambda other: other.uid != uid and not (of_job is not None and of_job(other))


def _as_placed(placement: Placement) -> PodInfo:
    """The pod as it was while it was assumed: hints read on which node a removed pod was."""
    info, pod = placement.pod, placement.pod.pod
    return PodInfo(replace(pod, spec=replace(pod.spec, node_name=placement.node)), info.shape, info.subject)
