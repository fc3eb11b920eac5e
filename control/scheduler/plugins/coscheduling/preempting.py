"""Preemption for a whole gang group: when it is tried, and what follows from the plan (spec 05 §11).

Once a turn, for the first member that fails. On success the victims are evicted, every member is nominated to its node
(those that wait at Permit to the one that they had), and the group waits for the trigger to wake when victims are gone.
When not every member can be placed, nominations are dropped and nobody is evicted.

Koordinator preempts in this way for pods without a gang too; here they are left to DefaultPreemption, which knows
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
from control.scheduler.framework.runtime import Runtime
from control.scheduler.framework.status import SUCCESS, Code, PluginStatus, error, unschedulable
from control.scheduler.plugins.coscheduling.jobpreemption import (
    Choose,
    JobPlanner,
    NotHelpful,
    PreemptingJob,
    PreemptionPlan,
    SimulationFailed,
    may_leave,
)
from control.scheduler.plugins.coscheduling.metrics import PreemptionMetrics
from control.scheduler.plugins.coscheduling.turn import Turn
from control.scheduler.state.pods import PodInfo
from koordlet.app.logging import get_logger

log = get_logger(__name__)

NEVER: Final = "not eligible due to preemptionPolicy=Never."
TERMINATING: Final = "not eligible due to terminating pod on the nominated node."


@dataclass(frozen=True)
class Attempt:
    """What one attempt came to; `reason` is for people and metrics."""

    reason: str
    status: PluginStatus = SUCCESS
    drop: bool = False
    """Nominations help nobody any more."""
    victims: int = 0


class GangPreemption:
    """See the module text. `owner`: the plugin's name."""

    def __init__(self, handle: Handle, owner: str) -> None:
        self._handle = handle
        self._table = handle.table
        self._runtime = Runtime()
        self._planner = JobPlanner(handle.table, owner)
        self._metrics = PreemptionMetrics.of(handle.client.registry) if handle.client is not None else None

    def connect(self, runtime: Runtime) -> None:
        """See `Plugin.connect`."""
        self._runtime = runtime
        self._planner.connect(runtime)

    def evicting(self, pod: PodInfo) -> bool:
        """Whether victims of this pod are just being removed."""
        return self._runtime.evictor.evicting_for(pod.uid)

    def post_filter(
        self,
        state: CycleState,
        turn: Turn,
        trigger: PodInfo,
        failure: FitError,
        pending: Sequence[PodInfo],
        waiting: Mapping[str, str],
        choose: Choose | None,
        *,
        strict: bool,
    ) -> PostFilterResult:
        """`pending`: members without a node, in order; `waiting`: key -> uid of those that have one.

        Without `strict`, those keep it when there is no room for the others (spec 05 §17, D5)."""
        if turn.preempted:
            text = f"preemption: {turn.preemption}"
            return PostFilterResult(unschedulable(text), turn.nominations.get(trigger.key))
        turn.preempted = True
        begun = self._handle.clock.monotonic()
        job = PreemptingJob(
            trigger,
            pending,
            state.of_job or (lambda other: False),
            frozenset(pod.uid for pod in pending) | frozenset(waiting.values()),
        )
        attempt = self._attempt(job, turn, failure, waiting, choose)
        message = attempt.status.message or attempt.reason
        turn.preemption = f"preemption already attempted by {trigger.key} with message {message}"
        seconds = self._handle.clock.monotonic() - begun
        if self._metrics is not None:
            self._metrics.observe(turn.group.id, attempt.reason, seconds, begun + seconds)
        log.info(
            "Gang preemption", group=turn.group.id, trigger=trigger.key, reason=attempt.reason, why=message,
            seconds=round(seconds, 4),
        )  # fmt: skip
        self._handle.observe_preemption(attempt.victims)
        if attempt.drop:
            self._cancel(turn, pending, waiting if strict else {}, message)
        if attempt.status.ok:
            return PostFilterResult(SUCCESS, turn.nominations[trigger.key])
        status = PluginStatus(attempt.status.code, (f"preemption: {message}",))
        return PostFilterResult(status, "" if attempt.drop else None)

    # The attempt

    def _attempt(
        self, job: PreemptingJob, turn: Turn, failure: FitError, waiting: Mapping[str, str], choose: Choose | None
    ) -> Attempt:
        why = self._ineligible(job, failure)
        if why:
            return Attempt(why, unschedulable(why))
        try:
            plan = self._planner.plan(job, failure.preemptible(), choose)
        except NotHelpful as problem:
            return Attempt("preemption not helpful", unschedulable(str(problem)), drop=True)
        except SimulationFailed as problem:
            return Attempt("select victims on node error", error(str(problem)))
        self._make_room(job, turn, plan)
        self._nominate(job, turn, plan, waiting)
        reason = f"preempt success, alreadyWaitingForBound: {len(waiting)}/{len(waiting) + len(job.members)}"
        return Attempt(reason, victims=sum(map(len, plan.victims.values())))

    def _ineligible(self, job: PreemptingJob, failure: FitError) -> str:
        """Why the job may not preempt now; empty when it may."""
        trigger = job.trigger
        if all(pod.uid != trigger.uid for pod in job.members):
            return "no pending pods"
        if trigger.pod.spec.preemption_policy == "Never":
            return NEVER
        for pod in job.members:
            row = self._table.row(pod.nominated) if pod.nominated else None
            if row is None or (pod.uid == trigger.uid and failure.status(row).code is Code.UNRESOLVABLE):
                continue
            others = self._table.pods[row].values()
            if self.evicting(pod) or any(_leaving(other, pod.priority) for other in others):
                return TERMINATING
        return ""

    def _make_room(self, job: PreemptingJob, turn: Turn, plan: PreemptionPlan) -> None:
        handle, queue, trigger = self._handle, self._runtime.queue, job.trigger
        victims = [pod for pods in plan.victims.values() for pod in pods]
        deleted = [v for v in victims if not handle.waiting.reject(v.uid, JOB_REJECT, "preempted")]
        if deleted:
            text = (
                f"{handle.profile}: preempting to accommodate higher priority pods, preemptor: {turn.group.id}, "
                f"triggerPod: {trigger.key}"
            )
            self._runtime.evictor.evict(deleted, by=trigger, message=text)
        for row in plan.victims:  # on every row (spec 05 §17, D4)
            for other in list(queue.nominated_on(self._table.names[row])):
                if other.priority < trigger.priority and not job.mine(other):
                    queue.nominate(other, "")

    def _nominate(self, job: PreemptingJob, turn: Turn, plan: PreemptionPlan, waiting: Mapping[str, str]) -> None:
        turn.nominations = {pod.key: self._table.names[plan.rows[pod.uid]] for pod in job.members}
        for pod in job.members:
            self._runtime.queue.nominate(pod, turn.nominations[pod.key])
        for uid in waiting.values():
            self._handle.waiting.reject(uid, JOB_SUCCESS, f'GangGroup "{turn.group.id}" waits for its victims to leave')

    def _cancel(self, turn: Turn, pending: Sequence[PodInfo], waiting: Mapping[str, str], message: str) -> None:
        turn.nominations = {pod.key: "" for pod in pending}
        for pod in pending:
            self._runtime.queue.nominate(pod, "")
        for uid in waiting.values():
            self._handle.waiting.reject(uid, JOB_FAILURE, f"preemption: {message}")


def _leaving(pod: PodInfo, priority: int) -> bool:
    """Whether the pod is on its way out, to make room for a pod of this priority."""
    condition = pod.pod.status.condition("DisruptionTarget")
    return (
        pod.terminating
        and may_leave(pod, priority)
        and condition is not None
        and condition.status == "True"
        and condition.reason == "PreemptionByScheduler"
    )
