"""Carries out the actions on the pods of a drain: Reservations and jobs. Every request can be repeated."""

from __future__ import annotations

import msgspec

from control.descheduler.drain.entries import DrainAction, ObservedMove, is_forced, moves_directly
from control.descheduler.drain.reservation import drain_labels, drain_owner, drain_reservation, is_owned, object_name
from control.descheduler.migration.decide.reservations import reference_to
from control.descheduler.migration.jobbook import JobBook
from koordlet.api.core import Pod
from koordlet.api.crs.drain import UNAVAILABLE, DrainNode, PodMigration
from koordlet.api.crs.migration import (
    MODE_EVICT_DIRECTLY,
    MODE_RESERVATION_FIRST,
    PodMigrationJob,
    PodMigrationJobSpec,
    ReservationOptions,
)
from koordlet.api.crs.reservation import Reservation
from koordlet.api.encoding import wire
from koordlet.api.meta import ObjectMeta, ObjectReference, OwnerReference
from koordlet.api.names import ANNOTATION_DESCHEDULER_EVICT, ANNOTATION_EVICT_REASON, ANNOTATION_EVICT_TRIGGER, TRUE
from koordlet.api.registry import resource_for
from koordlet.kube import Client, Conflict, NotFound

TRIGGER = "DrainController"


class DrainEffects:
    """See the module text."""

    def __init__(self, client: Client, book: JobBook) -> None:
        self._client = client
        self._book = book

    async def carry_out(self, action: DrainAction, entry: PodMigration, drain: DrainNode, seen: ObservedMove) -> None:
        """Raises KubeError and ReservationImpossible."""
        match action:
            case DrainAction.RESERVE if seen.pod is not None:
                await self._reserve(drain, seen.pod, entry.reservation_name, int(seen.now * 1000))
            case DrainAction.RELEASE if seen.reservation is not None:
                await self.release(drain, seen.reservation.metadata.name, consumed=is_planned_again(entry))
            case DrainAction.MIGRATE if seen.pod is not None:
                await self._migrate(drain, seen.pod, seen.reservation, paused=entry.pod_migration_job_paused)
            case DrainAction.RETARGET if seen.job is not None and seen.reservation is not None:
                await self._retarget(seen.job, seen.reservation)
            case DrainAction.END_JOB if seen.job is not None:
                await self.end_job(seen.job)

    async def _reserve(self, drain: DrainNode, pod: Pod, name: str, now_ms: int) -> None:
        meta = pod.metadata
        try:
            raw = await self._client.raw("GET", resource_for(Pod).path(meta.namespace, meta.name))
        except NotFound:
            return  # the next round sees that the pod is gone
        live: Pod = wire.json_decoder(Pod).decode(raw, where=f"Pod {meta.key}")
        if live.metadata.uid != meta.uid:
            return
        body = drain_reservation(drain, live, name, msgspec.json.decode(raw), now_ms)
        try:
            await self._client.raw("POST", resource_for(Reservation).path(), body=body)
        except Conflict as error:
            if not error.already_exists:
                raise

    async def release(self, drain: DrainNode, name: str, *, consumed: bool = False) -> None:
        """Delete a Reservation of the drain. `consumed`: also if a pod consumes it now. Raises KubeError."""
        try:
            live = await self._client.get(Reservation, name)
        except NotFound:
            return
        if is_owned(live.metadata.owner_references, drain) and (consumed or not live.status.current_owners):
            await self._client.delete(Reservation, name, uid=live.metadata.uid, missing_ok=True)

    async def _migrate(self, drain: DrainNode, pod: Pod, reservation: Reservation | None, *, paused: bool) -> None:
        job = job_for(drain, pod, reservation, paused=paused)
        try:
            self._book.put(await self._client.create(job))
        except Conflict as error:
            if not error.already_exists:
                raise  # else the informer will deliver the job

    async def _retarget(self, job: PodMigrationJob, reservation: Reservation) -> None:
        meta = job.metadata
        body = {
            "metadata": {"resourceVersion": meta.resource_version},
            "spec": {"reservationOptions": {"reservationRef": wire.to_builtins(reference_to(reservation))}},
        }
        self._book.put(await self._client.patch(PodMigrationJob, meta.name, body=body))

    async def end_job(self, job: PodMigrationJob) -> None:
        """Delete a job of a drain. Raises KubeError."""
        await self._client.delete(PodMigrationJob, job.metadata.name, uid=job.metadata.uid, missing_ok=True)


def is_planned_again(entry: PodMigration) -> bool:
    """Whether the pod needs another Reservation in place of the one that it has."""
    return entry.phase == UNAVAILABLE


def job_for(drain: DrainNode, pod: Pod, reservation: Reservation | None, *, paused: bool) -> PodMigrationJob:
    """The job that moves the pod to its Reservation. It has no time to live: the drain waits for limits and disruption
    budgets."""
    meta = pod.metadata
    owner = drain_owner(drain)
    annotations = {
        ANNOTATION_EVICT_REASON: f"drain of node {drain.spec.node_name}",
        ANNOTATION_EVICT_TRIGGER: TRIGGER,
    }
    if is_forced(drain):
        annotations[ANNOTATION_DESCHEDULER_EVICT] = TRUE
    options = None
    direct = moves_directly(drain, pod) or reservation is None
    if reservation is not None and not direct:
        options = ReservationOptions(reservation_ref=reference_to(reservation))
    return PodMigrationJob(
        metadata=ObjectMeta(
            name=object_name(drain, meta.uid),
            labels=drain_labels(drain, pod),
            annotations=annotations,
            owner_references=[
                OwnerReference(
                    api_version=owner["apiVersion"], kind=owner["kind"], name=owner["name"], uid=owner["uid"]
                )
            ],
        ),
        spec=PodMigrationJobSpec(
            paused=paused,
            mode=MODE_EVICT_DIRECTLY if direct else MODE_RESERVATION_FIRST,
            pod_ref=ObjectReference(namespace=meta.namespace, name=meta.name, uid=meta.uid),
            reservation_options=options,
        ),
    )
