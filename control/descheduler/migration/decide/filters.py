"""The checks before a pod may move: whether it may move at all, and whether the limits have room (spec 07 §11.4). Pure.

A failed check of the first chain ends a job. A failed check of the second one makes it wait. Both chains pass a pod
with the overriding annotation `descheduler.alpha.kubernetes.io/evict`.
"""

from __future__ import annotations

from dataclasses import dataclass

from control.descheduler.migration.decide.args import MigrationControllerArgs
from control.descheduler.migration.decide.evictability import Evictability, forced, never_evicted
from control.descheduler.migration.decide.moving import MovingPods
from control.descheduler.migration.decide.pods import controller_uid, is_serving
from control.descheduler.migration.decide.view import ClusterView, WorkloadUnknown
from control.descheduler.migration.decide.workloads import get_max
from koordlet.api.core import Pod
from koordlet.api.crs.migration import MODE_RESERVATION_FIRST


@dataclass(frozen=True, slots=True)
class MigrationFilter:
    """The chains with one configuration. Every method returns the reason of a refusal, or an empty text."""

    args: MigrationControllerArgs
    evictability: Evictability

    @classmethod
    def of(cls, args: MigrationControllerArgs, priority_threshold: int | None = None) -> MigrationFilter:
        """See `Evictability.of`."""
        return cls(args, Evictability.of(args, priority_threshold))

    def refused_for_plugin(self, pod: Pod, view: ClusterView, moving: MovingPods) -> str:
        """All checks of a plugin's request, in the order of spec 07 §11.4. `moving`: all jobs that have not ended."""
        if moving.names(pod):
            return "a PodMigrationJob of the pod exists"
        return self.unreservable(pod) or self.forbidden(pod, view) or self.over_limits(pod, view, moving)

    def unreservable(self, pod: Pod, mode: str = "") -> str:
        """Whether the pod's scheduler would ignore the Reservation of a job in this mode; empty: the default mode."""
        reserves = (mode or self.args.default_job_mode) == MODE_RESERVATION_FIRST
        if reserves and pod.spec.scheduler_name not in self.args.scheduler_names:
            return f"its scheduler {pod.spec.scheduler_name!r} does not support reservations"
        return ""

    def forbidden(self, pod: Pod, view: ClusterView) -> str:
        """The checks that do not change with time."""
        args = self.args
        if forced(pod):
            return ""
        namespaces = None if args.skips("Namespaces") else args.namespaces
        if namespaces is not None and not namespaces.allows(pod.metadata.namespace):
            return f"namespace {pod.metadata.namespace} is excluded"
        if never_evicted(pod):
            return "its eviction cost forbids it"
        problems = self.evictability.problems(pod)
        return ", ".join(problems) or self._too_few_replicas(pod, view)

    def over_limits(self, pod: Pod, view: ClusterView, moving: MovingPods) -> str:
        """The checks that other migrations may fail."""
        if forced(pod):
            return ""
        return (
            self._global(pod, moving)
            or self._node(pod, moving)
            or self._namespace(pod, moving)
            or self._workload(pod, view, moving)
        )

    def _global(self, pod: Pod, moving: MovingPods) -> str:
        limit = self._limit("MaxMigratingGlobally", self.args.max_migrating_globally)
        return f"maxMigratingGlobally is {limit}" if limit and moving.others(pod) >= limit else ""

    def _node(self, pod: Pod, moving: MovingPods) -> str:
        limit = self._limit("MaxMigratingPerNode", self.args.max_migrating_per_node)
        if limit and pod.spec.node_name and moving.others_on_node(pod) >= limit:
            return f"maxMigratingPerNode is {limit}"
        return ""

    def _namespace(self, pod: Pod, moving: MovingPods) -> str:
        limit = self._limit("MaxMigratingPerNamespace", self.args.max_migrating_per_namespace)
        return f"maxMigratingPerNamespace is {limit}" if limit and moving.others_in_namespace(pod) >= limit else ""

    def _limit(self, gate: str, limit: int | None) -> int:
        return 0 if limit is None or self.args.skips(gate) else max(limit, 0)

    def _workload(self, pod: Pod, view: ClusterView, moving: MovingPods) -> str:
        args = self.args
        checks_migrating = not args.skips("MaxMigratingPerWorkload")
        checks_unavailable = not args.skips("MaxUnavailablePerWorkload")
        if not controller_uid(pod) or not (checks_migrating or checks_unavailable):
            return ""
        try:
            workload = view.workload(pod)
        except WorkloadUnknown as error:
            return f"its workload is unknown: {error}"
        migrating = moving.siblings(pod, workload.pods)
        most = get_max(workload.replicas, args.max_migrating_per_workload)
        if checks_migrating and migrating and len(migrating) >= most:
            return f"maxMigratingPerWorkload is {most}"
        unavailable = {other.metadata.uid for other in workload.pods if not is_serving(other)} | migrating
        most = get_max(workload.replicas, args.max_unavailable_per_workload)
        if checks_unavailable and len(unavailable) >= most:
            return f"maxUnavailablePerWorkload is {most}"
        return ""

    def _too_few_replicas(self, pod: Pod, view: ClusterView) -> str:
        args = self.args
        if not controller_uid(pod) or args.skip_check_expected_replicas or args.skips("ExpectedReplicas"):
            return ""
        try:
            replicas = view.workload(pod).replicas
        except WorkloadUnknown as error:
            return f"its workload is unknown: {error}"
        most = (
            get_max(replicas, args.max_migrating_per_workload),
            get_max(replicas, args.max_unavailable_per_workload),
        )
        if replicas == 1 or replicas in most:
            return f"a migration may affect all {replicas} replicas of its workload"
        return ""
