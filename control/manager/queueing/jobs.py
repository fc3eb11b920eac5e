"""What a queued Job needs next: a unit, another phase, or to be suspended or resumed (spec 05 §14). Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from koordlet.api import names
from koordlet.api.core import Job, Pod
from koordlet.api.core.podresources import pod_requests
from koordlet.api.crs.queueing import (
    DEQUEUED,
    ENDED,
    ENQUEUED,
    FAILED,
    RUNNING,
    SUCCEED,
    TIMEOUT_BACKOFF,
    QueuePodSet,
    QueueUnit,
    QueueUnitSpec,
)
from koordlet.api.meta import ObjectReference

POD_SET: Final = "main"
MAX_BACKOFF_S: Final = 3600.0
MAX_NAME_CHARS: Final = 253
"""Of an object in Kubernetes."""
_WAITING: Final = ("", ENQUEUED, TIMEOUT_BACKOFF)


@dataclass(frozen=True)
class JobLimits:
    """Times of the job extension, in seconds."""

    start_s: float
    """From admission until pods must be ready."""
    backoff_s: float
    """After the first timeout; doubled with each."""

    def backoff(self, attempts: int) -> float:
        return min(self.backoff_s * 2.0 ** min(max(attempts - 1, 0), 32), max(MAX_BACKOFF_S, self.backoff_s))


@dataclass(frozen=True)
class JobStep:
    """What to write. None: nothing."""

    job_patch: dict[str, Any] | None = None
    unit_spec: QueueUnitSpec | None = None
    """Of a new unit, or of one whose job changed."""
    status: dict[str, Any] | None = None
    again_s: float | None = None
    """When to look again without an event."""

    @property
    def resumes(self) -> bool:
        return self.job_patch is not None and not self.job_patch["spec"]["suspend"]


def queue_of(job: Job) -> str:
    """The queue that the job names; empty for other jobs. A longer text than names may have is cut: it names none."""
    return job.metadata.annotations.get(names.ANNOTATION_QUEUE_NAME, "")[:MAX_NAME_CHARS]


def desired_spec(job: Job) -> QueueUnitSpec:
    """The unit of a job: what all pods that run at the same time request."""
    spec, meta = job.spec, job.metadata
    count = 1 if spec.parallelism is None else spec.parallelism
    if spec.completions is not None:
        count = min(count, spec.completions)
    count = max(count, 0)
    requests = pod_requests(Pod(metadata=spec.template.metadata, spec=spec.template.spec))
    return QueueUnitSpec(
        consumer_ref=ObjectReference(
            api_version="batch/v1", kind="Job", name=meta.name, namespace=meta.namespace, uid=meta.uid
        ),
        priority_class_name=spec.template.spec.priority_class_name,
        queue=queue_of(job),
        pod_sets=[QueuePodSet(name=POD_SET, count=count, request=requests)],
        request={name: amount * count for name, amount in requests.items()},
    )


def ended(job: Job) -> str:
    """Succeed or Failed; empty while the job runs."""
    true = {condition.type for condition in job.status.conditions if condition.status == "True"}
    return SUCCEED if "Complete" in true else FAILED if "Failed" in true else ""


def next_step(job: Job, unit: QueueUnit | None, now: float, limits: JobLimits) -> JobStep:
    """`unit` belongs to the job. A job runs only while its unit is Dequeued or Running."""
    outcome = ended(job)
    if unit is None:
        return JobStep(_suspension(job, True), desired_spec(job)) if not outcome else JobStep()
    status = unit.status
    if status.phase in ENDED:
        return JobStep()
    if outcome:
        return JobStep(status={"phase": outcome, "message": ""})
    since = now - (status.last_update_time.unix if status.last_update_time is not None else now)
    if status.phase == DEQUEUED:  # it may have been resumed much later: no leader ran
        since = min(since, now - job.status.start_time.unix if job.status.start_time is not None else 0.0)
    if status.phase == RUNNING:
        return JobStep(_suspension(job, False), status=_running(unit, job))
    if status.phase == DEQUEUED:
        if job.spec.suspend:
            return JobStep(_resumption(job, status.quota), again_s=limits.start_s)
        if job.status.ready > 0:
            return JobStep(status={"phase": RUNNING, "message": "", **(_running(unit, job) or {})})
        # After a jump of the clock to the past the whole time counts again.
        left = limits.start_s - max(since, 0.0)
        if left > 0:
            return JobStep(again_s=left)
        message = f"No pod was ready within {limits.start_s:g} s"
        timed_out = {"phase": TIMEOUT_BACKOFF, "attempts": status.attempts + 1, "message": message}
        return JobStep(_suspension(job, True), status=timed_out, again_s=limits.backoff(status.attempts + 1))
    spec = desired_spec(job)
    changed = spec if status.phase in _WAITING and spec != unit.spec else None
    if status.phase == TIMEOUT_BACKOFF:
        left = limits.backoff(status.attempts) - max(since, 0.0)
        if left <= 0:
            return JobStep(_suspension(job, True), changed, {"phase": ENQUEUED, "message": ""})
        return JobStep(_suspension(job, True), changed, again_s=left)
    return JobStep(_suspension(job, True), changed)


def _suspension(job: Job, suspend: bool) -> dict[str, Any] | None:
    return {"spec": {"suspend": suspend}} if job.spec.suspend != suspend else None


def _resumption(job: Job, quota: str) -> dict[str, Any]:
    """Resume the job. Its pods belong to the quota that admitted it; the template of a job that had pods is fixed."""
    spec: dict[str, Any] = {"suspend": False}
    if job.status.start_time is None and job.spec.template.metadata.labels.get(names.LABEL_QUOTA_NAME) != quota:
        spec["template"] = {"metadata": {"labels": {names.LABEL_QUOTA_NAME: quota}}}
    return {"spec": spec}


def _running(unit: QueueUnit, job: Job) -> dict[str, Any] | None:
    """The number of running pods in the admission, if it changed."""
    admissions = unit.status.admissions
    if not admissions or admissions[0].running == job.status.ready:
        return None
    first = {"name": admissions[0].name, "replicas": admissions[0].replicas, "resources": admissions[0].resources}
    return {"admissions": [{**first, "running": job.status.ready}, *admissions[1:]]}
