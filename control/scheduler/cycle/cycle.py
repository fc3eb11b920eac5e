"""One pod's scheduling cycle, from PreFilter to Permit, in one synchronous call (spec 05 §3.5, §5.3 to §5.5).

    placement = cycle.place(pod)        # assumed in the cache, reserved, and allowed or held at Permit
    except FitError as failure: …       # no node fits; PostFilter has run
    except CycleFailed as failure: …    # an error, or a rejection after a node was chosen; everything is reverted

All nodes are evaluated, not a sample: cached results make that cheap, and no score is lost to sampling. Only an
explicit `percentageOfNodesToScore` limits how many feasible nodes are scored.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from control.boundedpods import TOO_LONG_REASON, is_too_long
from control.scheduler.cycle.equivalence import EquivalenceCache, ScoreOutOfRange
from control.scheduler.cycle.evaluation import prepare
from control.scheduler.cycle.failures import LEFT_OUT, FitError
from control.scheduler.cycle.feasibility import Feasibility
from control.scheduler.cycle.observer import CycleObserver
from control.scheduler.cycle.placement import BatchEngine, CycleFailed, Placement
from control.scheduler.cycle.scoring import Scoring
from control.scheduler.framework.plugin import CycleState, ExtenderResult, PostFilterResult
from control.scheduler.framework.profile import Framework
from control.scheduler.framework.runtime import (
    EmptyQueue,
    GangAuditor,
    NoEvictor,
    PluginQueue,
    PluginRuntime,
    VictimEvictor,
)
from control.scheduler.framework.status import Code, PluginStatus, error, unresolvable, unschedulable
from control.scheduler.framework.timing import PluginTimer
from control.scheduler.framework.waitingpods import WaitingPods
from control.scheduler.state.cache import Cache
from control.scheduler.state.columns import RowArray
from control.scheduler.state.pods import PodInfo

GATES = "SchedulingGates"
"""The plugin whose event releases a pod that was shortened."""
FILTERED, SCORED = -2, -1
"""How far a cycle got: to Filter (at most one node fits), or to Score."""


class Cycle:
    """The cycles of one profile. For one thread; no method awaits."""

    def __init__(
        self,
        framework: Framework,
        cache: Cache,
        waiting: WaitingPods,
        *,
        queue: PluginQueue | None = None,
        evictor: VictimEvictor | None = None,
        auditor: GangAuditor | None = None,
        batch: BatchEngine | None = None,
        timer: PluginTimer | None = None,
        observers: Sequence[CycleObserver] = (),
    ) -> None:
        """Connects the plugins of `framework` to queue, evictor, auditor and this cycle.

        `batch` places planned jobs at once; without it each member has a cycle of its own. `timer` measures sampled
        cycles."""
        self.framework = framework
        self.cache = cache
        self.waiting = waiting
        self.table = cache.table
        self.evaluations: Counter[tuple[frozenset[str], frozenset[str], int]] = Counter()
        """(skipped at filters, skipped at scores, how far the cycle got) -> cycles; see `pluginevaluations`."""
        queue = EmptyQueue() if queue is None else queue
        self._batch = batch
        self._timer = timer
        self._observers = tuple(observers)
        self._equivalence = EquivalenceCache(self.table)
        self._feasibility = Feasibility(framework, queue)
        self._scoring = Scoring(framework)
        self._calls = framework
        """The plugins as they are called in the present cycle: `framework`, or its timed view."""
        framework.connect(
            PluginRuntime(framework, self.fits, queue, NoEvictor() if evictor is None else evictor, auditor)
        )

    def place(self, pod: PodInfo, extenders: ExtenderResult | None = None) -> Placement:
        """Find a node for the pod and claim it. Raises FitError or CycleFailed, see the module text."""
        timer = self._timer
        if timer is None or not timer.due():
            return self._place(pod, extenders)
        self._calls = timer.calls
        try:
            placement = self._place(pod, extenders)
        finally:
            self._calls = self.framework
            timer.finish()
        placement.state.measured = True
        return placement

    def _place(self, pod: PodInfo, extenders: ExtenderResult | None) -> Placement:
        state = CycleState(extenders=extenders)
        try:
            try:
                placement = self._choose(state, pod)
                self._count(state, FILTERED if placement.feasible == 1 else SCORED)
            except FitError as failure:
                before = failure.pre_filter
                self._count(state, FILTERED if before is None else self._pre_filters_called(before))
                self._post_filter(state, pod, failure)
                raise
            except ScoreOutOfRange as failure:
                raise CycleFailed(error(str(failure))) from failure
        finally:
            state.run_undo()
        if not placement.job:
            self.claim(placement)
            try:
                self.permit(placement)
            except BaseException:  # also on a plugin's bug the claim must not remain
                self.release(placement)
                raise
        return placement

    def _choose(self, state: CycleState, pod: PodInfo) -> Placement:
        table = self.table
        if is_too_long(pod.pod):
            raise CycleFailed(unresolvable(TOO_LONG_REASON).by(GATES))
        if table.nodes_alive == 0:
            raise CycleFailed(unschedulable("no nodes available to schedule pods"))
        rows, narrowed_by = self._pre_filter(state, pod)
        if state.plan and self._batch is not None:
            return self._place_job(self._batch, state, pod)
        cached = self._equivalence.of(pod, state.variant)
        cached.filter(self._calls, state, pod, rows)
        feasible = self._feasibility.rows(self._calls, state, pod, cached, rows)
        if not len(feasible):
            raise self._feasibility.failure(self._calls, state, pod, cached, rows, narrowed_by)
        if self.framework.percentage:
            feasible = self._scoring.sample(feasible)
        if len(feasible) == 1:
            row = int(feasible[0])
        else:
            totals = self._scoring.totals(self._calls, state, pod, cached, feasible)
            for observer in self._observers:
                observer.on_scored(self, state, pod, feasible)
            row = self._scoring.best(feasible, totals)
        return Placement(pod, row, table.names[row], state, table.nodes_alive, len(feasible))

    def _place_job(self, batch: BatchEngine, state: CycleState, pod: PodInfo) -> Placement:
        state.run_undo()  # changes made for this pod alone must not affect the other members
        placed = batch.place(self, state, pod)
        if isinstance(placed, PluginStatus):
            raise self._rejection(pod, placed)
        return placed

    def _count(self, state: CycleState, reached: int) -> None:
        self.evaluations[frozenset(state.skip_filter), frozenset(state.skip_score), reached] += 1

    def _pre_filters_called(self, rejection: PluginStatus) -> int:
        """The number of PreFilter plugins that were called until one rejected the pod."""
        names = [plugin.name for plugin in self.framework.pre_filter]
        return names.index(rejection.plugin) + 1 if rejection.plugin in names else len(names)

    def fits(self, state: CycleState, pod: PodInfo, row: int) -> PluginStatus:
        """The result of the Filter plugins for one row, with and without the pods nominated there (spec 05 §5.5)."""
        return self._feasibility.fits(self._calls, state, pod, row)

    # Before Filter

    def _pre_filter(self, state: CycleState, pod: PodInfo) -> tuple[RowArray | None, Sequence[str]]:
        """(the rows to evaluate or None for all, the plugins that restricted them)."""
        calls = self._calls
        prepared = prepare(calls, state, pod)
        self._require(pod, prepared.status, prepared.narrowed_by)
        rows = prepared.rows
        planner = calls.find_one_node
        if planner is not None:
            status, row = planner.find_one_node(state, pod, rows)
            if status.ok:
                return np.array([row], np.intp), [planner.name]
            if not status.skipped:
                self._require(pod, status.by(planner.name))
        preferring = calls.prefer_nodes
        if preferring is not None:
            for row in preferring.prefer_nodes(state, pod, rows):
                if self.fits(state, pod, row).ok:
                    return np.array([row], np.intp), [preferring.name]
        return rows, prepared.narrowed_by

    def _require(self, pod: PodInfo, status: PluginStatus, narrowed_by: Sequence[str] = ()) -> None:
        if not status.ok and not status.skipped:
            raise self._rejection(pod, status, narrowed_by)

    def _rejection(self, pod: PodInfo, status: PluginStatus, narrowed_by: Sequence[str] = ()) -> FitError | CycleFailed:
        """The exception for a rejection or an error before Filter."""
        if not status.rejected:
            return CycleFailed(status)
        rows = np.flatnonzero(self.table.valid)
        failure = FitError(pod, self.framework, rows, np.full(len(rows), LEFT_OUT, np.uint32), status)
        failure.narrowed_by = frozenset(narrowed_by)
        return failure

    # After the choice

    def claim(self, placement: Placement) -> None:
        """Assume and reserve. Reverts everything when a plugin refuses. Raises CacheError, CycleFailed."""
        pod, row, state = placement.pod, placement.row, placement.state
        for plugin in self._calls.nominate:
            status = plugin.nominate(state, pod, row)
            if not status.ok:
                raise CycleFailed(status.by(plugin.name))
        for plugin in self._calls.resize:
            status = plugin.resize_pod(state, pod, row)
            if not status.ok:
                raise CycleFailed(status.by(plugin.name), chosen=True)
        self.cache.assume(pod, placement.node)
        pod.nominated = ""
        state.phase = "Reserve"
        try:
            for plugin in self._calls.reserve:
                status = plugin.reserve(state, pod, row)
                if not status.ok:
                    raise CycleFailed(status.by(plugin.name), chosen=True)
        except BaseException:  # also on a plugin's bug the claim must not remain
            self.release(placement)
            raise
        state.phase = ""

    def permit(self, placement: Placement) -> None:
        """Call the Permit plugins, and hold the pod if one requests a wait. Raises CycleFailed; reverts nothing."""
        waits: dict[str, float] = {}
        for plugin in self._calls.permit:
            status = plugin.permit(placement.state, placement.pod, placement.row)
            if status.code is Code.WAIT:
                waits[plugin.name] = status.timeout
            elif not status.ok:
                raise CycleFailed(status.by(plugin.name), chosen=True)
        if waits:
            placement.parked = waits
            self.waiting.park(placement.pod, waits)

    def release(self, placement: Placement) -> None:
        """Unreserve in every plugin and forget the pod."""
        pod = placement.pod
        for plugin in self._calls.unreserve:
            plugin.unreserve(placement.state, pod, placement.row)
        if pod.assumed:  # the pod may have been deleted, or bound by another scheduler, in the meantime
            self.cache.forget(pod)
        for plugin in self._calls.forgotten:
            plugin.forgotten(pod)

    def _post_filter(self, state: CycleState, pod: PodInfo, failure: FitError) -> None:
        """Let the PostFilter plugins make room; the first success ends it (spec 05 §3.5-4)."""
        state.phase = "PostFilter"
        messages: list[str] = []
        nominated: str | None = None
        outcome: PostFilterResult | None = None
        for plugin in self._calls.post_filter:
            result = plugin.post_filter(state, pod, failure)
            if result.status.code is Code.ERROR:
                raise CycleFailed(result.status.by(plugin.name))
            if result.status.ok or result.status.code is Code.UNRESOLVABLE:
                outcome, messages = result, [result.status.message]
                break
            messages.append(result.status.message)
            nominated = nominated if result.nominated is None else result.nominated
            outcome = PostFilterResult(unschedulable(*filter(None, messages)), nominated)
        if state.suggestion is not None:
            failure.suggestion = state.suggestion
            messages.append(state.suggestion.text)
            if outcome is not None and not outcome.status.ok:
                reasons = (*outcome.status.reasons, state.suggestion.text)
                outcome = PostFilterResult(PluginStatus(outcome.status.code, reasons), outcome.nominated)
        failure.post_filter = tuple(filter(None, messages))
        if outcome is not None:
            failure.nominated = outcome.nominated
        for plugin in self._calls.after_post_filter:
            plugin.after_post_filter(state, pod, failure, outcome)
        state.phase = ""
        for observer in self._observers:
            observer.on_unschedulable(self, state, pod, failure)
