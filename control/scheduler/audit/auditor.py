"""The workload auditor: which workloads there are, what happens to each (spec 05 §7.4, `--enable-workload-auditor`).

It hears of pods as the API server tells of them, of attempts from the loop, of preemption from PostFilter and the
evictor, of gangs from Coscheduling. What it makes of that is in `auditing`. Switched off, nobody calls it.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence

from control.scheduler.audit.workload import AuditMetrics, Kind, Limits, Workload
from control.scheduler.cycle.failures import FitError
from control.scheduler.state.pods import PodInfo
from koordlet.api.core import Pod
from koordlet.app.clock import Clock

_LEAVING = "terminating pod on the nominated node"
"""What both plugins that preempt say while victims are on their way out."""
_ATTEMPTED = "preemption already attempted by"

GroupOf = Callable[[Pod], "tuple[str, bool] | None"]
"""(id of the pod's gang group, whether it has enough members); None for a pod without a gang."""


class Auditor:
    """See the module text. `served`: scheduler names of this process; `labels`: of pods, shown in metrics."""

    def __init__(
        self,
        clock: Clock,
        metrics: AuditMetrics,
        served: Container[str],
        group_of: GroupOf,
        *,
        limits: Limits,
        labels: Sequence[str] = (),
    ) -> None:
        self._now = clock.monotonic
        self._metrics, self._limits, self._labels = metrics, limits, labels
        self._served, self._group_of = served, group_of
        self.workloads: dict[str, Workload] = {}
        """By id of the gang group, or `namespace/name/uid` of the pod."""
        self._of_pod: dict[str, str] = {}
        """uid of a pod without a node -> its workload."""
        self._members: dict[str, set[str]] = {}
        """Gang group -> uids of its members without a node."""
        self._victims: dict[str, set[str]] = {}
        """Workload -> uids of victims that are not gone yet."""
        self._of_victim: dict[str, set[str]] = {}

    # -- pods --------------------------------------------------------------------------------------------------------

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
                self._note(key, Kind.VICTIMS_GONE)
        mine = self._of_pod.pop(uid, None)
        if mine is None:
            return
        members = self._members.get(mine)
        if members is None:
            self._end(mine, "deleted")
            return
        members.discard(uid)
        if not members:
            self._end(mine, "gangDeleted")

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
                self._note(key, Kind.CREATE)
        workload = self.workloads.get(key)
        if workload is None:  # it has an outcome already: the other members are on their way
            return
        if gang is not None and gang[1] and not workload.counts[Kind.COMPLETE]:
            self._note(key, Kind.COMPLETE)
        gated = bool(pod.spec.scheduling_gates)
        if gated != workload.gated:
            workload.gated = gated
            self._note(key, Kind.GATED if gated else Kind.ADMITTED)

    # -- attempts ----------------------------------------------------------------------------------------------------

    def post_filter(self, pod: PodInfo, failure: FitError) -> None:
        """PostFilter has run for a pod that no node fits."""
        said = " ".join(failure.post_filter)
        key = self._of_pod.get(pod.uid, "")
        if failure.nominated:
            if self._attempted(pod, Kind.NOMINATED) and key not in self._victims:
                self._note(key, Kind.VICTIMS_GONE)  # they waited at Permit, and are gone already
        elif _LEAVING in said:
            self._attempted(pod, Kind.DELETING)
        elif "preemption:" in said and _ATTEMPTED not in said:
            self._attempted(pod, Kind.PREEMPT_FAILED)

    def evicting(self, by: PodInfo, victims: Iterable[PodInfo]) -> None:
        """Pods are being removed to make room."""
        key = self._of_pod.get(by.uid)
        if key is None:
            return
        for victim in victims:
            self._victims.setdefault(key, set()).add(victim.uid)
            self._of_victim.setdefault(victim.uid, set()).add(key)

    def failed(self, pod: PodInfo) -> None:
        """An attempt ended without a node; told already if preemption had something to say of it."""
        self._attempted(pod, Kind.FAILED)

    def scheduled(self, pod: PodInfo) -> None:
        """The pod is bound."""
        key = self._of_pod.pop(pod.uid, "")
        gang = key in self._members
        self._note(key, Kind.SCHEDULED)
        self._end(key, "gangScheduled" if gang else "scheduled")
        if gang:
            self._members[key].discard(pod.uid)
            if not self._members[key]:
                del self._members[key]

    def all_attempted(self, group: str) -> None:
        """A gang group's turn ended without a failure, and without enough members."""
        self._note(group, Kind.ALL_ATTEMPTED)

    # -- inside ------------------------------------------------------------------------------------------------------

    def _attempted(self, pod: PodInfo, kind: Kind) -> bool:
        """Note what came of an attempt, unless something is noted of it already."""
        key = self._of_pod.get(pod.uid, "")
        workload = self.workloads.get(key)
        if workload is None or workload.noted == pod.attempts:
            return False
        workload.noted = pod.attempts
        self._note(key, kind)
        return True

    def _note(self, key: str, kind: Kind) -> None:
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
