"""The state machine of a job (spec 07 §11.6, §11.7), one observation at a time."""

from __future__ import annotations

from typing import Any

import pytest

from control.descheduler.migration.decide import conditions as c
from control.descheduler.migration.decide import decision as d
from control.descheduler.migration.decide.decision import Decision, Observed
from control.descheduler.migration.decide.reconcile import (
    evicted,
    eviction_failed,
    next_step,
    reservation_failed,
)
from koordlet.api.core import Pod
from koordlet.api.crs.migration import PodMigrationJob
from koordlet.api.crs.reservation import Reservation
from tests.control.descheduler.migration.build import NOW, job, pod, reservation

POD = pod("a")
REF = {"reservationRef": {"kind": "Reservation", "name": "r", "uid": "uid-r"}}
ORDER = {"labels": {"scheduling.koordinator.sh/reservation-order": "1"}}
OWNERS = [{"controller": {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "rs", "uid": "uid-rs"}}]
SCHEDULED = {"type": "Scheduled", "status": "True", "reason": "Scheduled"}
CREATED = {"type": "ReservationCreated", "status": "True"}
PLACED = {"type": "ReservationScheduled", "status": "True"}
REQUESTED = {"type": "Eviction", "status": "Unknown", "reason": "EvictionRequested", "message": "q"}
EVICTING = {"type": "Eviction", "status": "False", "reason": "Evicting", "message": "m"}
GONE = {"type": "Eviction", "status": "True", "reason": "EvictComplete"}
NEW = pod("b", on="n2")


def available(**status: Any) -> Reservation:
    return reservation(
        "r",
        metadata=ORDER,
        spec={"owners": OWNERS},
        status={"phase": "Available", "nodeName": "n2", "conditions": [SCHEDULED], **status},
    )


def consumed() -> Reservation:
    return available(phase="Succeeded", currentOwners=[{"namespace": "default", "name": "b", "uid": "uid-b"}])


def running(*conditions: dict[str, Any], options: dict[str, Any] | None = None, **more: Any) -> PodMigrationJob:
    last = conditions[-1]["type"] if conditions else ""
    status = {"conditions": list(conditions), "status": last, "nodeName": "n2" if PLACED in conditions else ""}
    return job(
        POD, name="m", phase="Running", status=status, reservationOptions=REF if options is None else options, **more
    )


def step(
    migration: PodMigrationJob,
    reserved: Reservation | None = None,
    subject: Pod | None = POD,
    *,
    replacement: Pod | None = None,
    limited: bool = False,
    now: float = NOW,
) -> Decision:
    return next_step(Observed(migration, now, subject, reserved, replacement, limited), "ReservationFirst")


def failure(decision: Decision) -> tuple[str, str]:
    assert decision.status is not None and decision.status.phase == "Failed"
    assert decision.action == d.DeleteReservation()
    return decision.status.reason, decision.status.message


# Preliminaries


def test_paused_and_ended_jobs_are_left_alone() -> None:
    assert step(job(POD, paused=True, age=10_000)) is d.NOTHING
    for phase in ("Succeeded", "Failed", "Aborted"):
        assert step(job(POD, phase=phase, age=10_000)) is d.NOTHING


@pytest.mark.parametrize("phase", ["", "Pending", "Running"])
def test_a_job_fails_when_its_time_is_over(phase: str) -> None:
    assert failure(step(job(POD, phase=phase, age=300))) == ("Timeout", "Abort job caused by timeout")
    assert step(job(POD, phase=phase, age=299)).status is None or phase != "Failed"


def test_what_is_checked_before_a_job_starts() -> None:
    assert failure(step(job(""), subject=None)) == ("InvalidPodRef", "Abort job caused by invalid PodRef")
    missing = ("MissingPod", 'Abort job caused by missing Pod "default/a"')
    assert failure(step(job(POD), subject=None)) == missing
    assert failure(step(job(pod("a", uid="older")))) == missing
    assert step(job(POD, uid=False)).action == d.SetPodUid("uid-a")
    started = step(job(POD)).status
    assert started is not None and started.phase == "Running"


def test_the_object_limiter_delays_until_the_eviction() -> None:
    assert step(running(), limited=True) is d.WAIT
    assert step(running(annotations={"descheduler.alpha.kubernetes.io/evict": ""}), limited=True) is not d.WAIT
    decision = step(running(CREATED, PLACED, EVICTING), available(), subject=None, limited=True)
    assert decision.status is not None and decision.status.reason == "EvictComplete"


# EvictDirectly


def test_evict_directly() -> None:
    direct = {"mode": "EvictDirectly"}
    recorded = step(running(**direct))  # type: ignore[arg-type]
    assert recorded.action is None and recorded.status is not None
    assert recorded.status.reason == "EvictionRequested"
    assert step(running(REQUESTED, **direct)).action == d.EvictPod(POD)  # type: ignore[arg-type]
    assert step(running(EVICTING, **direct)) is d.WAIT  # type: ignore[arg-type]
    complete = step(running(EVICTING, **direct), subject=None)  # type: ignore[arg-type]
    assert complete.status is not None and c.is_true(complete.status, "Eviction")
    done = step(running(GONE, **direct), subject=None)  # type: ignore[arg-type]
    assert done.status is not None and done.notes == ()
    shown = (done.status.phase, done.status.status, done.status.reason, done.status.message)
    assert shown == ("Succeeded", "Complete", "", 'Pod "default/a" has been evicted')


def test_a_pod_that_another_client_deleted_fails_the_job() -> None:
    assert failure(step(running(mode="EvictDirectly"), subject=None))[0] == "MissingPod"
    assert failure(step(running(CREATED, PLACED), available(), subject=pod("a", uid="new")))[0] == "MissingPod"


@pytest.mark.parametrize("gone", [None, pod("a", uid="new")], ids=["gone", "replaced"])
def test_a_pod_that_is_gone_after_a_recorded_request_was_evicted(gone: Pod | None) -> None:
    """The process was killed after the request, before the status said that the server had accepted it."""
    for migration in (running(CREATED, PLACED, REQUESTED), running(REQUESTED, mode="EvictDirectly")):
        decision = step(migration, available(), subject=gone)
        assert decision.action is None and decision.status is not None
        assert decision.status.phase == "Running" and c.is_true(decision.status, "Eviction")


def test_a_recorded_request_does_not_exempt_from_the_limiter() -> None:
    assert step(running(CREATED, PLACED, REQUESTED), available(), limited=True) is d.WAIT


def test_a_new_pod_of_the_same_name_completes_the_eviction() -> None:
    decision = step(running(CREATED, PLACED, EVICTING), available(), subject=pod("a", uid="new"))
    assert decision.status is not None and decision.status.reason == "EvictComplete"


def test_results_of_an_eviction() -> None:
    observed = Observed(running(), NOW, POD)
    accepted = evicted(observed, POD, "load")
    assert accepted.status is not None
    condition = accepted.status.condition("Eviction")
    assert condition is not None
    assert (condition.status, condition.reason) == ("False", "Evicting")
    assert condition.message == 'Pod "default/a" evicted from node "n1" by the reason "load"'
    refused = eviction_failed("budget")
    assert refused.status is None and refused.notes == (d.Note("Warning", "Evicting", "budget"),)


# ReservationFirst


def test_a_job_without_reservation_creates_one() -> None:
    assert step(running(options={})).action == d.CreateReservation()
    bare = pod("a", by="")
    assert failure(step(running(options={}), subject=bare))[0] == "ForbiddenMigratePod"
    owners = {"template": {"spec": {"owners": OWNERS}}}
    assert step(running(options=owners), subject=bare).action == d.CreateReservation()
    pending = pod("a", by="", on="", phase="Pending", conditions=[{"type": "PodScheduled", "status": "False"}])
    assert step(running(options={}), subject=pending).action == d.CreateReservation()


def test_a_failed_creation_is_recorded_once() -> None:
    observed = Observed(running(options={}), NOW, POD)
    decision = reservation_failed(observed, "quota")
    assert decision.status is not None
    assert decision.status.message == "Failed to create Reservation caused by quota"
    assert decision.notes == (d.Note("Warning", "FailedCreateReservation", decision.status.message),)
    observed.job.status = decision.status
    assert reservation_failed(observed, "quota") is d.WAIT


def test_the_reservation_is_ordered_and_recorded() -> None:
    assert step(running(), reservation("r")).action == d.OrderReservation("r")
    recorded = step(running(), available())
    assert recorded.status is not None and recorded.status.status == "ReservationCreated"
    assert recorded.notes == (d.Note("Normal", "ReservationCreated", "Successfully create Reservation"),)


def test_a_missing_reservation_fails_the_job_at_once() -> None:
    for conditions in ([], [CREATED], [CREATED, PLACED], [CREATED, PLACED, EVICTING]):
        assert failure(step(running(*conditions))) == (
            "MissingReservation",
            'Abort job caused by missing Reservation "r"',
        )


@pytest.mark.parametrize("phase", ["", "Pending", "Waiting"])
def test_a_pending_reservation_is_awaited(phase: str) -> None:
    assert step(running(CREATED), available(phase=phase, nodeName="", conditions=[])) is d.WAIT
    unschedulable = {"type": "Scheduled", "status": "False", "reason": "Unschedulable", "message": "no node"}
    decision = step(running(CREATED), available(phase=phase, nodeName="", conditions=[unschedulable]))
    assert decision.status is not None and decision.action is None
    assert (decision.status.status, decision.status.reason) == ("ReservationScheduled", "Unschedulable")
    assert decision.notes == (d.Note("Warning", "Unschedulable", "no node"),)
    assert decision.again_s == d.POLL_S


def test_a_failed_reservation_fails_the_job() -> None:
    expired = available(phase="Failed", conditions=[{"type": "Ready", "status": "False", "reason": "Expired"}])
    decision = step(running(CREATED), expired)
    assert failure(decision) == ("ReservationExpired", "Reservation expired")
    assert decision.notes == ()
    refused = {"type": "Scheduled", "status": "False", "reason": "Unschedulable", "message": "no node"}
    assert failure(step(running(CREATED), available(phase="Failed", conditions=[refused]))) == (
        "Unschedulable",
        "no node",
    )
    assert failure(step(running(CREATED), available(nodeName="")))[0] == "Unschedulable"


def test_the_reservation_must_be_on_another_node() -> None:
    assert failure(step(running(CREATED), available(nodeName="n1"))) == (
        "ForbiddenMigratePod",
        'Scheduler assignes the Reservation "r" on the same node as the Pod',
    )
    placed = step(running(CREATED), available())
    assert placed.status is not None and placed.status.node_name == "n2"
    assert placed.notes[0].reason == "ReservationScheduled"


def test_a_reservation_that_no_replacement_may_use_protects_nothing() -> None:
    foreign = available()
    foreign.spec.owners[0].controller.uid = "another"  # type: ignore[union-attr]
    assert failure(step(running(CREATED), foreign))[0] == "ForbiddenMigratePod"


def test_only_an_available_reservation_allows_the_eviction() -> None:
    recorded = step(running(CREATED, PLACED), available())
    assert recorded.action is None and recorded.status is not None
    condition = recorded.status.condition("Eviction")
    assert condition is not None and (condition.status, condition.reason) == ("Unknown", "EvictionRequested")
    assert condition.message == 'The eviction of Pod "default/a" from node "n1" was requested'
    ready = running(CREATED, PLACED, REQUESTED)
    assert step(ready, available()).action == d.EvictPod(POD, "r")
    for migration in (running(CREATED, PLACED), ready):
        assert failure(step(migration, consumed()))[0] == "ForbiddenMigratePod"
    for phase in ("", "Pending", "Waiting"):
        assert step(ready, available(phase=phase)).action is None
    assert failure(step(ready, available(phase="Failed")))[0] == "Unschedulable"
    assert failure(step(ready, consumed())) == (
        "ForbiddenMigratePod",
        "Reservation is already bound by another Pod",
    )
    closed = available()
    closed.spec.unschedulable = True
    assert step(ready, closed) is d.WAIT


def test_the_steps_after_the_eviction() -> None:
    waiting = step(running(CREATED, PLACED, GONE), available(), subject=None)
    assert waiting.status is not None and waiting.status.reason == "WaitForPodBindReservation"
    bound = step(running(CREATED, PLACED, GONE), consumed(), subject=None, replacement=NEW)
    assert bound.status is not None and bound.status.pod_ref is not None
    assert bound.status.pod_ref.name == "b"
    assert bound.notes[0].reason == "PodBoundReservation"
    at = {"type": "ReservationBound", "status": "True"}
    unready = step(
        running(CREATED, PLACED, GONE, at), consumed(), subject=None, replacement=pod("b", on="n2", ready=False)
    )
    assert unready.status is not None and unready.status.reason == "WaitForBoundPodReady"
    for replacement in (NEW, None):
        ready = step(running(CREATED, PLACED, GONE, at), consumed(), subject=None, replacement=replacement)
        assert ready.status is not None and c.is_true(ready.status, "BoundPodReady")
    serving = {"type": "BoundPodReady", "status": "True"}
    done = step(running(CREATED, PLACED, GONE, at, serving), consumed(), subject=None, replacement=NEW)
    assert done.status is not None
    shown = (done.status.phase, done.status.status, done.status.reason, done.status.message)
    assert shown == ("Succeeded", "Complete", "", 'Bind Pod "default/b" in Reservation "r"')
    assert c.is_true(done.status, "PodBoundReservation")


def test_a_pod_without_node_is_assigned_and_never_evicted() -> None:
    pending = pod("a", on="", phase="Pending", conditions=[{"type": "PodScheduled", "status": "False"}])
    own = available()
    own.spec.owners = reservation(
        "r", spec={"owners": [{"object": {"kind": "Pod", "namespace": "default", "name": "a", "uid": "uid-a"}}]}
    ).spec.owners
    waiting = step(running(CREATED, PLACED), own, subject=pending)
    assert waiting.action is None and waiting.status is not None and waiting.status.status == "PodScheduled"
    assigned = pod("a", on="n2", conditions=[{"type": "PodScheduled", "status": "True"}])
    done = step(running(CREATED, PLACED), own, subject=assigned)
    assert done.action is None and done.status is not None
    assert (done.status.phase, done.status.message) == ("Succeeded", 'Assign Pod "default/a" to node "n2"')
    own.status = consumed().status
    assert failure(step(running(CREATED, PLACED), own, subject=pending))[0] == "ForbiddenMigratePod"
    assert failure(step(running(CREATED, PLACED), own, subject=None))[0] == "MissingPod"


def test_the_phases_that_kubectl_shows() -> None:
    """The happy path of spec 07 §11.7: every decision is carried out on the job, the world follows."""
    migration = job(POD, name="m")
    shown: list[str] = []
    for _ in range(20):
        begun, gone = c.is_accepted(migration.status), c.is_true(migration.status, "ReservationScheduled")
        subject = None if begun else POD
        awaited = migration.status.condition("PodBoundReservation") is not None
        reserved = (consumed() if awaited else available()) if _ref(migration) else None
        decision = next_step(Observed(migration, NOW, subject, reserved, NEW), "ReservationFirst")
        if decision.action == d.CreateReservation():
            migration.spec.reservation_options = running().spec.reservation_options
        if isinstance(decision.action, d.EvictPod):
            assert gone and not begun
            decision = evicted(Observed(migration, NOW, POD), POD, "load")
        if decision.status is not None:
            migration.status = decision.status
            shown.append(f"{migration.status.phase} {migration.status.status}")
        if migration.status.phase == "Succeeded":
            break
    assert list(dict.fromkeys(shown)) == [
        "Running ",
        "Running ReservationCreated",
        "Running ReservationScheduled",
        "Running Eviction",
        "Running PodBoundReservation",
        "Running ReservationBound",
        "Running BoundPodReady",
        "Succeeded Complete",
    ]


def _ref(migration: PodMigrationJob) -> bool:
    return (
        migration.spec.reservation_options is not None
        and migration.spec.reservation_options.reservation_ref is not None
    )
