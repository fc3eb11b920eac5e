"""Preemption for a whole gang group: its conditions, and the consequences of a plan (spec 05 §11).

It is tried once per round, for the first member that fails. On success the victims are evicted, every member is
nominated to its node (members at Permit to the node that they hold), and the group waits until the trigger wakes after
the victims are gone. If not every member can be placed, nominations are removed and no pod is evicted.

Koordinator also preempts this way for pods without a gang. Here DefaultPreemption does that, because it respects
disruption budgets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from control.scheduler.cycle.failures import FitError
from control.scheduler.cycle.nominationloss import JOB_FAILURE, JOB_REJECT, JOB_SUCCESS
from control.scheduler.framework.handle import Handle
from control.scheduler.framework.plugin import CycleState, PostFilterResult
from control.scheduler.framework.runtime import PluginRuntime
from control.scheduler.framework.status import SUCCESS, Code, PluginStatus, error, unschedulable
from control.scheduler.framework.suggestion import waiting_for_victims
from control.scheduler.framework.victimpolicy import JobVictims
from control.scheduler.plugins.coscheduling.jobplanner import (
    Choose,
    JobPlanner,
    NotHelpful,
    PreemptingJob,
    PreemptionPlan,
    SimulationFailed,
)
from control.scheduler.plugins.coscheduling.metrics import PreemptionMetrics
from control.scheduler.plugins.coscheduling.rounds import GangRound
from control.scheduler.state.pods import PodInfo
from koordlet.app.logging import get_logger

log = get_logger(__name__)

NEVER: Final = "not eligible due to preemptionPolicy=Never."
TERMINATING: Final = "not eligible due to terminating pod on the nominated node."


@dataclass(frozen=True)
class PreemptionAttempt:
    """The result of one attempt. `reason`: for the log and metrics."""

    reason: str
    status: PluginStatus = SUCCESS
    drop: bool = False
    """Whether existing nominations are useless and must be removed."""
    victims: int = 0


class GangPreemption:
    """See the module text. `owner`: name of the plugin."""

    def __init__(self, handle: Handle, owner: str) -> None:
        self._handle = handle
        self._table = handle.table
        self._runtime = PluginRuntime()
        self._policy = JobVictims()
        self._planner = JobPlanner(handle.table, self._policy, owner)
        self._metrics = PreemptionMetrics.of(handle.client.registry) if handle.client is not None else None

    def connect(self, runtime: PluginRuntime) -> None:
        """See `Plugin.connect`."""
        self._runtime = runtime
        self._planner.connect(runtime)

    def evicting(self, pod: PodInfo) -> bool:
        """Whether deletion calls for victims of this pod are in progress."""
        return self._runtime.evictor.evicting_for(pod.uid)

    def post_filter(
        self,
        state: CycleState,
        current: GangRound,
        trigger: PodInfo,
        failure: FitError,
        pending: Sequence[PodInfo],
        waiting: Mapping[str, str],
        choose: Choose | None,
        *,
        strict: bool,
    ) -> PostFilterResult:
        """`pending`: members without a node, in order; `waiting`: key -> uid of members with a node.

        Without `strict`, the latter keep their nodes if there is no room for the others (spec 05 §17, D5)."""
        if current.preempted:
            text = f"preemption: {current.preemption}"
            return PostFilterResult(unschedulable(text), current.nominations.get(trigger.key))
        current.preempted = True
        begun = self._handle.clock.monotonic()
        job = PreemptingJob(
            trigger,
            pending,
            state.of_job or (lambda other: False),
            frozenset(pod.uid for pod in pending) | frozenset(waiting.values()),
        )
        attempt = self._attempt(job, current, failure, waiting, choose)
        if attempt.reason == TERMINATING:
            state.suggest(waiting_for_victims())
        message = attempt.status.message or attempt.reason
        current.preemption = f"preemption already attempted by {trigger.key} with message {message}"
        seconds = self._handle.clock.monotonic() - begun
        if self._metrics is not None:
            self._metrics.observe(current.group.id, attempt.reason, seconds, begun + seconds)
        log.info(
            "Gang preemption",
            group=current.group.id,
            trigger=trigger.key,
            result=attempt.reason,
            detail=message,
            seconds=round(seconds, 4),
        )
        self._handle.observe_preemption(attempt.victims)
        if attempt.drop:
            self._cancel(current, pending, waiting if strict else {}, message)
        if attempt.status.ok:
            return PostFilterResult(SUCCESS, current.nominations[trigger.key])
        status = PluginStatus(attempt.status.code, (f"preemption: {message}",))
        return PostFilterResult(status, "" if attempt.drop else None)

    def _attempt(
        self,
        job: PreemptingJob,
        current: GangRound,
        failure: FitError,
        waiting: Mapping[str, str],
        choose: Choose | None,
    ) -> PreemptionAttempt:
        why = self._ineligible(job, failure)
        if why:
            return PreemptionAttempt(why, unschedulable(why))
        try:
            plan = self._planner.plan(job, failure.preemptible(), choose)
        except NotHelpful as error_raised:
            return PreemptionAttempt("preemption not helpful", unschedulable(str(error_raised)), drop=True)
        except SimulationFailed as error_raised:
            return PreemptionAttempt("select victims on node error", error(str(error_raised)))
        self._make_room(job, current, plan)
        self._nominate(job, current, plan, waiting)
        reason = f"preempt success, alreadyWaitingForBound: {len(waiting)}/{len(waiting) + len(job.members)}"
        return PreemptionAttempt(reason, victims=sum(map(len, plan.victims.values())))

    def _ineligible(self, job: PreemptingJob, failure: FitError) -> str:
        """Why the job may not preempt now; empty if it may."""
        trigger = job.trigger
        if all(pod.uid != trigger.uid for pod in job.members):
            return "no pending pods"
        if trigger.pod.spec.preemption_policy == "Never":
            return NEVER
        for pod in job.members:
            row = self._table.row(pod.nominated) if pod.nominated else None
            if row is None or (pod.uid == trigger.uid and failure.status(row).code is Code.UNRESOLVABLE):
                continue
            present = self._table.pods[row].values()
            if self.evicting(pod) or any(self._policy.leaving(other, pod) for other in present):
                return TERMINATING
        return ""

    def _make_room(self, job: PreemptingJob, current: GangRound, plan: PreemptionPlan) -> None:
        handle, queue, trigger = self._handle, self._runtime.queue, job.trigger
        victims = [pod for pods in plan.victims.values() for pod in pods]
        deleted = [v for v in victims if not handle.waiting.reject(v.uid, JOB_REJECT, "preempted")]
        if deleted:
            text = f"{handle.profile}: {self._policy.message}, preemptor: {current.group.id}, triggerPod: {trigger.key}"
            self._runtime.evictor.evict(deleted, by=trigger, message=text)
        nominated = [other for row in plan.victims for other in queue.nominations.on(self._table.names[row])]
        lesser = [other for other in nominated if self._policy.yields(other, trigger) and not job.mine(other)]
        for other in lesser:  # on every row (spec 05 §17, D4)
            queue.nominations.set(other, "")
        self._runtime.evictor.clear_nominations(lesser)

    def _nominate(
        self, job: PreemptingJob, current: GangRound, plan: PreemptionPlan, waiting: Mapping[str, str]
    ) -> None:
        current.nominations = {pod.key: self._table.names[plan.rows[pod.uid]] for pod in job.members}
        for pod in job.members:
            self._runtime.queue.nominations.set(pod, current.nominations[pod.key])
        for uid in waiting.values():
            self._handle.waiting.reject(
                uid, JOB_SUCCESS, f'GangGroup "{current.group.id}" waits for its victims to leave'
            )

    def _cancel(self, current: GangRound, pending: Sequence[PodInfo], waiting: Mapping[str, str], message: str) -> None:
        current.nominations = {pod.key: "" for pod in pending}
        for pod in pending:
            self._runtime.queue.nominations.set(pod, "")
        for uid in waiting.values():
            self._handle.waiting.reject(uid, JOB_FAILURE, f"preemption: {message}")
