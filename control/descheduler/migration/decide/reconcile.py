"""The next step of one job (spec 07 §11.6, §11.7): what was observed in, one decision out. Pure.

The controller repeats observe, `next_step`, carry out. Every step can be repeated: after a crash or a failed request
the same observation leads to the same decision.
"""

from __future__ import annotations

from control.descheduler.migration.decide import conditions as c
from control.descheduler.migration.decide import decision as d
from control.descheduler.migration.decide.decision import Decision, Observed
from control.descheduler.migration.decide.lifetime import has_expired
from control.descheduler.migration.decide.places import consumed_instead, spare_place, would_return
from control.descheduler.migration.decide.pods import controller_of, is_ready, quoted_key
from control.descheduler.migration.decide.reservations import is_for_pending, is_unscheduled, may_consume
from control.descheduler.migration.decide.view import RUNNING, SUCCEEDED, is_terminal, is_waiting
from koordlet.api.core import Pod
from koordlet.api.crs import reservation as r
from koordlet.api.crs.migration import MODE_EVICT_DIRECTLY, PodMigrationJob, PodMigrationJobStatus
from koordlet.api.crs.reservation import Reservation
from koordlet.api.meta import ObjectReference
from koordlet.api.names import ANNOTATION_DESCHEDULER_EVICT, LABEL_RESERVATION_ORDER
from koordlet.kube.events import NORMAL, WARNING


def next_step(seen: Observed, default_mode: str) -> Decision:
    """The decision for a job that arbitration has passed."""
    job = seen.job
    if job.spec.paused or is_terminal(job):
        return d.NOTHING
    if has_expired(job, seen.now):
        return d.failed(seen, c.TIMEOUT, "Abort job caused by timeout")
    ref = job.spec.pod_ref
    if not ref.namespace or not ref.name:
        return d.failed(seen, c.INVALID_POD_REF, "Abort job caused by invalid PodRef")
    if not c.is_requested(job.status) and _is_gone(seen):
        return _missing_pod(seen)
    if not ref.uid and seen.pod is not None:
        return Decision(d.SetPodUid(seen.pod.metadata.uid))
    if is_waiting(job):
        return Decision(status=c.with_phase(job.status, RUNNING, job.status.reason, job.status.message))
    is_exempt = c.is_accepted(job.status) or ANNOTATION_DESCHEDULER_EVICT in job.metadata.annotations
    if seen.limited and not is_exempt:
        return d.WAIT
    if (job.spec.mode or default_mode) == MODE_EVICT_DIRECTLY:
        return _evict(seen, None) or _finished(job.status, f"Pod {_pod(job)} has been evicted")
    return _reserve(seen)


def _is_gone(seen: Observed) -> bool:
    """Whether the pod to move no longer exists; a pod of the same name with another UID is not it."""
    uid = seen.job.spec.pod_ref.uid
    return seen.pod is None or bool(uid and seen.pod.metadata.uid != uid)


def _missing_pod(seen: Observed) -> Decision:
    return d.failed(seen, c.MISSING_POD, f"Abort job caused by missing Pod {_pod(seen.job)}")


def _pod(job: PodMigrationJob) -> str:
    return quoted_key(job.spec.pod_ref.namespace, job.spec.pod_ref.name)


# ReservationFirst


def _reserve(seen: Observed) -> Decision:
    """Steps A and B: a Reservation exists, has its order and a node."""
    job, reservation = seen.job, seen.reservation
    ref = reservation_ref(job)
    if ref is None:
        if seen.pod is not None and not _has_template_owners(job) and not _is_replaced(seen.pod):
            return d.failed(seen, c.FORBIDDEN, f"Pod {_pod(job)} has no controller that would replace it")
        return Decision(d.CreateReservation())
    if reservation is None:
        return d.failed(seen, c.MISSING_RESERVATION, f'Abort job caused by missing Reservation "{ref.name}"')
    if LABEL_RESERVATION_ORDER not in reservation.metadata.labels:
        return Decision(d.OrderReservation(ref.name))
    if not c.is_true(job.status, c.RESERVATION_CREATED):
        message = "Successfully create Reservation"
        return d.reached(seen, c.RESERVATION_CREATED, message=message, note=c.RESERVATION_CREATED)
    return _schedule(seen, reservation)


def _is_replaced(pod: Pod) -> bool:
    """Whether a Reservation for the pod can be used: by itself while it has no node, else by a replacement."""
    return is_unscheduled(pod) or controller_of(pod.metadata) is not None


def _schedule(seen: Observed, reservation: Reservation) -> Decision:
    """Steps B and C: the scheduler bound the Reservation to another node."""
    job = seen.job
    scheduled = _condition(reservation, r.CONDITION_SCHEDULED)
    phase = reservation.status.phase
    if phase in ("", r.PENDING, r.WAITING):
        if scheduled is not None and scheduled.reason == c.UNSCHEDULABLE:
            return d.waiting(seen, c.RESERVATION_SCHEDULED, c.UNSCHEDULABLE, scheduled.message, kind=WARNING)
        return d.WAIT
    ready = _condition(reservation, r.CONDITION_READY)
    if phase == r.FAILED and ready is not None and ready.reason == "Expired":
        return d.failed(seen, c.RESERVATION_EXPIRED, "Reservation expired", note=False)
    is_bound = scheduled is not None and scheduled.status == c.TRUE and scheduled.reason == "Scheduled"
    if phase == r.FAILED or not is_bound or not reservation.status.node_name:
        message = scheduled.message if scheduled is not None else ""
        return d.failed(seen, c.UNSCHEDULABLE, message or "the Reservation has no node", note=False)
    if not c.is_true(job.status, c.RESERVATION_SCHEDULED) or job.status.node_name != reservation.status.node_name:
        return _scheduled(seen, reservation)
    if seen.pod is not None and not c.is_requested(job.status) and is_for_pending(reservation, seen.pod):
        return _assign_pending(seen, seen.pod, reservation)
    return _evict(seen, reservation) or _bind(seen, reservation)


def _scheduled(seen: Observed, reservation: Reservation) -> Decision:
    node, name, pod = reservation.status.node_name, reservation.metadata.name, seen.pod
    if pod is not None and not _is_gone(seen) and not is_for_pending(reservation, pod):
        if pod.spec.node_name == node:
            message = f'Scheduler assignes the Reservation "{name}" on the same node as the Pod'
            return d.failed(seen, c.FORBIDDEN, message)
        if not may_consume(reservation, pod):
            message = f'Reservation "{name}" has no owner that matches the Pod {_pod(seen.job)}'
            return d.failed(seen, c.FORBIDDEN, message)
    message = f'Reservation "{name}" is scheduled to node "{node}"'
    status = c.with_condition(seen.job.status, c.RESERVATION_SCHEDULED, c.TRUE, "", message, seen.now)
    status.node_name = node
    return Decision(status=status, notes=(d.Note(NORMAL, c.RESERVATION_SCHEDULED, message),))


def _assign_pending(seen: Observed, pod: Pod, reservation: Reservation) -> Decision:
    """Step D: the pod has no node; the scheduler assigns it to the Reservation, and nothing is evicted."""
    scheduled = pod.status.condition("PodScheduled")
    if pod.spec.node_name and scheduled is not None and scheduled.status == c.TRUE:
        status = c.with_condition(seen.job.status, c.POD_SCHEDULED, c.TRUE, "", "", seen.now)
        message = f'Assign Pod {_pod(seen.job)} to node "{pod.spec.node_name}"'
        return _finished(status, message)
    owners = reservation.status.current_owners
    if reservation.status.phase == r.SUCCEEDED and not any(owner.uid == pod.metadata.uid for owner in owners):
        return d.failed(seen, c.FORBIDDEN, "Reservation is already bound by another Pod")
    message = scheduled.message if scheduled is not None else ""
    return d.waiting(seen, c.POD_SCHEDULED, c.UNSCHEDULABLE, message, kind=WARNING)


def _bind(seen: Observed, reservation: Reservation) -> Decision:
    """Steps F to H: the replacement consumes the Reservation and becomes ready."""
    job, name = seen.job, reservation.metadata.name
    owners = reservation.status.current_owners
    if not c.is_true(job.status, c.RESERVATION_BOUND):
        other = consumed_instead(job, reservation, seen.siblings)
        if other is not None:
            return Decision(d.UseReservation(other))
    if not owners:
        return d.waiting(seen, c.POD_BOUND_RESERVATION, c.WAIT_FOR_BINDING)
    new = f'"{owners[0].namespace}/{owners[0].name}"'
    if not c.is_true(job.status, c.RESERVATION_BOUND):
        status = c.with_condition(job.status, c.RESERVATION_BOUND, c.TRUE, "", "", seen.now)
        status.pod_ref = ObjectReference(
            kind="Pod", namespace=owners[0].namespace, name=owners[0].name, uid=owners[0].uid
        )
        note = d.Note(NORMAL, c.POD_BOUND_RESERVATION, f'Pod {new} is bound to Reservation "{name}"')
        return Decision(status=status, notes=(note,))
    if not c.is_true(job.status, c.BOUND_POD_READY):
        if seen.replacement is not None and not is_ready(seen.replacement):
            return d.waiting(seen, c.BOUND_POD_READY, c.WAIT_FOR_READY)
        message = f"Pod {new} is ready"
        return d.reached(seen, c.BOUND_POD_READY, message=message, note=c.BOUND_POD_READY)
    status = c.with_condition(job.status, c.POD_BOUND_RESERVATION, c.TRUE, "", "", seen.now)
    return _finished(status, f'Bind Pod {new} in Reservation "{name}"', note=True)


# Eviction


def _evict(seen: Observed, reservation: Reservation | None) -> Decision | None:
    """Step E; None when the pod is gone because of this job. `reservation`: None for EvictDirectly.

    The request is recorded before it is sent: a process that was killed after it must not take the missing pod for the
    deletion of another client.
    """
    job = seen.job
    condition = job.status.condition(c.EVICTION)
    if condition is not None and condition.status == c.TRUE:
        return None
    if _is_gone(seen):
        if condition is None:
            return _missing_pod(seen)
        return d.reached(seen, c.EVICTION, c.EVICT_COMPLETE, condition.message, note=c.EVICT_COMPLETE)
    if condition is not None and condition.reason == c.EVICTING:
        return d.WAIT
    if seen.pod is None:  # `_is_gone` covers it
        return d.WAIT
    if reservation is not None:
        if reservation.status.phase == r.SUCCEEDED or reservation.status.current_owners:
            spare = spare_place(job, seen.pod, seen.siblings)
            if spare is not None:
                return Decision(d.UseReservation(spare, take_over=True))
            return d.failed(seen, c.FORBIDDEN, "Reservation is already bound by another Pod")
        if reservation.status.phase != r.AVAILABLE or reservation.spec.unschedulable:
            return d.WAIT
    if would_return(seen.pod, seen.siblings):
        return d.WAIT
    if condition is None:
        return _requested(seen, seen.pod)
    return Decision(d.EvictPod(seen.pod, reservation.metadata.name if reservation is not None else ""))


def _requested(seen: Observed, pod: Pod) -> Decision:
    message = f'The eviction of Pod {_pod(seen.job)} from node "{pod.spec.node_name}" was requested'
    status = c.with_condition(seen.job.status, c.EVICTION, c.UNKNOWN, c.EVICTION_REQUESTED, message, seen.now)
    return Decision(status=status)


def evicted(seen: Observed, pod: Pod, reason: str) -> Decision:
    """The eviction was accepted: wait until the pod is gone."""
    message = f'Pod {_pod(seen.job)} evicted from node "{pod.spec.node_name}" by the reason "{reason}"'
    return d.waiting(seen, c.EVICTION, c.EVICTING, message)


def eviction_failed(error: str) -> Decision:
    """The eviction was refused; the controller repeats it with back-off."""
    return Decision(notes=(d.Note(WARNING, c.EVICTING, error),))


def reservation_failed(seen: Observed, error: str) -> Decision:
    """The Reservation could not be created; the controller repeats it with back-off."""
    message = f"Failed to create Reservation caused by {error}"
    return d.waiting(seen, c.RESERVATION_CREATED, c.FAILED_CREATE_RESERVATION, message, kind=WARNING)


# Helpers


def _finished(status: PodMigrationJobStatus, message: str, *, note: bool = False) -> Decision:
    done = c.with_phase(status, SUCCEEDED, "", message, text=c.COMPLETE)
    return Decision(status=done, notes=(d.Note(NORMAL, c.COMPLETE, message),) if note else ())


def _condition(reservation: Reservation, condition_type: str) -> r.ReservationCondition | None:
    return next((each for each in reservation.status.conditions if each.type == condition_type), None)


def reservation_ref(job: PodMigrationJob) -> ObjectReference | None:
    """The existing Reservation that the job names."""
    options = job.spec.reservation_options
    ref = options.reservation_ref if options is not None else None
    return ref if ref is not None and ref.name else None


def _has_template_owners(job: PodMigrationJob) -> bool:
    options = job.spec.reservation_options
    spec = (options.template or {}).get("spec") if options is not None else None
    return isinstance(spec, dict) and bool(spec.get("owners"))
