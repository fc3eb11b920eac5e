"""Placing a whole job within one cycle, after a plugin planned it (spec 05 §12; gate EnableInlineBatchSchedule).

FindOneNode plans a node for every member. Without this engine the plan restricts each member's own cycle to its node.
With it the first member's cycle checks, claims and permits all members. Either every member has a node, and each is
bound by a task of its own, or all claims are released and the first member's cycle fails with the reason.

The table is not copied: cycles are synchronous, so members are claimed on the table itself, where later members see
them, and are released there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram

from control.scheduler.cycle.cycle import Cycle
from control.scheduler.cycle.evaluation import prepare
from control.scheduler.cycle.placement import CycleFailed, Placement
from control.scheduler.framework.plugin import CycleState
from control.scheduler.framework.status import PluginStatus, error, unresolvable
from control.scheduler.process.metrics import exponential
from control.scheduler.state.cache import CacheError
from control.scheduler.state.pods import PodInfo
from koordlet.app.metrics import MetricSet

SCHEDULE_FAILURE: Final = "batch_schedule_failure"
PERMIT_FAILURE: Final = "batch_permit_failure"
_BIND_FAILURES: Final = {"PreBind": "pre_bind_error", "Bind": "bind_error"}


class BatchMetrics(MetricSet):
    """Koordinator's families (spec 05 §16.1)."""

    def __init__(self, registry: CollectorRegistry) -> None:
        seconds = exponential(0.001, 2, 15)

        def histogram(name: str, text: str, *labels: str) -> Histogram:
            return Histogram("scheduler_" + name, text, labels, buckets=seconds, registry=registry)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter("scheduler_" + name, text, labels, registry=registry)

        self.jobs = histogram("inline_batch_schedule_duration_seconds", "Duration of placing a whole job.", "result")
        self.by_node = histogram(
            "batch_algorithm_by_node_duration_seconds", "Duration of placing a job's pods on one node."
        )
        self.by_pod = histogram("batch_algorithm_by_pod_duration_seconds", "Duration of placing one pod of a job.")
        self.cleanups = counter(
            "batch_assumed_pods_cleanup_total", "Placed pods of jobs whose claims were released.", "reason"
        )
        self.partial_jobs = counter("batch_partial_bind_jobs_total", "Jobs with both bound and unbound pods.")
        self.partial_pods = counter(
            "batch_partial_bind_pods_total", "Pods of partially bound jobs, by result.", "status"
        )
        self.bind_failures = counter(
            "batch_bind_failures_total", "Pods of jobs whose binding failed.", "reason", "phase"
        )
        for reason in (SCHEDULE_FAILURE, PERMIT_FAILURE):
            self.cleanups.labels(reason)


class JobBindingCounter:
    """Counts how the bindings of one job end: all, none, or some of them."""

    def __init__(self, size: int, metrics: BatchMetrics) -> None:
        self._in_progress = size
        self._bound = 0
        self._failed = 0
        self._metrics = metrics

    def ended(self, placement: Placement, ok: bool) -> None:
        """The binding of one pod of the job succeeded or failed."""
        self._in_progress -= 1
        self._bound += ok
        self._failed += not ok
        if not ok:
            phase = placement.phase
            self._metrics.bind_failures.labels(_BIND_FAILURES.get(phase, "permit_error"), phase or "Permit").inc()
        if not self._in_progress and self._bound and self._failed:
            self._metrics.partial_jobs.inc()
            self._metrics.partial_pods.labels("success").inc(self._bound)
            self._metrics.partial_pods.labels("failure").inc(self._failed)


@dataclass(frozen=True)
class _Refusal:
    """A pod of the job that could not be placed."""

    pod: PodInfo
    node: str
    text: str
    plugin: str = ""


class InlineBatch:
    """The `BatchEngine`. The cycle of the member that triggered the plan calls `place`."""

    def __init__(self, metrics: BatchMetrics) -> None:
        self._metrics = metrics

    def place(self, cycle: Cycle, state: CycleState, pod: PodInfo) -> Placement | PluginStatus:
        """Claim the nodes of `state.plan`. Returns the placement of `pod` with all members' in `job`, or the reason."""
        begun = perf_counter()
        claimed: list[Placement] = []
        try:
            status = self._claim(cycle, state, pod, claimed)
            reason = SCHEDULE_FAILURE
            if status is None:
                status, reason = _permit(cycle, claimed), PERMIT_FAILURE
        except BaseException:  # also on a plugin's bug the claims must not remain
            self._release(cycle, claimed, SCHEDULE_FAILURE)
            raise
        result = "success" if status is None else "failure"
        self._metrics.jobs.labels(result).observe(perf_counter() - begun)
        if status is not None:
            self._release(cycle, claimed, reason)
            return status
        bindings = JobBindingCounter(len(claimed), self._metrics)
        first = next(placement for placement in claimed if placement.pod.uid == pod.uid)
        for placement in claimed:
            placement.bindings = bindings
        first.job = tuple(claimed)
        return first

    def _claim(
        self, cycle: Cycle, state: CycleState, trigger: PodInfo, claimed: list[Placement]
    ) -> PluginStatus | None:
        """Claim the planned node of every member. Returns None if all succeeded."""
        table = cycle.table
        by_row: dict[int, list[PodInfo]] = {}
        for member, row in state.plan:
            if row < 0 or not table.valid[row]:
                return error(f"batch schedule plan missing node for pod {member.key}")
            by_row.setdefault(row, []).append(member)
        refusals: list[_Refusal] = []
        for row, members in by_row.items():
            begun = perf_counter()
            self._claim_on(cycle, state, row, sorted(members, key=lambda member: member.key), claimed, refusals)
            self._metrics.by_node.observe(perf_counter() - begun)
        if refusals:
            return _job_failure(claimed, refusals)
        return None if any(placement.pod.uid == trigger.uid for placement in claimed) else error("no pods to schedule")

    def _claim_on(
        self,
        cycle: Cycle,
        state: CycleState,
        row: int,
        members: Sequence[PodInfo],
        claimed: list[Placement],
        refusals: list[_Refusal],
    ) -> None:
        refused: _Refusal | None = None
        for member in members:
            if member.terminating or member.uid in cycle.cache.pods:
                continue
            if refused is None:
                begun = perf_counter()
                placed = _place_member(cycle, state, member, row)
                self._metrics.by_pod.observe(perf_counter() - begun)
                if isinstance(placed, Placement):
                    claimed.append(placed)
                    continue
                refused = placed
            refusals.append(_Refusal(member, refused.node, refused.text, refused.plugin))

    def _release(self, cycle: Cycle, claimed: Sequence[Placement], reason: str) -> None:
        for placement in reversed(claimed):
            cycle.release(placement)
            cycle.waiting.leave(placement.pod.uid)
        self._metrics.cleanups.labels(reason).inc(len(claimed))


def _place_member(cycle: Cycle, job: CycleState, pod: PodInfo, row: int) -> Placement | _Refusal:
    """PreFilter to Reserve for one member on its node."""
    node = cycle.table.names[row]
    state = CycleState(same_job=job.same_job)
    full_name = f"{pod.key}/{pod.uid}"
    try:
        prepared = prepare(cycle.framework, state, pod)
        if not prepared.status.ok:
            text = f"pre-filter failed for pod {full_name}, {prepared.status.message}"
            return _Refusal(pod, node, text, prepared.status.plugin)
        if prepared.rows is not None and row not in prepared.rows:
            return _Refusal(pod, node, f"node {node} is pre-filter out for pod {full_name}")
        status = cycle.fits(state, pod, row)
        if not status.ok:
            text = f"filter pod {full_name} on node {node} failed, err: {status.message}"
            return _Refusal(pod, node, text, status.plugin)
    finally:
        state.run_undo()
    placement = Placement(pod, row, node, state, 1, 1)
    try:
        cycle.claim(placement)
    except CacheError as failure:
        return _Refusal(pod, node, f"assume pod {full_name} on node {node} failed, err: {failure}")
    except CycleFailed as failure:
        text = f"reserve pod {full_name} on node {node} failed, err: {failure}"
        return _Refusal(pod, node, text, failure.status.plugin)
    return placement


def _permit(cycle: Cycle, claimed: Sequence[Placement]) -> PluginStatus | None:
    """Permit all members, in the order of the claims. Returns None if no member is held at Permit afterwards."""
    for placement in claimed:
        try:
            cycle.permit(placement)
        except CycleFailed as failure:
            status = failure.status
            text = f"permit failed for pod {placement.pod.key}@{placement.node}: {status.message}"
            return unresolvable(text, plugin=status.plugin) if status.rejected else error(text, plugin=status.plugin)
    waiting = sum(cycle.waiting.waiting(placement.pod.uid) is not None for placement in claimed)
    if waiting:
        return unresolvable(
            f"inline batch permit did not complete: {waiting} pods are still waiting after all pods were permitted"
        )
    return None


def _job_failure(claimed: Sequence[Placement], refusals: Sequence[_Refusal]) -> PluginStatus:
    """The status of the job: its first refusal by the pod's key, with the pods that were placed on the same node."""
    first = min(refusals, key=lambda refusal: refusal.pod.key)
    beside = sorted(placement.pod.key for placement in claimed if placement.node == first.node)
    text = (
        f"job failed due to job batch schedule failed, assumed {len(claimed)} pods, failed {len(refusals)} pods, "
        f"first failed pod {first.pod.key}@{first.node} failed due to {first.text}"
    )
    if beside:
        text += f", assumed pods on node {first.node}: {', '.join(beside)}"
    return unresolvable(text, plugin=first.plugin)
