"""The workload auditor: the workloads and the events of each (spec 05 §7.4, `--enable-workload-auditor`).

Its inputs are pods from the API server, attempts from the reporter, preemption from PostFilter and the evictor, and
gangs from Coscheduling. `workload` derives warnings and metrics from the events. When disabled it is not created.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence

from control.scheduler.audit.workload import AuditLimits, AuditMetrics, Workload, WorkloadEvent
from control.scheduler.cycle.cycle import Cycle
from control.scheduler.cycle.failures import FitError
from control.scheduler.cycle.observer import CycleObserver
from control.scheduler.framework.plugin import CycleState
from control.scheduler.state.pods import PodInfo
from koordlet.api.core import Pod
from koordlet.app.clock import Clock

_VICTIMS_TERMINATING = "terminating pod on the nominated node"
"""Part of the message of both preempting plugins while victims terminate."""
_ALREADY_ATTEMPTED = "preemption already attempted by"

GroupOf = Callable[[Pod], "tuple[str, bool] | None"]
"""(id of the pod's gang group, whether it has enough members); None for a pod without a gang."""


class WorkloadAuditor(CycleObserver):
    """See the module text."""

    def __init__(
        self,
        clock: Clock,
        metrics: AuditMetrics,
        served: Container[str],
        group_of: GroupOf,
        *,
        limits: AuditLimits,
        labels: Sequence[str] = (),
    ) -> None:
        """`served`: scheduler names of this process; `labels`: names of pod labels that the metrics have."""
        self._now = clock.monotonic
        self._metrics = metrics
        self._limits = limits
        self._labels = labels
        self._served = served
        self._group_of = group_of
        self.workloads: dict[str, Workload] = {}
        """By id of the gang group, or `namespace/name/uid` of the pod."""
        self._of_pod: dict[str, str] = {}
        """uid of a pod without a node -> its workload."""
        self._members: dict[str, set[str]] = {}
        """Gang group -> uids of its members without a node."""
        self._victims: dict[str, set[str]] = {}
        """Workload -> uids of its victims that still exist."""
        self._of_victim: dict[str, set[str]] = {}
        """uid of a victim -> the workloads that it makes room for."""

    # Pods

    def pod_added(self, pod: Pod) -> None:
        if not pod.spec.node_name and pod.spec.scheduler_name in self._served:
            with self._metrics.method.labels("appeared").time():
                self._appeared(pod)

    def pod_updated(self, old: Pod, new: Pod) -> None:
        self.pod_added(new)

    def pod_deleted(self, pod: Pod) -> None:
        uid = pod.metadata.uid
        for key in self._of_victim.pop(uid, ()):
            left = self._victims.get(key, set())
            left.discard(uid)
            if not left:
                self._victims.pop(key, None)
                self._note(key, WorkloadEvent.VICTIMS_GONE)
        own = self._of_pod.pop(uid, None)
        if own is None:
            return
        members = self._members.get(own)
        if members is None:
            self._end(own, "deleted")
            return
        members.discard(uid)
        if not members:
            self._end(own, "gangDeleted")

    def _appeared(self, pod: Pod) -> None:
        uid, gang = pod.metadata.uid, self._group_of(pod)
        key = gang[0] if gang is not None else f"{pod.metadata.key}/{uid}"
        if uid not in self._of_pod:
            self._of_pod[uid] = key
            if gang is not None:
                self._members.setdefault(key, set()).add(uid)
            if key not in self.workloads:
                values = (pod.spec.priority_class_name, *(pod.metadata.labels.get(name, "") for name in self._labels))
                self.workloads[key] = Workload(key, values, self._metrics, self._limits)
                self._note(key, WorkloadEvent.CREATE)
        workload = self.workloads.get(key)
        if workload is None:  # it has ended already: the remaining members are being bound
            return
        if gang is not None and gang[1] and not workload.counts[WorkloadEvent.COMPLETE]:
            self._note(key, WorkloadEvent.COMPLETE)
        gated = bool(pod.spec.scheduling_gates)
        if gated != workload.gated:
            workload.gated = gated
            self._note(key, WorkloadEvent.GATED if gated else WorkloadEvent.ADMITTED)

    # Attempts

    def on_unschedulable(self, cycle: Cycle, state: CycleState, pod: PodInfo, failure: FitError) -> None:
        message = " ".join(failure.post_filter)
        key = self._of_pod.get(pod.uid, "")
        if failure.nominated:
            if self._attempted(pod, WorkloadEvent.NOMINATED) and key not in self._victims:
                self._note(key, WorkloadEvent.VICTIMS_GONE)  # they were held at Permit, and are gone already
        elif _VICTIMS_TERMINATING in message:
            self._attempted(pod, WorkloadEvent.DELETING)
        elif "preemption:" in message and _ALREADY_ATTEMPTED not in message:
            self._attempted(pod, WorkloadEvent.PREEMPT_FAILED)

    def evicting(self, by: PodInfo, victims: Iterable[PodInfo]) -> None:
        """Pods are being removed to make room."""
        key = self._of_pod.get(by.uid)
        if key is None:
            return
        for victim in victims:
            self._victims.setdefault(key, set()).add(victim.uid)
            self._of_victim.setdefault(victim.uid, set()).add(key)

    def attempt_failed(self, pod: PodInfo) -> None:
        """An attempt ended without a node. Ignored if preemption recorded an event for the attempt already."""
        self._attempted(pod, WorkloadEvent.FAILED)

    def attempt_scheduled(self, pod: PodInfo) -> None:
        """The pod is bound."""
        key = self._of_pod.pop(pod.uid, "")
        gang = key in self._members
        self._note(key, WorkloadEvent.SCHEDULED)
        self._end(key, "gangScheduled" if gang else "scheduled")
        if gang:
            self._members[key].discard(pod.uid)
            if not self._members[key]:
                del self._members[key]

    def all_attempted(self, group: str) -> None:
        """Every member of a gang group was tried; none failed, but there are not enough members."""
        self._note(group, WorkloadEvent.ALL_ATTEMPTED)

    def _attempted(self, pod: PodInfo, kind: WorkloadEvent) -> bool:
        """Record the result of an attempt, unless one is recorded already. Returns whether it was recorded."""
        key = self._of_pod.get(pod.uid, "")
        workload = self.workloads.get(key)
        if workload is None or workload.recorded_attempt == pod.attempts:
            return False
        workload.recorded_attempt = pod.attempts
        self._note(key, kind)
        return True

    def _note(self, key: str, kind: WorkloadEvent) -> None:
        workload = self.workloads.get(key)
        if workload is not None:
            with self._metrics.method.labels("add").time():
                workload.add(kind, self._now())

    def _end(self, key: str, outcome: str) -> None:
        workload = self.workloads.pop(key, None)
        for uid in self._victims.pop(key, ()):
            waiting = self._of_victim[uid]
            waiting.discard(key)
            if not waiting:
                del self._of_victim[uid]
        if outcome == "gangDeleted":
            self._members.pop(key, None)
        if workload is not None:
            with self._metrics.method.labels("end").time():
                workload.end(outcome, self._now())
