"""A whole job placed within one cycle, when a plugin has planned it (spec 05 §12; gate EnableInlineBatchSchedule).

FindOneNode plans a node for every member. Without this engine the plan narrows each member's own cycle to its node;
with it the first member's cycle checks, claims and asks permission for all of them. Either everybody has a node, and
each is bound by a task of its own, or everything is taken back and the first member says why.

Nothing is copied: cycles are synchronous, so members are claimed on the table itself, which later members then see, and
are taken back from there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram

from control.scheduler.cycle.cycle import Cycle, CycleFailed, Placement, narrow
from control.scheduler.framework.plugin import CycleState
from control.scheduler.framework.status import SUCCESS, Status, error, unresolvable
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

        self.jobs = histogram("inline_batch_schedule_duration_seconds", "Time of placing a whole job.", "result")
        self.by_node = histogram("batch_algorithm_by_node_duration_seconds", "Time of a job's pods on one node.")
        self.by_pod = histogram("batch_algorithm_by_pod_duration_seconds", "Time of one pod of a job.")
        self.cleanups = counter("batch_assumed_pods_cleanup_total", "Pods whose nodes were given back.", "reason")
        self.partial_jobs = counter("batch_partial_bind_jobs_total", "Jobs of which only some pods were bound.")
        self.partial_pods = counter("batch_partial_bind_pods_total", "Pods of those jobs.", "status")
        self.bind_failures = counter(
            "batch_bind_failures_total", "Pods of jobs that were not bound.", "reason", "phase"
        )
        for reason in (SCHEDULE_FAILURE, PERMIT_FAILURE):
            self.cleanups.labels(reason)


class JobBindings:
    """How the bindings of one job end: together, or in part."""

    def __init__(self, size: int, metrics: BatchMetrics) -> None:
        self._left, self._bound, self._failed = size, 0, 0
        self._metrics = metrics

    def ended(self, placement: Placement, ok: bool) -> None:
        """A pod of the job is bound, or not."""
        self._left -= 1
        self._bound, self._failed = self._bound + ok, self._failed + (not ok)
        if not ok:
            phase = placement.phase
            self._metrics.bind_failures.labels(_BIND_FAILURES.get(phase, "permit_error"), phase or "Permit").inc()
        if not self._left and self._bound and self._failed:
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
    """The engine of one profile. `place` is called by the cycle of the member that was planned for."""

    def __init__(self, cycle: Cycle, metrics: BatchMetrics) -> None:
        self._cycle, self._metrics = cycle, metrics

    def place(self, state: CycleState, pod: PodInfo) -> Placement | Status:
        """Claim the nodes of `state.plan`. The placement of `pod`, with everybody's in `job`; or why there is none."""
        begun = perf_counter()
        claimed: list[Placement] = []
        try:
            status = self._claim(state, pod, claimed)
            reason = SCHEDULE_FAILURE
            if status is None:
                status, reason = self._permit(claimed), PERMIT_FAILURE
        except BaseException:  # a plugin's fault: what was claimed must not stay claimed
            self._take_back(claimed, SCHEDULE_FAILURE)
            raise
        result = "success" if status is None else "failure"
        self._metrics.jobs.labels(result).observe(perf_counter() - begun)
        if status is not None:
            self._take_back(claimed, reason)
            return status
        bindings = JobBindings(len(claimed), self._metrics)
        first = next(one for one in claimed if one.pod.uid == pod.uid)
        for one in claimed:
            one.bindings = bindings
        first.job = tuple(claimed)
        return first

    # -- nodes -------------------------------------------------------------------------------------------------------

    def _claim(self, state: CycleState, trigger: PodInfo, claimed: list[Placement]) -> Status | None:
        """A node for every member, as planned; None when each has its own."""
        table = self._cycle.table
        by_row: dict[int, list[PodInfo]] = {}
        for member, row in state.plan:
            if row < 0 or not table.valid[row]:
                return error(f"batch schedule plan missing node for pod {member.key}")
            by_row.setdefault(row, []).append(member)
        refusals: list[_Refusal] = []
        for row, members in by_row.items():
            begun = perf_counter()
            self._claim_on(state, row, sorted(members, key=lambda one: one.key), claimed, refusals)
            self._metrics.by_node.observe(perf_counter() - begun)
        if refusals:
            return _failed(claimed, refusals)
        return None if any(one.pod.uid == trigger.uid for one in claimed) else error("no pods to schedule")

    def _claim_on(
        self,
        state: CycleState,
        row: int,
        members: Sequence[PodInfo],
        claimed: list[Placement],
        refusals: list[_Refusal],
    ) -> None:
        refused: _Refusal | None = None
        for member in members:
            if member.terminating or member.uid in self._cycle.cache.pods:
                continue
            if refused is None:
                begun = perf_counter()
                found = self._place_one(state, member, row)
                self._metrics.by_pod.observe(perf_counter() - begun)
                if isinstance(found, Placement):
                    claimed.append(found)
                    continue
                refused = found
            refusals.append(_Refusal(member, refused.node, refused.text, refused.plugin))

    def _place_one(self, job: CycleState, pod: PodInfo, row: int) -> Placement | _Refusal:
        """PreFilter to Reserve for one member on its node."""
        cycle, node = self._cycle, self._cycle.table.names[row]
        state = CycleState(same_job=job.same_job)
        who = f"{pod.key}/{pod.uid}"
        try:
            status, left_out = self._pre_filter(state, pod, row)
            if not status.ok:
                return _Refusal(pod, node, f"pre-filter failed for pod {who}, {status.message}", status.plugin)
            if left_out:
                return _Refusal(pod, node, f"node {node} is pre-filter out for pod {who}")
            status = cycle.fits(state, pod, row)
            if not status.ok:
                text = f"filter pod {who} on node {node} failed, err: {status.message}"
                return _Refusal(pod, node, text, status.plugin)
        finally:
            while state.undo:
                state.undo.pop()()
        placement = Placement(pod, row, node, state, 1, 1)
        try:
            cycle.claim(placement)
        except CacheError as failure:
            return _Refusal(pod, node, f"assume pod {who} on node {node} failed, err: {failure}")
        except CycleFailed as failure:
            text = f"reserve pod {who} on node {node} failed, err: {failure}"
            return _Refusal(pod, node, text, failure.status.plugin)
        return placement

    def _pre_filter(self, state: CycleState, pod: PodInfo, row: int) -> tuple[Status, bool]:
        """What PreFilter and the hooks around it say, and whether they leave the node out."""
        framework = self._cycle.framework
        for plugin in framework.before_pre_filter:
            status = plugin.before_pre_filter(state, pod).by(plugin.name)
            if not status.ok and not status.skipped:
                return status, False
        rows, _, status = narrow(framework, state, pod)
        if not status.ok or (rows is not None and row not in rows):
            return status, status.ok
        for plugin in framework.after_pre_filter:
            status = plugin.after_pre_filter(state, pod, rows).by(plugin.name)
            if not status.ok and not status.skipped:
                return status, False
        return SUCCESS, False

    # -- permission --------------------------------------------------------------------------------------------------

    def _permit(self, claimed: Sequence[Placement]) -> Status | None:
        """Ask for everybody, in the order in which they were claimed; in the end nobody may have to wait."""
        for placement in claimed:
            try:
                self._cycle.permit(placement)
            except CycleFailed as failure:
                key, why = placement.pod.key, failure.status
                text = f"permit failed for pod {key}@{placement.node}: {why.message}"
                return unresolvable(text, plugin=why.plugin) if why.rejected else error(text, plugin=why.plugin)
        waiting = sum(self._cycle.waiting.waiting(one.pod.uid) is not None for one in claimed)
        if waiting:
            return unresolvable(
                f"inline batch permit did not complete: {waiting} pods are still waiting after all pods were permitted"
            )
        return None

    def _take_back(self, claimed: Sequence[Placement], reason: str) -> None:
        for placement in reversed(claimed):
            self._cycle.take_back(placement)
            self._cycle.waiting.leave(placement.pod.uid)
        self._metrics.cleanups.labels(reason).inc(len(claimed))


def _failed(claimed: Sequence[Placement], refusals: Sequence[_Refusal]) -> Status:
    """What the first refusal, by the pod's key, and the pods that do have a node there make of the whole job."""
    first = min(refusals, key=lambda one: one.pod.key)
    beside = sorted(one.pod.key for one in claimed if one.node == first.node)
    text = (
        f"job failed due to job batch schedule failed, assumed {len(claimed)} pods, failed {len(refusals)} pods, "
        f"first failed pod {first.pod.key}@{first.node} failed due to {first.text}"
    )
    if beside:
        text += f", assumed pods on node {first.node}: {', '.join(beside)}"
    return unresolvable(text, plugin=first.plugin)
