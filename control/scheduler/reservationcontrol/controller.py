"""The controller of Reservations: a service of the leader (spec 06 §4.8).

Events of Reservations, their owner pods and nodes queue a Reservation; one that has not ended is also considered
again until it expires. `lifecycle` decides, and every write is conditional on the version that was read.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from control.scheduler.config.args import ReservationArgs
from control.scheduler.reservationcontrol.clockjumps import ClockJumps
from control.scheduler.reservationcontrol.lifecycle import TERMINAL, collectable, next_status, requeue_after
from control.scheduler.reservationcontrol.metrics import ReservationGauges
from control.scheduler.reservationcontrol.owners import Reference, ReservationOwners
from koordlet.api.annotations.reservation import ALLOCATED
from koordlet.api.core import Node, Pod
from koordlet.api.crs.reservation import FAILED, Reservation
from koordlet.api.encoding import wire
from koordlet.app.logging import get_logger
from koordlet.app.periodic import Periodic
from koordlet.app.tasks import end_tasks
from koordlet.kube import Client, Conflict, Informer, KubeError, NotFound, WorkQueue, merge_diff

log = get_logger(__name__)

MAX_DELETIONS: Final = 500
"""Reservations that one round of garbage collection deletes."""


class ReservationController:
    """See the module text. The informers of Reservations, Pods and Nodes must be complete before the start."""

    def __init__(
        self,
        client: Client,
        reservations: Informer[Reservation],
        pods: Informer[Pod],
        nodes: Informer[Node],
        args: ReservationArgs,
        *,
        clean_owners: bool,
    ) -> None:
        """`clean_owners`: feature gate CleanExpiredReservationAllocated."""
        self.name = "reservations"
        self._client = client
        self._clock = client.clock
        self._reservations = reservations
        self._nodes = nodes
        self._args = args
        self._clean_owners = clean_owners
        self._queue: WorkQueue[Reference] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._jumps = ClockJumps(client.clock)
        self.owners = ReservationOwners(self._add)
        reservations.add_handler(self._changed, lambda _, new: self._changed(new), self._changed)
        pods.add_handler(self.owners.pod_seen, lambda _, new: self.owners.pod_seen(new), self.owners.pod_gone)
        nodes.add_handler(lambda _: None, lambda _, new: None, self._node_gone)
        ReservationGauges.once(client.registry, reservations.list)
        self._collector = Periodic(
            "reservation-gc",
            float(args.gc_interval_seconds),
            self.collect_garbage,
            clock=client.clock,
            registry=client.registry,
        )

    def _add(self, reference: Reference) -> None:
        if self._queue is not None:
            self._queue.add(reference)

    def _changed(self, reservation: Reservation) -> None:
        self._add((reservation.metadata.name, reservation.metadata.uid))

    def _node_gone(self, node: Node) -> None:
        for reservation in self._reservations.list():
            if reservation.status.node_name == node.metadata.name:
                self._changed(reservation)

    async def start(self) -> None:
        self._jumps = ClockJumps(self._clock)
        self._queue = WorkQueue("ReservationController", clock=self._clock, registry=self._client.registry)
        self._tasks = [asyncio.create_task(self._queue.work(self.sync)) for _ in range(self._args.controller_workers)]
        for reservation in self._reservations.list():
            self._changed(reservation)
        if not self._args.disable_garbage_collection:
            await self._collector.start()

    async def stop(self) -> None:
        await self._collector.stop()
        queue, self._queue = self._queue, None
        if queue is not None:
            await queue.shutdown()
        await end_tasks(*self._tasks)
        self._tasks = []

    async def sync(self, reference: Reference) -> float | None:
        """Bring one Reservation up to date. Returns when to consider it again, in seconds."""
        name, uid = reference
        reservation = self._reservations.get(name)
        if reservation is None or reservation.metadata.uid != uid or reservation.status.phase in TERMINAL:
            if self._clean_owners and (reservation is None or _abandoned(reservation, uid)):
                await self._clean(uid)
            return None
        now, status = self._clock.now(), reservation.status
        desired = next_status(
            reservation,
            self.owners.on(uid, status.node_name),
            now,
            node_exists=self._exists(status.node_name),
            may_expire=self._jumps.trusted(),
        )
        change = merge_diff(wire.to_builtins(status), wire.to_builtins(desired))
        if change:
            await self._write(reservation, change)
            log.info("Updated the status of a Reservation", reservation=name, phase=desired.phase)
        return requeue_after(reservation, now)

    def _exists(self, node: str) -> bool:
        return self._nodes.get(node) is not None

    async def _write(self, reservation: Reservation, change: dict[str, Any]) -> None:
        """Raises KubeError; the queue tries again then. After a conflict the next event brings the new version."""
        meta = reservation.metadata
        body = {"metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version}, "status": change}
        try:
            await self._client.patch(Reservation, meta.name, body=body, subresource="status")
        except (Conflict, NotFound):
            return

    async def _clean(self, uid: str) -> None:
        """Remove the annotation of the pods that name a Reservation which is gone or has failed."""
        for pod in self.owners.pods(uid):
            meta = pod.metadata
            body = {
                "metadata": {
                    "uid": meta.uid,
                    "resourceVersion": meta.resource_version,
                    "annotations": {ALLOCATED.key: None},
                }
            }
            try:
                await self._client.patch(Pod, meta.name, meta.namespace, body=body)
            except (Conflict, NotFound):
                continue  # the pod changed or is gone: its event queues this again

    async def collect_garbage(self) -> None:
        """One round: delete Reservations that ended long enough ago."""
        if not self._jumps.trusted():
            return
        now, duration = self._clock.now(), float(self._args.gc_duration_seconds)
        due = [
            reservation
            for reservation in self._reservations.list()
            if reservation.metadata.deletion_timestamp is None
            and collectable(reservation, now, duration, node_exists=self._exists(reservation.status.node_name))
        ]
        for reservation in due[:MAX_DELETIONS]:
            meta = reservation.metadata
            try:
                await self._client.delete(Reservation, meta.name, uid=meta.uid, missing_ok=True)
            except Conflict:
                continue  # another object of the same name
            except KubeError as error:
                log.warning("Cannot delete a Reservation", reservation=meta.name, err=error)
            else:
                log.info("Deleted a Reservation that has ended", reservation=meta.name, phase=reservation.status.phase)


def _abandoned(reservation: Reservation, uid: str) -> bool:
    """Whether the Reservation `uid` is replaced by another one, or has failed."""
    return reservation.metadata.uid != uid or reservation.status.phase == FAILED
