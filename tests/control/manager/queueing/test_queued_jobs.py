"""What a queued Job needs next: every row of the table of phases in spec 05 §14 that the job extension owns."""

from __future__ import annotations

from typing import Any

import pytest

from control.manager.queueing.jobs import MAX_NAME_CHARS, JobLimits, desired_spec, ended, next_step
from koordlet.api.core import Job
from koordlet.api.crs.queueing import QueueUnit
from koordlet.api.encoding.wire import Time, convert, to_builtins
from koordlet.api.names import LABEL_QUOTA_NAME

NOW = 1_800_000_000.0
LIMITS = JobLimits(start_s=600, backoff_s=60)
QUEUE = "kube-queue/queue-name"


def job(
    *, suspend: bool = True, status: dict[str, Any] | None = None, labels: dict[str, str] | None = None, **spec: Any
) -> Job:
    container = {"name": "c", "resources": {"requests": {"cpu": "2", "memory": "1Gi"}}}
    return convert(
        {
            "metadata": {"name": "train", "namespace": "ns", "uid": "u1", "annotations": {QUEUE: "q"}},
            "spec": {
                "suspend": suspend,
                "template": {"metadata": {"labels": labels or {}}, "spec": {"containers": [container]}},
                **spec,
            },
            "status": status or {},
        },
        Job,
    )


def unit(phase: str, *, age: float = 0.0, attempts: int = 0, **of_spec: Any) -> QueueUnit:
    spec = to_builtins(desired_spec(job(**of_spec)))
    status = {
        "phase": phase, "attempts": attempts, "quota": "team",
        "lastUpdateTime": str(Time.from_unix(NOW - age)),
        "admissions": [{"name": "all", "replicas": 1, "resources": {"cpu": "2"}}],
    }  # fmt: skip
    return convert({"metadata": {"name": "train", "namespace": "ns"}, "spec": spec, "status": status}, QueueUnit)


@pytest.mark.parametrize(
    ("spec", "count"),
    [({}, 1), ({"parallelism": 4}, 4), ({"parallelism": 4, "completions": 3}, 3), ({"parallelism": 0}, 0)],
)
def test_the_unit_requests_what_runs_at_the_same_time(spec: dict[str, Any], count: int) -> None:
    desired = desired_spec(job(**spec))
    assert (desired.queue, desired.pod_sets[0].count) == ("q", count)
    assert desired.request["cpu"].milli_value() == 2000 * count
    assert desired.consumer_ref is not None and desired.consumer_ref.uid == "u1"


def test_a_long_text_is_not_copied_into_the_unit() -> None:
    queued_job = job()
    queued_job.metadata.annotations = {QUEUE: "q" * 200_000}
    assert desired_spec(queued_job).queue == "q" * MAX_NAME_CHARS


@pytest.mark.parametrize("phase", ["", "Enqueued", "Reserved", "TimeoutBackoff"])
def test_a_job_that_is_not_admitted_is_suspended(phase: str) -> None:
    assert next_step(job(suspend=False), unit(phase), NOW, LIMITS).job_patch == {"spec": {"suspend": True}}
    assert next_step(job(), unit(phase), NOW, LIMITS).job_patch is None


def test_a_new_job_is_suspended_and_gets_a_unit() -> None:
    step = next_step(job(suspend=False), None, NOW, LIMITS)
    assert step.job_patch == {"spec": {"suspend": True}}
    assert step.unit_spec == desired_spec(job())


def test_a_finished_job_gets_no_unit() -> None:
    finished = job(suspend=False, status={"conditions": [{"type": "Complete", "status": "True"}]})
    step = next_step(finished, None, NOW, LIMITS)
    assert (step.job_patch, step.unit_spec, step.status) == (None, None, None)


def test_a_dequeued_job_is_resumed_with_its_quota() -> None:
    step = next_step(job(), unit("Dequeued"), NOW, LIMITS)
    template = {"metadata": {"labels": {LABEL_QUOTA_NAME: "team"}}}
    assert step.job_patch == {"spec": {"suspend": False, "template": template}}


def test_the_template_of_a_job_that_had_pods_is_not_changed() -> None:
    step = next_step(job(status={"startTime": "2026-01-01T00:00:00Z"}), unit("Dequeued"), NOW, LIMITS)
    assert step.job_patch == {"spec": {"suspend": False}}
    labelled = job(labels={LABEL_QUOTA_NAME: "team"})
    assert next_step(labelled, unit("Dequeued"), NOW, LIMITS).job_patch == {"spec": {"suspend": False}}


def test_dequeued_to_running() -> None:
    step = next_step(job(suspend=False, status={"ready": 1}), unit("Dequeued", age=5), NOW, LIMITS)
    assert step.status is not None and step.status["phase"] == "Running"
    assert step.status["admissions"][0]["running"] == 1


def test_dequeued_waits_for_a_pod_and_then_backs_off() -> None:
    resumed = job(suspend=False, status={"active": 1, "startTime": str(Time.from_unix(NOW - 5000))})
    waiting = next_step(resumed, unit("Dequeued", age=599), NOW, LIMITS)
    assert (waiting.status, waiting.again_s) == (None, 1.0)
    step = next_step(resumed, unit("Dequeued", age=600, attempts=2), NOW, LIMITS)
    assert step.status is not None and (step.status["phase"], step.status["attempts"]) == ("TimeoutBackoff", 3)
    assert (step.job_patch, step.again_s) == ({"spec": {"suspend": True}}, 240.0)


@pytest.mark.parametrize(("status", "left"), [({}, 600.0), ({"startTime": str(Time.from_unix(NOW - 10))}, 590.0)])
def test_a_job_that_was_resumed_late_has_the_whole_time(status: dict[str, Any], left: float) -> None:
    """No manager ran between the admission and the start of the job."""
    step = next_step(job(suspend=False, status=status), unit("Dequeued", age=9000), NOW, LIMITS)
    assert (step.job_patch, step.status, step.again_s) == (None, None, left)


@pytest.mark.parametrize(("attempts", "seconds"), [(1, 60), (2, 120), (6, 1920), (7, 3600), (1000, 3600)])
def test_backoff_doubles_up_to_an_hour(attempts: int, seconds: float) -> None:
    early = next_step(job(), unit("TimeoutBackoff", age=seconds - 1, attempts=attempts), NOW, LIMITS)
    assert (early.status, early.again_s) == (None, 1.0)
    over = next_step(job(), unit("TimeoutBackoff", age=seconds, attempts=attempts), NOW, LIMITS)
    assert over.status == {"phase": "Enqueued", "message": ""}


@pytest.mark.parametrize("phase", ["Dequeued", "TimeoutBackoff"])
def test_a_clock_that_jumped_back_delays_no_longer_than_the_whole_time(phase: str) -> None:
    step = next_step(job(suspend=phase != "Dequeued"), unit(phase, age=-1e6, attempts=1), NOW, LIMITS)
    assert step.status is None
    assert step.again_s == (LIMITS.start_s if phase == "Dequeued" else LIMITS.backoff_s)


@pytest.mark.parametrize(
    ("condition", "phase"), [("Complete", "Succeed"), ("Failed", "Failed"), ("FailureTarget", ""), ("Suspended", "")]
)
def test_the_end(condition: str, phase: str) -> None:
    over = job(suspend=False, status={"ready": 1, "conditions": [{"type": condition, "status": "True"}]})
    assert ended(over) == phase
    step = next_step(over, unit("Running", age=9), NOW, LIMITS)
    assert (step.status or {}).get("phase", "") == phase
    assert next_step(over, unit("Succeed"), NOW, LIMITS).status is None
    assert ended(job(status={"conditions": [{"type": condition, "status": "False"}]})) == ""


def test_a_running_job_is_not_left_suspended() -> None:
    assert next_step(job(), unit("Running"), NOW, LIMITS).job_patch == {"spec": {"suspend": False}}


@pytest.mark.parametrize(("phase", "follows"), [("Enqueued", True), ("Dequeued", False), ("Running", False)])
def test_the_unit_follows_its_job_while_it_waits(phase: str, follows: bool) -> None:
    """A tenant who lowers the request of the unit gains nothing, and an admitted request stays."""
    grown = job(suspend=phase == "Enqueued", parallelism=3)
    step = next_step(grown, unit(phase), NOW, LIMITS)
    assert (step.unit_spec == desired_spec(grown)) is follows
