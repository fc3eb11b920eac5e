"""What the decisions read: pods, workloads and the jobs that count as migrating (spec 07 §11.4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from control.descheduler.migration.decide.workloads import ReplicatedWorkload
from koordlet.api.core import Pod
from koordlet.api.crs.migration import PodMigrationJob
from koordlet.api.names import ANNOTATION_PASSED_ARBITRATION, TRUE

PENDING, RUNNING = "Pending", "Running"
SUCCEEDED, FAILED, ABORTED = "Succeeded", "Failed", "Aborted"
TERMINAL = frozenset((SUCCEEDED, FAILED, ABORTED))


class WorkloadUnknown(Exception):
    """The workload of a pod could not be determined now; the check that needs it refuses the pod."""


class ClusterView(Protocol):
    """The cluster at one moment. All methods are synchronous and cheap."""

    def pod(self, namespace: str, name: str) -> Pod | None:
        """The pod of that name."""
        ...

    def order(self, pod: Pod) -> tuple[object, ...]:
        """The sort key of spec 07 §5.1 without usage: pods with a smaller key are evicted earlier."""
        ...

    def jobs(self) -> Sequence[PodMigrationJob]:
        """All jobs; ended ones may be missing."""
        ...

    def workload(self, pod: Pod) -> ReplicatedWorkload:
        """The workload of the pod's controller. Raises WorkloadUnknown."""
        ...


def is_terminal(job: PodMigrationJob) -> bool:
    """Whether the job has ended."""
    return job.status.phase in TERMINAL


def is_waiting(job: PodMigrationJob) -> bool:
    """Whether the job has not started."""
    return job.status.phase in ("", PENDING)


def is_marked(job: PodMigrationJob) -> bool:
    """Whether the job has the annotation that arbitration writes; any client that may write jobs can set it."""
    return job.metadata.annotations.get(ANNOTATION_PASSED_ARBITRATION) == TRUE


def pod_of(view: ClusterView, job: PodMigrationJob) -> Pod | None:
    """The pod with the name in the job, whatever its UID is."""
    ref = job.spec.pod_ref
    return view.pod(ref.namespace, ref.name)
