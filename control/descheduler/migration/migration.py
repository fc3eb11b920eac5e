"""The part of the migration controller that all profiles of a process share: arbitrator, reconciler, scavenger.

    plugins --create--> PodMigrationJob --> arbitrator (every 500 ms) --mark--> work queue --> JobExecutor
                                             scavenger (every minute) --delete--> old jobs and their Reservations

It runs on the leader only. A job runs after arbitration has passed it; changes of the job, its pod and its Reservation
queue it again. Failed requests are repeated with a back-off per job, until the job's time to live ends.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import Callable, Mapping

from control.component.errors import ConfigurationError
from control.descheduler.framework.handle import PluginHandle
from control.descheduler.migration.caches import CachedView
from control.descheduler.migration.decide import conditions as c
from control.descheduler.migration.decide.arbitration import Outcome, arbitrate, arrange, counts_in_arbitration
from control.descheduler.migration.decide.args import MigrationControllerArgs
from control.descheduler.migration.decide.filters import MigrationFilter
from control.descheduler.migration.decide.lifetime import has_expired, is_scrap
from control.descheduler.migration.decide.moving import MovingPods
from control.descheduler.migration.decide.objectlimiter import ObjectLimiter, RecordedBucket
from control.descheduler.migration.decide.pods import controller_of, controller_uid, quoted_key
from control.descheduler.migration.decide.view import is_marked, pod_of
from control.descheduler.migration.evictors import EvictionFailed, Evictors, trigger_of
from control.descheduler.migration.executor import JobExecutor, ReservationFailed
from control.descheduler.migration.jobbook import JobBook
from control.descheduler.migration.metrics import MigrationMetrics
from control.descheduler.migration.recordedlimits import RecordedLimits
from control.descheduler.migration.scales import Scales
from koordlet.api.core import Pod, PriorityClass
from koordlet.api.crs.migration import PodMigrationJob
from koordlet.api.crs.reservation import Reservation
from koordlet.api.names import (
    ANNOTATION_EVICTION_LIMITS,
    ANNOTATION_JOB_CREATED_BY,
    ANNOTATION_PASSED_ARBITRATION,
    TRUE,
)
from koordlet.app.logging import get_logger
from koordlet.app.loopslice import yield_to_loop
from koordlet.app.periodic import Periodic
from koordlet.app.tasks import end_tasks
from koordlet.kube import ApiError, Conflict, KubeError, NotFound, WorkQueue
from koordlet.kube.ratelimit import ExponentialBackoff

log = get_logger(__name__)

SCAVENGE_PERIOD_S = 60.0
MOVING_MAX_AGE_S = 1.0
RETRY_MIN_S, RETRY_MAX_S = 1.0, 30.0
PHASES = ("Pending", "Running", "Succeeded", "Failed", "Aborted")
SHARED = "migration"
"""Key of the part that all profiles share."""
FORBIDDEN_TEXT = "is forbidden to migrate because it does not meet the requirements"


class Migration:
    """See the module text."""

    def __init__(self, args: MigrationControllerArgs, handle: PluginHandle) -> None:
        self.args = args
        self.profile = handle.profile
        self.process_id = str(uuid.uuid4())
        """marks the jobs that this process creates"""
        self.book = JobBook()
        self._client, self._clock, self._events = handle.client, handle.clock, handle.events
        self.view = CachedView(handle.state, handle.objects, self.book, Scales(handle.client))
        self.limiter = ObjectLimiter(args.object_limiters, args.max_migrating_per_workload)
        note = handle.lease_note(ANNOTATION_EVICTION_LIMITS, RecordedBucket)
        self._limits = RecordedLimits(self.limiter, handle.clock, note)
        self._evicted = handle.metrics.evicted
        self._metrics = MigrationMetrics.of(handle.registry)
        self._classes = handle.objects.informer(PriorityClass) if _names_class(args) else None
        self._moving: tuple[int, float, MovingPods] | None = None
        self._rules: tuple[int | None, MigrationFilter] | None = None
        evictors = Evictors(
            handle.client,
            handle.events,
            default=args.eviction_policy,
            qps=args.evictions_per_second,
            burst=args.evict_burst,
        )
        self.executor = JobExecutor(
            handle.client,
            handle.objects,
            self.view,
            self.book,
            handle.events,
            args,
            self.limiter,
            self._limits,
            evictors,
            without_claims=handle.gates.enabled("DisablePVCReservation"),
            count=self._count_eviction,
        )
        self._queue: WorkQueue[str] | None = None
        self.exempts: Callable[[PodMigrationJob], bool] = lambda job: False
        """whether the pod of a job moves although it is not evictable; drains set it"""
        self._backoff: dict[str, ExponentialBackoff] = {}
        self._foreign: set[str] = set()
        """UIDs of ignored jobs of other processes, to log each once"""
        self._tasks: list[asyncio.Task[None]] = []
        self._registry = handle.registry
        self._dry_run = handle.dry_run
        self._arbitrator = Periodic(
            "migration-arbitrator",
            args.arbitration_args.interval.seconds,
            self.arbitrate,
            clock=self._clock,
            registry=handle.registry,
        )
        self._scavenger = Periodic(
            "migration-scavenger", SCAVENGE_PERIOD_S, self.scavenge, clock=self._clock, registry=handle.registry
        )
        handle.objects.informer(PodMigrationJob).add_handler(
            self.book.put, lambda old, new: self.book.put(new), self.book.remove
        )
        handle.objects.informer(Reservation).add_handler(
            self._reservation_changed, lambda old, new: self._reservation_changed(new), self._reservation_changed
        )
        handle.objects.informer(Pod).add_handler(None, lambda old, new: self._pod_changed(new), self._pod_changed)

    def moving(self) -> MovingPods:
        """The jobs that have not ended, for requests of plugins; rebuilt after a change, and after a second because
        their pods change, too."""
        now = self._clock.monotonic()
        if self._moving is None or self._moving[0] != self.book.version or now - self._moving[1] > MOVING_MAX_AGE_S:
            self._moving = self.book.version, now, MovingPods(self.view, self.book.active())
        return self._moving[2]

    def rules(self) -> MigrationFilter:
        """The filter chains with the present value of the configured PriorityClass."""
        threshold = self._threshold()
        if self._rules is None or self._rules[0] != threshold:
            self._rules = threshold, MigrationFilter.of(self.args, threshold)
        return self._rules[1]

    def _threshold(self) -> int | None:
        configured = self.args.priority_threshold
        if configured is None or self._classes is None:
            return configured.value if configured is not None else None
        priority_class = self._classes.get(configured.name)
        # Without the class no pod's priority is known to be below it, so none may move.
        return priority_class.value if priority_class is not None else -(2**31)

    # Running

    async def start(self) -> None:
        """This process leads. Several profiles may call it; only the first call counts. A dry run moves nothing."""
        if self._tasks or self._dry_run or self.args.dry_run:
            return
        self.lead()
        queue = self._queue = WorkQueue("migration", clock=self._clock, registry=self._registry)
        self.book.changed = queue.add
        for job in self.book.active():
            queue.add(job.metadata.uid)
        for number in range(self.args.max_concurrent_reconciles):
            self._tasks.append(asyncio.create_task(queue.work(self.reconcile), name=f"migration:{number}"))
        await self._arbitrator.start()
        await self._scavenger.start()

    def lead(self) -> None:
        """Adopt the jobs that an earlier leader started."""
        self.book.lead()
        self._limits.lead()
        for job in self.book.active():
            if self.book.may_run(job):
                self.executor.adopt(job)

    async def stop(self) -> None:
        """This process stops leading."""
        tasks, self._tasks = self._tasks, []
        self.book.changed = lambda uid: None
        await self._arbitrator.stop()
        await self._scavenger.stop()
        if self._queue is not None:
            await self._queue.shutdown()
            self._queue = None
        await end_tasks(*tasks)

    async def reconcile(self, uid: str) -> float | None:
        """Advance one job; returns the seconds until the next look."""
        try:
            again = await self.executor.run(uid)
        except Conflict:
            return RETRY_MIN_S  # the job changed meanwhile; its new version is on the way
        except (KubeError, EvictionFailed, ReservationFailed) as error:
            backoff = self._backoff.setdefault(uid, ExponentialBackoff(RETRY_MIN_S, RETRY_MAX_S, jitter=0.1))
            delay = backoff.next()
            log.info("Repeating a step of a migration", job=uid, seconds=round(delay, 1), err=error)
            return delay
        self._backoff.pop(uid, None)
        return again

    def _reservation_changed(self, reservation: Reservation) -> None:
        if self._queue is not None:
            for owner in reservation.metadata.owner_references:
                if self.book.get(owner.uid) is not None:
                    self._queue.add(owner.uid)

    def _pod_changed(self, pod: Pod) -> None:
        if self._queue is not None:
            for job in self.book.active():
                if job.spec.pod_ref.uid == pod.metadata.uid:
                    self._queue.add(job.metadata.uid)

    # Arbitration

    async def arbitrate(self) -> None:
        """One round: decide on all waiting jobs, in order; each decision sees those before it."""
        now = self._clock.now()
        waiting = [job for job in self.book.waiting() if has_expired(job, now) or not self._is_foreign(job)]
        self._show(len(waiting))
        passed = self.book.passed
        moving = MovingPods(self.view, (job for job in self.book.active() if counts_in_arbitration(job, passed)))
        for job in arrange(waiting, self.view, passed):
            await yield_to_loop()
            try:
                await self._decide(job, moving)
            except (Conflict, NotFound):
                continue  # changed or deleted meanwhile; the next round decides
            except KubeError as error:
                log.info("Cannot record the arbitration of a job", job=job.metadata.name, err=error)

    async def _decide(self, job: PodMigrationJob, moving: MovingPods) -> None:
        pod = pod_of(self.view, job)
        if pod is not None and controller_of(pod.metadata) is not None and not has_expired(job, self._clock.now()):
            await self.view.resolve(pod)
        verdict = arbitrate(job, self.view, self.rules(), moving, self._clock.now(), exempt=self.exempts(job))
        match verdict.outcome:
            case Outcome.PASSED:
                moving.add(job)
                if pod is not None:
                    self.executor.departures.note(job.metadata.uid, controller_uid(pod), pod.spec.node_name)
                await self._pass(job)
            case Outcome.FORBIDDEN:
                ref = job.spec.pod_ref
                log.info("A pod may not be migrated", pod=f"{ref.namespace}/{ref.name}", why=verdict.reason)
                message = f"Pod {quoted_key(ref.namespace, ref.name)} {FORBIDDEN_TEXT}"
                await self.executor.fail(job, c.FORBIDDEN, message)
            case Outcome.EXPIRED:
                await self.executor.fail(job, c.TIMEOUT, "Abort job caused by timeout")
            case Outcome.WAITING:
                log.debug("A job waits", job=job.metadata.name, why=verdict.reason)

    async def _pass(self, job: PodMigrationJob) -> None:
        """Mark the job. It counts from before the request on, so that a lost answer cannot exceed a limit."""
        uid = job.metadata.uid
        body = {
            "metadata": {
                "resourceVersion": job.metadata.resource_version,
                "annotations": {ANNOTATION_PASSED_ARBITRATION: TRUE},
            }
        }
        self.book.passed.add(uid)
        try:
            written = await self._client.patch(PodMigrationJob, job.metadata.name, body=body)
        except ApiError as error:
            if error.status < 500:  # refused; without a clear answer the mark may be written
                self.book.passed.discard(uid)
            raise
        finally:
            self.book.changed(uid)
        self.book.put(written)

    def _is_foreign(self, job: PodMigrationJob) -> bool:
        """Whether an earlier leader's plugin made the job from figures that are old now, and never started it."""
        creator = job.metadata.annotations.get(ANNOTATION_JOB_CREATED_BY)
        if creator is None or creator == self.process_id or is_marked(job):
            return False
        if job.metadata.uid not in self._foreign:
            self._foreign.add(job.metadata.uid)
            log.info("Ignoring a job of an earlier descheduler process", job=job.metadata.name)
        return True

    # Scavenger

    async def scavenge(self) -> None:
        """Delete the jobs that are too old, with their Reservations. Raises KubeError, which ends the round."""
        now = self._clock.now()
        for job in self.book.all():
            if is_scrap(job, now):
                await self.executor.delete_reservation(job)
                await self._client.delete(PodMigrationJob, job.metadata.name, uid=job.metadata.uid, missing_ok=True)
        known = {job.metadata.uid for job in self.book.all()}
        self._foreign &= known
        self._backoff = {uid: each for uid, each in self._backoff.items() if uid in known}

    # Metrics

    def _show(self, waiting: int) -> None:
        self._metrics.waiting.set(waiting)
        counts: Mapping[str, int] = Counter(job.status.phase or "Pending" for job in self.book.all())
        for phase in PHASES:
            self._metrics.jobs.labels(phase).set(counts.get(phase, 0))

    def _count_eviction(self, job: PodMigrationJob, pod: Pod, succeeded: bool) -> None:
        result = "success" if succeeded else "error"
        self._evicted.labels(result, trigger_of(job), pod.metadata.namespace, pod.spec.node_name).inc()


def shared(args: MigrationControllerArgs, handle: PluginHandle) -> Migration:
    """The part of all profiles. Raises ConfigurationError if two profiles have different arguments."""
    migration = handle.share(SHARED, lambda: Migration(args, handle))
    if migration.args != args:
        raise ConfigurationError(
            [
                f"pluginConfig[MigrationController]: profiles {migration.profile} and {handle.profile} have different "
                "arguments, but all profiles share one migration controller"
            ]
        )
    return migration


def _names_class(args: MigrationControllerArgs) -> bool:
    return args.priority_threshold is not None and bool(args.priority_threshold.name)
