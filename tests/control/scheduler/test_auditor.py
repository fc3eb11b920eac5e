"""The workload auditor: its rules, and the events that it records (spec 05 §7.4)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from control.scheduler.audit.auditor import WorkloadAuditor
from control.scheduler.audit.workload import AuditLimits, AuditMetrics, Workload, WorkloadEvent
from control.scheduler.cycle.failures import FitError
from control.scheduler.framework.plugin import CycleState
from control.scheduler.process.options import SchedulerOptions
from koordlet.api.core import Pod
from koordlet.app.flags import FlagError, read
from tests.control.scheduler.build import Cluster, node, pod
from tests.control.scheduler.toys import cycle_of
from tests.fakeclock import FakeClock

P = "scheduler_workload_auditor_"
K = WorkloadEvent


class Book:
    """Reads what was counted."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.metrics = AuditMetrics(self.registry)

    def __call__(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(P + name, {"priority": "p", **labels}) or 0.0


def told(*events: tuple[float, WorkloadEvent], outcome: str = "scheduled", at: float = 1000.0) -> Book:
    book = Book()
    workload = Workload("w", ("p",), book.metrics, AuditLimits())
    for when, kind in events:
        workload.add(kind, when)
    workload.end(outcome, at)
    return book


def test_second_and_later_nominations_are_repeated() -> None:
    book = told((0, K.CREATE), (1, K.NOMINATED), (2, K.NOMINATED), (3, K.NOMINATED))
    assert book("repeated_preemptions_total") == 2


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        ([K.NOMINATED], 1),
        ([K.PREEMPT_FAILED, K.FAILED], 1),
        ([K.FAILED, K.FAILED], 1),
        ([K.NOMINATED, K.FAILED], 2),
        ([K.DELETING, K.SCHEDULED], 0),
    ],
)
def test_a_nomination_is_invalidated_once(after: list[WorkloadEvent], expected: int) -> None:
    book = told((0, K.NOMINATED), *((n + 1.0, kind) for n, kind in enumerate(after)))
    assert book("preemption_invalidations_total") == expected


@pytest.mark.parametrize("answer", [K.FAILED, K.PREEMPT_FAILED, K.NOMINATED, K.SCHEDULED])
def test_the_time_after_the_last_victim_is_observed(answer: WorkloadEvent) -> None:
    book = told((0, K.NOMINATED), (4, K.VICTIMS_GONE), (7, answer), (9, K.SCHEDULED))
    assert (book("victim_reschedule_duration_seconds_count"), book("victim_reschedule_duration_seconds_sum")) == (1, 3)
    assert book("preemption_to_victim_deleted_seconds_sum") == 4


def test_a_gate_cancels_the_observation_after_the_last_victim() -> None:
    book = told((0, K.NOMINATED), (4, K.VICTIMS_GONE), (5, K.GATED), (6, K.ADMITTED), (7, K.SCHEDULED))
    assert book("victim_reschedule_duration_seconds_count") == 0


def test_preemptions_end_well_or_are_interrupted() -> None:
    book = told((0, K.NOMINATED), (1, K.DELETING), (2, K.DELETING), (5, K.VICTIMS_GONE), (6, K.SCHEDULED))
    assert book("preemption_to_victim_deleted_seconds_sum") == 5
    assert (book("preemption_victim_deleting_retries_count"), book("preemption_victim_deleting_retries_sum")) == (1, 2)
    assert book("preemption_cycle_interrupted_seconds_count") == 0
    book = told((0, K.NOMINATED), (3, K.FAILED))
    assert book("preemption_cycle_interrupted_seconds_sum") == 3
    book = told((0, K.NOMINATED), outcome="deleted", at=9)
    assert book("preemption_cycle_interrupted_seconds_sum") == 9


def test_time_between_events_counts_within_a_round() -> None:
    book = told((0, K.CREATE), (2, K.FAILED), (3, K.VICTIMS_GONE), (9, K.FAILED), (20, K.GATED), (90, K.FAILED),
                (95, K.ADMITTED), (96, K.SCHEDULED))  # fmt: skip
    assert (book("scheduling_event_interval_seconds_count"), book("scheduling_event_interval_seconds_sum")) == (3, 10)


def test_events_are_counted_at_the_end() -> None:
    book = told((0, K.CREATE), (1, K.FAILED), (2, K.FAILED), outcome="deleted")
    labels = {"event_type": "scheduleFailure", "outcome": "deleted"}
    assert book("scheduling_events_before_outcome_sum", **labels) == 2


def test_slow_workloads_are_logged(caplog: Any) -> None:
    told((0, K.CREATE), (301, K.FAILED), (302, K.NOMINATED), *((303, K.DELETING),) * 4, (310, K.VICTIMS_GONE),
         (321, K.SCHEDULED))  # fmt: skip
    log_text = " ".join(record.getMessage() for record in caplog.records)
    for text in (
        "Long time without an event of a workload",
        "Slow preemption",
        "Late attempt after all victims were deleted",
    ):
        assert text in log_text


class Scene:
    """An auditor, and pods with and without gangs (annotation `g`: group and whether it is complete)."""

    def __init__(self) -> None:
        self.clock, self.book = FakeClock(), Book()
        self.complete: set[str] = set()
        self.auditor = WorkloadAuditor(
            self.clock, self.book.metrics, {"koord-scheduler"}, self.group_of, limits=AuditLimits()
        )
        self.cluster = Cluster(node("n"))

    def group_of(self, pod: Pod) -> tuple[str, bool] | None:
        name = pod.metadata.annotations.get("g")
        return (name, name in self.complete) if name else None

    def failure(self, info: Any, *reasons: str, nominated: str = "") -> FitError:
        cycle = cycle_of(self.cluster)
        fit_error = FitError(info, cycle.framework, np.array([0]), np.array([0], np.uint32))
        fit_error.post_filter, fit_error.nominated = reasons, nominated or None
        return fit_error

    def unschedulable(self, info: Any, failure: FitError) -> None:
        cycle = cycle_of(self.cluster)
        self.auditor.on_unschedulable(cycle, CycleState(), info, failure)

    def counts(self, key: str) -> dict[str, int]:
        return {kind.value: number for kind, number in self.auditor.workloads[key].counts.items()}


def named(name: str, *, gang: str = "", gated: bool = False, scheduler: str = "koord-scheduler") -> Pod:
    spec: dict[str, Any] = {"priorityClassName": "p", "schedulerName": scheduler}
    if gated:
        spec["schedulingGates"] = [{"name": "g"}]
    return pod(name, annotations={"g": gang} if gang else {}, spec=spec)


def test_a_pod_from_its_creation_to_its_node() -> None:
    scene = Scene()
    auditor = scene.auditor
    gated, foreign = named("a", gated=True), named("b", scheduler="other")
    for subject in (gated, foreign, pod("bound", on="n")):
        auditor.pod_added(subject)
    (key,) = auditor.workloads
    assert key == f"default/a/{gated.metadata.uid}"
    free = named("a")
    free.metadata.uid = gated.metadata.uid
    auditor.pod_updated(gated, gated)
    auditor.pod_updated(gated, free)
    info = scene.cluster.info(free)
    info.attempts = 1
    scene.unschedulable(info, scene.failure(info, "preemption: 0/1 nodes are available: 1 Insufficient cpu."))
    auditor.attempt_failed(info)
    info.attempts = 2
    auditor.attempt_failed(info)
    assert scene.counts(key) == {
        "create": 1, "gatedByQueueAdmission": 1, "admissionPassed": 1, "preemptFailure": 1, "scheduleFailure": 1,
    }  # fmt: skip
    auditor.attempt_scheduled(info)
    assert auditor.workloads == {}
    labels = {"event_type": "scheduled", "outcome": "scheduled"}
    assert scene.book("scheduling_events_before_outcome_count", **labels) == 1
    auditor.pod_deleted(free)


def test_preemption_is_followed_to_its_last_victim() -> None:
    scene = Scene()
    auditor, preemptor = scene.auditor, named("a")
    victims = scene.cluster.put(pod("v1", on="n"), pod("v2", on="n"))
    auditor.pod_added(preemptor)
    (key,) = auditor.workloads
    info = scene.cluster.info(preemptor)
    info.attempts = 1
    auditor.evicting(info, victims)
    scene.unschedulable(info, scene.failure(info, nominated="n"))
    auditor.attempt_failed(info)
    info.attempts = 2
    text = "preemption: not eligible due to a terminating pod on the nominated node."
    scene.unschedulable(info, scene.failure(info, text))
    auditor.pod_deleted(victims[0].pod)
    assert scene.counts(key) == {"create": 1, "preemptNominated": 1, "preemptVictimDeleting": 1}
    auditor.pod_deleted(victims[1].pod)
    assert scene.counts(key)["victimAllDeleted"] == 1
    info.attempts = 3
    scene.unschedulable(info, scene.failure(info, nominated="n"))  # its victims waited at Permit
    assert scene.counts(key)["victimAllDeleted"] == 2
    auditor.pod_deleted(preemptor)
    assert not auditor.workloads
    assert not auditor._victims
    assert not auditor._of_victim
    assert not auditor._of_pod


def test_a_gang_is_one_workload() -> None:
    scene = Scene()
    auditor = scene.auditor
    members = [named(name, gang="ns/g") for name in "ab"]
    auditor.pod_added(members[0])
    scene.complete.add("ns/g")
    auditor.pod_added(members[1])
    auditor.pod_updated(members[1], members[1])
    infos = [scene.cluster.info(member) for member in members]
    for info in infos:
        info.attempts = 1
        auditor.attempt_failed(info)
    scene.unschedulable(infos[1], scene.failure(infos[1], "preemption: preemption already attempted by default/a …"))
    auditor.all_attempted("ns/g")
    assert scene.counts("ns/g") == {
        "create": 1, "gangMinMemberSatisfied": 1, "scheduleFailure": 1, "gangAllPodsAlreadyAttempted": 1,
    }  # fmt: skip
    auditor.attempt_scheduled(infos[0])
    auditor.pod_updated(members[1], members[1])  # on its way, too
    assert auditor.workloads == {}
    auditor.attempt_scheduled(infos[1])
    labels = {"event_type": "create", "outcome": "gangScheduled"}
    assert scene.book("scheduling_events_before_outcome_count", **labels) == 1
    assert not auditor._members
    assert not auditor._of_pod
    auditor.pod_added(members[0])
    auditor.pod_added(members[1])
    auditor.pod_deleted(members[0])
    assert set(auditor.workloads) == {"ns/g"}
    auditor.pod_deleted(members[1])
    labels = {"event_type": "create", "outcome": "gangDeleted"}
    assert scene.book("scheduling_events_before_outcome_count", **labels) == 1
    assert not auditor._members


@pytest.mark.parametrize("labels", ["priority", "a/b,a.b", "outcome,x", "a=x,a=y", "=x", "a="])
def test_labels_of_series_must_differ(labels: str) -> None:
    with pytest.raises(FlagError, match="workload-auditor-metric-labels"):
        read(SchedulerOptions, [f"--workload-auditor-metric-labels={labels}"])


def test_a_label_of_a_series_may_have_another_name_than_the_pods_label() -> None:
    options = read(SchedulerOptions, ["--workload-auditor-metric-labels=app, team=example.com/team,a/b"])
    assert options.audit_labels() == [("app", "app"), ("team", "example.com/team"), ("a_b", "a/b")]
