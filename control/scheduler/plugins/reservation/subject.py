"""Reservations as subjects of scheduling: how they are read, bound, patched and reported (spec 06 §4.7, 05 §5.8).

Every write of a status reads the object first and sends its resourceVersion, so that an expiry in between is not
overwritten. Conflicts and responses 429 are retried.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from control.quota.amounts import Amounts, to_list
from control.reservation.amounts import MAX_AMOUNT, bounded
from control.reservation.model import RESERVATION, parse, parse_pod, template_requests
from control.reservation.reservepod import reserve_pod
from control.scheduler.framework.handle import Handle
from control.scheduler.framework.status import SUCCESS, PluginStatus, error
from control.scheduler.plugins.reservation.book import ReservationBook
from control.scheduler.state.pods import PodInfo
from control.scheduler.state.subjects import FailedAttempt
from koordlet.api.annotations.reservation import RESIZE_ALLOCATABLE, is_reservation_pod
from koordlet.api.core import Pod
from koordlet.api.core.podresources import is_terminated
from koordlet.api.crs.reservation import (
    AVAILABLE,
    CONDITION_READY,
    CONDITION_SCHEDULED,
    FAILED,
    PENDING,
    SUCCEEDED,
    Reservation,
    ReservationCondition,
)
from koordlet.api.encoding import wire
from koordlet.api.encoding.wire import Time, WireError
from koordlet.api.meta import ObjectReference
from koordlet.api.registry import resource_for
from koordlet.app.clock import Clock
from koordlet.kube import Client, Conflict, Informer, KubeError, NotFound, PatchKind, TooManyRequests, merge_diff

MAX_ATTEMPTS: Final = 5
FIRST_DELAY_S: Final = 0.02
DELAY_FACTOR: Final = 3.0
NOT_ACTIVE: Final = "reservation is not active"
CHANGED: Final = "the requests of the reservation changed while it was scheduled"


class NothingToWrite(Exception):
    """The status need not be written any more."""


class ReservationSubject:
    """A `ScheduledKind`; shared by all profiles, with their book."""

    def __init__(
        self, book: ReservationBook, client: Client | None, informer: Informer[Reservation] | None, clock: Clock
    ) -> None:
        self.book = book
        self._client = client
        self._informer = informer
        self._clock = clock
        self._resized: dict[str, Amounts] = {}
        """uid -> amounts that PreBind plugins wrote beside the requests, until the Reservation is bound."""
        self.unchanged: Reservation | None = None
        """The last version of a Reservation that changes nothing for scheduling, such as a new count of owners."""

    def object(self, info: PodInfo) -> Reservation | None:
        """The last known version of the Reservation, None if it is gone or another one has its name."""
        known = None if self._informer is None else self._informer.get(info.name)
        return known if known is not None and known.metadata.uid == info.uid else None

    def current(self, info: PodInfo) -> Pod | None:
        known = self.object(info)
        pod = None if known is None else reserve_pod(known)
        return None if pod is None or is_terminated(pod) else pod

    def event_object(self, info: PodInfo) -> Any:
        resource = resource_for(Reservation)
        return ObjectReference(kind=resource.kind, api_version=resource.api_version, name=info.name, uid=info.uid)

    # Objects

    def seen(self, reservation: Reservation) -> None:
        """A Reservation was added or updated."""
        self.unchanged = None if self.book.put(parse(reservation)) else reservation

    def gone(self, reservation: Reservation) -> None:
        """A Reservation was deleted."""
        self.book.remove(reservation.metadata.uid)
        self._resized.pop(reservation.metadata.uid, None)

    def pod_seen(self, pod: Pod) -> None:
        """A pod was added or updated: in operating mode it is a reservation itself."""
        if not is_reservation_pod(pod.metadata.labels):
            return
        model = None if is_terminated(pod) else parse_pod(pod)
        if model is None:
            self.book.remove(pod.metadata.uid)
        else:
            self.book.put(model)

    def pod_changed(self, old: Pod, new: Pod) -> None:
        """A pod was updated, perhaps its labels."""
        if is_reservation_pod(old.metadata.labels) and not is_reservation_pod(new.metadata.labels):
            self.pod_gone(old)
        self.pod_seen(new)

    def pod_gone(self, pod: Pod) -> None:
        """A pod was deleted."""
        if is_reservation_pod(pod.metadata.labels):
            self.book.remove(pod.metadata.uid)

    # Writing

    async def bind(self, info: PodInfo, node: str) -> PluginStatus:
        """Make the Reservation available on the node."""

        def status(live: Reservation) -> dict[str, Any]:
            if live.status.phase in (FAILED, SUCCEEDED) or live.metadata.deletion_timestamp is not None:
                raise NothingToWrite(NOT_ACTIVE)
            if live.status.node_name:
                raise NothingToWrite(f"reservation is already on node {live.status.node_name}")
            amounts = template_requests(live)
            resized = self._resized.pop(info.uid, {})
            scheduled_amounts = {name: min(amount, MAX_AMOUNT) for name, amount in {**info.requests, **resized}.items()}
            if scheduled_amounts != amounts:
                raise NothingToWrite(CHANGED)
            now = self._now()
            conditions = [
                _condition(CONDITION_SCHEDULED, "True", "Scheduled", "", now, now),
                _condition(CONDITION_READY, "True", "Available", "", now, now),
            ]
            return {
                "phase": AVAILABLE,
                "nodeName": node,
                "allocatable": wire.to_builtins(to_list(amounts)),
                "conditions": wire.to_builtins(conditions),
            }

        try:
            await self._write(info, status)
        except NotFound:
            return error("reservation is gone")
        except (NothingToWrite, WireError, KubeError) as failure:
            return error(str(failure))
        return SUCCESS

    async def report(self, info: PodInfo, failed: FailedAttempt) -> None:
        def status(live: Reservation) -> dict[str, Any]:
            if live.status.phase in (FAILED, SUCCEEDED) or live.status.node_name:
                raise NothingToWrite(NOT_ACTIVE)
            conditions = _with_failure(live.status.conditions, failed.message, self._now())
            if conditions is None:
                raise NothingToWrite("the condition is up to date")
            return {"phase": live.status.phase or PENDING, "conditions": wire.to_builtins(conditions)}

        try:
            await self._write(info, status)
        except NothingToWrite:
            return

    async def patch(self, info: PodInfo, original: Pod, changed: Pod) -> PluginStatus:
        """Send what PreBind plugins changed in labels and annotations."""
        before, after = original.metadata, changed.metadata
        metadata: dict[str, Any] = {
            name: diff
            for name in ("labels", "annotations")
            if (diff := merge_diff(getattr(before, name), getattr(after, name)))
        }
        if not metadata:
            return error("PreBind plugins changed what can't be patched in a Reservation")
        if self._client is None:
            return error("no API server to patch reservations at")
        body = {"metadata": {**metadata, "uid": info.uid}}
        resize = RESIZE_ALLOCATABLE.get(metadata.get("annotations", {}))
        if resize is not None:
            self._resized[info.uid] = bounded(resize.resources)
        try:
            await self._client.patch(Reservation, info.name, body=body, kind=PatchKind.MERGE)
        except KubeError as failure:
            return error(str(failure))
        return SUCCESS

    async def _write(self, info: PodInfo, status: Callable[[Reservation], dict[str, Any]]) -> None:
        """Patch the status that `status` computes from the live object. Raises NothingToWrite, KubeError."""
        if self._client is None:
            raise NothingToWrite("no API server to write the status at")
        delay = FIRST_DELAY_S
        for attempt in range(1, MAX_ATTEMPTS + 1):
            live = await self._client.get(Reservation, info.name)
            if live.metadata.uid != info.uid:
                raise NothingToWrite("another reservation has this name")
            body = {
                "metadata": {"uid": info.uid, "resourceVersion": live.metadata.resource_version},
                "status": status(live),
            }
            try:
                await self._client.patch(Reservation, info.name, body=body, kind=PatchKind.MERGE, subresource="status")
            except (Conflict, TooManyRequests):
                if attempt == MAX_ATTEMPTS:
                    raise
                await self._clock.sleep(delay)
                delay *= DELAY_FACTOR
            else:
                return

    def _now(self) -> Time:
        return Time.of(datetime.fromtimestamp(self._clock.now(), UTC))


def shared_subject(handle: Handle) -> ReservationSubject:
    """That of the first profile; all profiles schedule over the same table."""
    known = handle.subjects.get(RESERVATION)
    if isinstance(known, ReservationSubject):
        return known
    informer = None if handle.objects is None else handle.objects.informer(Reservation)
    subject = ReservationSubject(ReservationBook(handle.table), handle.client, informer, handle.clock)
    handle.subjects.add(RESERVATION, subject)
    handle.follow(Reservation, reserve_pod, RESERVATION)
    if informer is not None:  # after the handlers that count reserve pods
        informer.add_handler(subject.seen, lambda _, new: subject.seen(new), subject.gone)
    if handle.objects is not None:
        pods = handle.objects.informer(Pod)
        pods.add_handler(subject.pod_seen, subject.pod_changed, subject.pod_gone)
    return subject


def _condition(
    condition_type: str, status: str, reason: str, message: str, probed: Time, changed: Time | None
) -> ReservationCondition:
    return ReservationCondition(
        type=condition_type,
        status=status,
        reason=reason,
        message=message,
        last_probe_time=probed,
        last_transition_time=changed,
    )


def _with_failure(
    conditions: Sequence[ReservationCondition], message: str, now: Time
) -> list[ReservationCondition] | None:
    """The conditions with Scheduled=False; None if they are unchanged. If Scheduled is True, it was only probed."""
    known = next((condition for condition in conditions if condition.type == CONDITION_SCHEDULED), None)
    unrelated = [condition for condition in conditions if condition.type != CONDITION_SCHEDULED]
    if known is None:
        return [*unrelated, _condition(CONDITION_SCHEDULED, "False", "Unschedulable", message, now, now)]
    if known.status == "True":
        return [
            *unrelated,
            _condition(known.type, "True", known.reason, known.message, now, known.last_transition_time),
        ]
    if (known.reason, known.message) == ("Unschedulable", message):
        return None
    return [
        *unrelated,
        _condition(CONDITION_SCHEDULED, "False", "Unschedulable", message, now, known.last_transition_time or now),
    ]
