"""Carries out the decisions on one job: API requests, the status, events (spec 07 §11.6 to §11.9).

`run` repeats observe, decide, carry out until the job waits or has ended. It reads from the caches, and asks the API
server where an outdated cache would do harm: before a missing object fails a job, and before an eviction. Every request
can be repeated after a crash: the next observation leads to the same request, and the server refuses or ignores what is
done already (a Reservation exists, a pod with this UID is gone). The status says that an eviction is requested before
the request is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import msgspec

from control.component.informers import InformerSet
from control.descheduler.migration.caches import CachedView
from control.descheduler.migration.decide import decision as d
from control.descheduler.migration.decide import places, reconcile, reservations
from control.descheduler.migration.decide.args import MigrationControllerArgs
from control.descheduler.migration.decide.decision import Decision, Observed
from control.descheduler.migration.decide.objectlimiter import ObjectLimiter
from control.descheduler.migration.decide.places import SiblingMove
from control.descheduler.migration.decide.pods import controller_uid
from control.descheduler.migration.decide.view import is_terminal
from control.descheduler.migration.departures import Departures
from control.descheduler.migration.evictors import EvictionDenied, EvictionFailed, Evictors, reason_of
from control.descheduler.migration.jobbook import JobBook
from control.descheduler.migration.recordedlimits import RecordedLimits
from koordlet.api.core import Pod
from koordlet.api.crs.migration import PodMigrationJob, PodMigrationJobStatus
from koordlet.api.crs.reservation import Reservation
from koordlet.api.encoding import wire
from koordlet.api.names import LABEL_RESERVATION_ORDER
from koordlet.api.registry import resource_for
from koordlet.app.logging import get_logger
from koordlet.kube import ApiError, Client, Conflict, EventRecorder, NotFound, merge_diff

log = get_logger(__name__)

EVENT_ACTION = "Migrating"
"""`action` of the Events of jobs"""
MAX_STEPS = 20
"""Decisions in one run; a migration has at most a dozen."""
K = TypeVar("K", Pod, Reservation)


class JobExecutor:
    """See the module text."""

    def __init__(
        self,
        client: Client,
        objects: InformerSet,
        view: CachedView,
        book: JobBook,
        events: EventRecorder,
        args: MigrationControllerArgs,
        limiter: ObjectLimiter,
        limits: RecordedLimits,
        evictors: Evictors,
        *,
        without_claims: bool,
        count: Callable[[PodMigrationJob, Pod, bool], object],
    ) -> None:
        """`without_claims`: gate DisablePVCReservation; `count`: called after each eviction with its success."""
        self._client = client
        self._reservations = objects.informer(Reservation)
        self._view = view
        self._book = book
        self._events = events
        self._args = args
        self._limiter = limiter
        self._limits = limits
        self._evictors = evictors
        self._without_claims = without_claims
        self._count = count
        self.departures = Departures()
        self._unrecorded: dict[str, Pod] = {}
        """UID of a job -> the pod that was evicted for it, until its status records it"""
        self._counted: set[str] = set()
        """UIDs of the jobs whose eviction the limiter has counted: a repeated request counts once"""

    async def run(self, uid: str) -> float | None:
        """Advance the job. Returns the seconds until the next look; None: it has ended or another event follows.

        Raises KubeError, EvictionFailed and ReservationFailed for requests to repeat with back-off.
        """
        for _ in range(MAX_STEPS):
            job = self._book.get(uid)
            if job is None or not self._book.may_run(job) or job.metadata.deletion_timestamp is not None:
                self._unrecorded.pop(uid, None)
                self._counted.discard(uid)
                self.departures.drop(uid)
                return None
            if uid in self._unrecorded:
                await self._record_eviction(job, self._unrecorded[uid])
                continue
            seen = await self._observe(job)
            decision = reconcile.next_step(seen, self._args.default_job_mode)
            if decision is d.NOTHING:
                return None
            if decision is d.WAIT:
                return d.POLL_S
            await self._carry_out(seen, decision)
            if decision.again_s is not None:
                return decision.again_s
        return d.POLL_S

    async def fail(self, job: PodMigrationJob, reason: str, message: str) -> None:
        """End a job that arbitration refuses. Raises KubeError."""
        await self._carry_out(*self._failure(job, reason, message))

    def _failure(self, job: PodMigrationJob, reason: str, message: str) -> tuple[Observed, Decision]:
        seen = Observed(job, self._client.clock.now())
        return seen, d.failed(seen, reason, message)

    # Observing

    async def _observe(self, job: PodMigrationJob) -> Observed:
        pod, reservation, replacement = None, None, None
        ref = job.spec.pod_ref
        if ref.namespace and ref.name:
            pod = self._view.pod(ref.namespace, ref.name)
            if pod is None or (ref.uid and pod.metadata.uid != ref.uid):
                pod = await self._live(Pod, ref.name, ref.namespace)
        target = reconcile.reservation_ref(job)
        if target is not None and not is_terminal(job):
            reservation = self._reservations.get(target.name) or await self._live(Reservation, target.name)
            if reservation is not None and target.uid and reservation.metadata.uid != target.uid:
                reservation = await self._live(Reservation, target.name)
                if reservation is not None and reservation.metadata.uid != target.uid:
                    reservation = None  # another Reservation has the name now
        if reservation is not None and reservation.status.current_owners:
            owner = reservation.status.current_owners[0]
            replacement = self._view.pod(owner.namespace, owner.name)
            if replacement is None and owner.namespace and owner.name:
                replacement = await self._live(Pod, owner.name, owner.namespace)
        self._depart(job, pod, reservation)
        siblings = tuple(self._siblings(job.metadata.uid))
        await self._limits.read()
        is_counted = job.metadata.uid in self._counted
        limited = pod is not None and not is_counted and self._limiter.exceeded(pod, self._client.clock.monotonic())
        return Observed(job, self._client.clock.now(), pod, reservation, replacement, limited, siblings)

    def adopt(self, job: PodMigrationJob) -> None:
        """Record whose pod a job of an earlier process moves, before any job continues."""
        ref, target = job.spec.pod_ref, reconcile.reservation_ref(job)
        reservation = self._reservations.get(target.name) if target is not None else None
        self._depart(job, self._view.pod(ref.namespace, ref.name), reservation)

    def _depart(self, job: PodMigrationJob, pod: Pod | None, reservation: Reservation | None) -> None:
        uid = job.metadata.uid
        if pod is not None and pod.metadata.uid == job.spec.pod_ref.uid:
            self.departures.note(uid, controller_uid(pod), pod.spec.node_name)
        elif reservation is not None:
            self.departures.note(uid, next(iter(reservations.consumers(reservation)), ""), "")

    def _siblings(self, uid: str) -> Iterator[SiblingMove]:
        for each in self.departures.siblings(uid):
            job = self._book.get(each)
            if job is None or is_terminal(job):
                continue
            ref = reconcile.reservation_ref(job)
            place = self._reservations.get(ref.name) if ref is not None else None
            yield SiblingMove(job, place, self._reservations.get(reservations.reservation_name(job)))

    async def _live(self, kind: type[K], name: str, namespace: str | None = None) -> K | None:
        try:
            return await self._client.get(kind, name, namespace)
        except NotFound:
            return None

    # Carrying out

    async def _carry_out(self, seen: Observed, decision: Decision) -> None:
        match decision.action:
            case d.SetPodUid(uid):
                await self._patch_spec(seen.job, {"podRef": {"uid": uid}})
            case d.CreateReservation():
                await self._create_reservation(seen)
            case d.OrderReservation(name):
                order = str(int(seen.now * 1000))
                body = {"metadata": {"labels": {LABEL_RESERVATION_ORDER: order}}}
                await self._client.patch(Reservation, name, body=body)
            case d.UseReservation(reservation, take_over):
                await self._use(seen.job, reservation, take_over=take_over)
            case d.DeleteReservation():
                await self.delete_reservation(seen.job)
            case d.EvictPod():
                await self._evict(seen, decision.action)
            case None:
                pass
        await self._conclude(seen, decision)

    async def _conclude(self, seen: Observed, decision: Decision) -> None:
        """Write the status and record the events of a decision."""
        if decision.status is not None:
            await self._write_status(seen.job, decision.status)
        for note in decision.notes:
            self._events.event(seen.job, note.type, note.reason, note.message or note.reason, EVENT_ACTION)

    async def _write_status(self, job: PodMigrationJob, status: PodMigrationJobStatus) -> None:
        meta = job.metadata
        body = merge_diff(job.status, status)
        if body:
            written = await self._client.update_status(
                PodMigrationJob, meta.name, status=body, resource_version=meta.resource_version
            )
            self._book.put(written)

    async def _patch_spec(self, job: PodMigrationJob, spec: dict[str, Any]) -> None:
        body = {"metadata": {"resourceVersion": job.metadata.resource_version}, "spec": spec}
        self._book.put(await self._client.patch(PodMigrationJob, job.metadata.name, body=body))

    async def _create_reservation(self, seen: Observed) -> None:
        job = seen.job
        try:
            reservation = await self._reservation_of(job, int(seen.now * 1000))
        except (ApiError, reservations.ReservationImpossible) as error:
            await self._conclude(seen, reconcile.reservation_failed(seen, str(error)))
            raise ReservationFailed(str(error)) from error
        if reservation is not None:
            await self._use(job, reservation)

    async def _use(self, job: PodMigrationJob, reservation: Reservation, *, take_over: bool = False) -> None:
        """Reference the Reservation in the job. Raises Conflict if the one to take over has changed."""
        if take_over:
            meta = reservation.metadata
            owners = [reservations.owner_reference(job)]
            body = {"metadata": {"resourceVersion": meta.resource_version, "ownerReferences": owners}}
            await self._client.patch(Reservation, meta.name, body=body)
            log.info("A job takes over a Reservation", job=job.metadata.name, reservation=meta.name)
        reference = wire.to_builtins(reservations.reference_to(reservation))
        await self._patch_spec(job, {"reservationOptions": {"reservationRef": reference}})

    async def _reservation_of(self, job: PodMigrationJob, now_ms: int) -> Reservation | None:
        """Create the Reservation, or get the one that exists; None if the pod is gone.

        Raises ApiError, ReservationImpossible.
        """
        ref, resource = job.spec.pod_ref, resource_for(Reservation)
        try:
            raw = await self._client.raw("GET", resource_for(Pod).path(ref.namespace, ref.name))
        except NotFound:
            return None  # the next observation reports the missing pod
        pod: Pod = wire.json_decoder(Pod).decode(raw, where=f"Pod {ref.namespace}/{ref.name}")
        if pod.metadata.uid != ref.uid:
            return None
        body = reservations.reservation_for(
            job,
            pod,
            msgspec.json.decode(raw),
            now_ms,
            without_claims=self._without_claims,
            leaving=self.departures.nodes(self.departures.siblings(job.metadata.uid)),
        )
        try:
            answer = await self._client.raw("POST", resource.path(), body=body)
        except Conflict as error:
            if not error.already_exists:
                raise
            return await self._client.get(Reservation, body["metadata"]["name"])
        created: Reservation = wire.json_decoder(Reservation).decode(answer, where="Reservation")
        return created

    async def delete_reservation(self, job: PodMigrationJob) -> None:
        """Delete the Reservation that was created for the job; others stay. Raises KubeError."""
        ref = reconcile.reservation_ref(job)
        name = ref.name if ref is not None else reservations.reservation_name(job)
        reservation = await self._live(Reservation, name)
        if reservation is not None and reservations.is_own(reservation, job):
            await self._client.delete(Reservation, name, uid=reservation.metadata.uid, missing_ok=True)

    async def _evict(self, seen: Observed, action: d.EvictPod) -> None:
        """Evict after a last read from the API server: the Reservation is available, the pod is still the same."""
        job, pod = seen.job, action.pod
        if action.reservation and not await self._still_available(action.reservation, pod):
            raise ReservationFailed(f"Reservation {action.reservation} is no longer available")
        is_repeated = job.metadata.uid in self._counted
        if not is_repeated:
            await self._limits.count(pod, self._view.workload(pod).replicas)
            self._counted.add(job.metadata.uid)
        try:
            await self._evictors.evict(job, pod)
        except EvictionFailed as error:
            self._count(job, pod, False)
            # After a request without an answer the pod may be gone because of that one.
            if isinstance(error, EvictionDenied) and not is_repeated:
                self._counted.discard(job.metadata.uid)
                self._limits.undo(pod)
            await self._conclude(seen, reconcile.eviction_failed(str(error)))
            raise
        self._count(job, pod, True)
        log.info("Evicted a pod", pod=pod.metadata.key, node=pod.spec.node_name, job=job.metadata.name)
        self._unrecorded[job.metadata.uid] = pod
        await self._record_eviction(job, pod)

    async def _record_eviction(self, job: PodMigrationJob, pod: Pod) -> None:
        """Repeated until it succeeds: the pod may be gone before, and the job must not take it for someone else's
        deletion."""
        seen = Observed(job, self._client.clock.now())
        if not is_terminal(job):
            await self._conclude(seen, reconcile.evicted(seen, pod, reason_of(job)))
        self._unrecorded.pop(job.metadata.uid, None)

    async def _still_available(self, name: str, pod: Pod) -> bool:
        reservation = await self._live(Reservation, name)
        return (
            reservation is not None
            and places.is_free(reservation)
            and reservation.status.node_name not in ("", pod.spec.node_name)
            and reservations.may_consume(reservation, pod)
        )


class ReservationFailed(Exception):
    """The Reservation cannot be created or is not usable now; repeated until the job's time to live ends."""
