"""The controller `queuejobs`: the job extension of batch/v1 Jobs (spec 05 §14).

A Job with the annotation `kube-queue/queue-name` is suspended and gets a QueueUnit of its name. It is resumed when the
queue controller has dequeued the unit, and suspended again if no pod is ready in time. The cache may be behind, above
all after a change of the leader: a job is resumed by its unit as the API server has it.

A unit whose Job is gone, is being deleted or names no queue any more has ended: it would hold its quota for nothing,
and users can bring about all three without any right on units (`--cascade=orphan`, finalizers).
"""

from __future__ import annotations

from control.manager.context import ManagerContext
from control.manager.controller import ManagerController
from control.manager.queueing.jobs import JobLimits, ended, next_step, queue_of
from control.manager.queueing.metrics import QueueingMetrics
from control.manager.queueing.queuecontroller import GATE
from control.manager.queueing.unitstates import UnitStates
from koordlet.api.core import Job
from koordlet.api.crs.queueing import ENDED, FAILED, TIMEOUT_BACKOFF, QueueUnit, QueueUnitSpec
from koordlet.api.encoding.wire import to_builtins
from koordlet.api.meta import ObjectMeta, OwnerReference
from koordlet.app.logging import get_logger
from koordlet.kube import Conflict, NotFound
from koordlet.kube.selectors import by_name

log = get_logger(__name__)

RETRY_S = 1.0
JOB = ("batch/v1", "Job")


class QueuedJobsController(ManagerController):
    """See the module docstring."""

    name = "queuejobs"

    def __init__(self, context: ManagerContext) -> None:
        super().__init__(context)
        self._enabled = context.gates.enabled(GATE)
        options = context.options
        self._limits = JobLimits(options.job_queue_start_timeout, options.job_queue_backoff)
        self._counters = QueueingMetrics.of(context.internal)
        if self._enabled:
            self._jobs = context.caches.informer(Job)
            self._units = context.caches.informer(QueueUnit)
            self._states = UnitStates(context.client, self._units)

    def watch(self) -> None:
        if not self._enabled:
            return
        self._jobs.add_handler(self._job_seen, lambda _, new: self._job_seen(new), self._job_gone)
        self._units.add_handler(self._unit_seen, lambda _, new: self._unit_seen(new), self._unit_gone)

    def _job_seen(self, job: Job) -> None:
        if queue_of(job) or self._units.get(job.metadata.key) is not None:
            self.queue.add(job.metadata.key)

    def _job_gone(self, job: Job) -> None:
        self.queue.add(job.metadata.key)

    def _unit_seen(self, unit: QueueUnit) -> None:
        self.queue.add(unit.metadata.key)  # the key of its Job: `consumerRef` is free text of tenants

    def _unit_gone(self, unit: QueueUnit) -> None:
        self._states.forget(unit)
        self._unit_seen(unit)

    async def reconcile(self, key: str) -> float | None:
        job, unit = self._jobs.get(key), self._states.get(key)
        if job is None or not queue_of(job) or job.metadata.deletion_timestamp is not None:
            return await self._end(job, unit) if unit is not None else None
        if unit is not None and not _belongs(unit, job):
            log.warning("The QueueUnit of a Job belongs to another object", job=key)
            return await self._end(job, unit)  # its deletion is an event
        meta, client = job.metadata, self.context.client
        try:
            step = next_step(job, unit, self.context.clock.now(), self._limits)
            if step.resumes and unit is not None:
                unit = await self._states.read(unit)
                if unit is None:
                    return RETRY_S
                step = next_step(job, unit, self.context.clock.now(), self._limits)
            if step.job_patch is not None:
                await client.patch(
                    Job,
                    meta.name,
                    meta.namespace,
                    body={"metadata": {"resourceVersion": meta.resource_version}, **step.job_patch},
                )
            if step.unit_spec is not None:
                await self._write_spec(job, unit, step.unit_spec)
            elif step.status is not None and unit is not None:
                await self._states.patch(unit, self.context.clock.now(), **step.status)
                if step.status.get("phase") == TIMEOUT_BACKOFF:
                    self._counters.timeouts.inc()
                    log.info("A queued job was not running in time", job=key, attempts=step.status["attempts"])
        except (Conflict, NotFound):
            return RETRY_S  # the cache is behind
        return step.again_s

    async def _end(self, job: Job | None, unit: QueueUnit) -> float | None:
        """End a unit that was made for a Job which it cannot belong to any more."""
        meta, reference = unit.metadata, unit.spec.consumer_ref
        if reference is None or (reference.api_version, reference.kind, reference.name) != (*JOB, meta.name):
            return None  # another controller's
        if unit.status.phase in ENDED:
            return None
        outcome, message = FAILED, "Its Job names no queue any more"
        if job is None or not _belongs(unit, job):
            for present in await self.context.client.list(Job, meta.namespace, field_selector=by_name(meta.name)):
                if present.metadata.uid == reference.uid:
                    return RETRY_S  # the cache of Jobs is behind
            message = "Its Job is gone"
        elif job.metadata.deletion_timestamp is not None:
            outcome, message = ended(job) or FAILED, "Its Job is being deleted"
        try:
            await self._states.patch(unit, self.context.clock.now(), phase=outcome, message=message)
        except (Conflict, NotFound):
            return RETRY_S
        return None

    async def _write_spec(self, job: Job, unit: QueueUnit | None, spec: QueueUnitSpec) -> None:
        meta, client = job.metadata, self.context.client
        if unit is not None:
            body = {"metadata": {"resourceVersion": unit.metadata.resource_version}, "spec": to_builtins(spec)}
            await client.patch(QueueUnit, meta.name, meta.namespace, body=body)
            return
        owner = OwnerReference(api_version="batch/v1", kind="Job", name=meta.name, uid=meta.uid, controller=True)
        owned = ObjectMeta(name=meta.name, namespace=meta.namespace, labels=meta.labels, owner_references=[owner])
        await client.create(QueueUnit(metadata=owned, spec=spec))


def _belongs(unit: QueueUnit, job: Job) -> bool:
    reference = unit.spec.consumer_ref
    return reference is not None and reference.uid == job.metadata.uid
