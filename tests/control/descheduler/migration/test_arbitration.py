"""Order and verdicts of arbitration (spec 07 §11.3)."""

from __future__ import annotations

from typing import Any

from control.descheduler.migration.decide.arbitration import Outcome, arbitrate, arrange, counts_in_arbitration
from control.descheduler.migration.decide.args import ArbitrationArgs, MigrationControllerArgs
from control.descheduler.migration.decide.filters import MigrationFilter
from control.descheduler.migration.decide.moving import MovingPods
from koordlet.api.core import Pod
from koordlet.api.crs.migration import PodMigrationJob
from tests.control.descheduler.migration.build import NOW, ListedView, job, pod

NONE_PASSED: frozenset[str] = frozenset()


def rules(**settings: Any) -> MigrationFilter:
    return MigrationFilter.of(MigrationControllerArgs(**settings))


def moving_of(view: ListedView, passed: frozenset[str] = NONE_PASSED) -> MovingPods:
    return MovingPods(view, (each for each in view.jobs() if counts_in_arbitration(each, passed)))


def ordered(pods: list[Pod], jobs: list[PodMigrationJob], running: list[PodMigrationJob] | None = None) -> list[str]:
    view = ListedView(pods, [*jobs, *(running or [])])
    return [each.spec.pod_ref.name for each in arrange(jobs, view, NONE_PASSED)]


def prioritised(names: list[str], owners: list[tuple[str, str]]) -> list[Pod]:
    return [
        pod(name, kind=kind, by=by, spec={"priority": number})
        for number, (name, (kind, by)) in enumerate(zip(names, owners, strict=True))
    ]


OWNERS = [("Job", "j1"), ("ReplicaSet", "rs"), ("Job", "j2"), ("Job", "j1")]


def test_jobs_of_one_batch_job_follow_its_first_one() -> None:
    pods = prioritised(["a", "b", "c", "d"], OWNERS)
    assert ordered(pods, [job(each) for each in pods]) == ["a", "d", "b", "c"]


def test_a_batch_job_that_migrates_already_comes_first() -> None:
    pods = prioritised(["a", "b", "c", "d"], OWNERS)
    moving_pods = [pod("e", kind="Job", by="j2"), pod("f", kind="Job", by="j2"), pod("g")]
    running = [job(each, phase="Running") for each in moving_pods]
    assert ordered([*pods, *moving_pods], [job(each) for each in pods], running) == ["c", "a", "d", "b"]


def test_the_pod_order_is_stronger_than_age_and_missing_pods_come_first() -> None:
    pods = [pod("old", spec={"priority": 5}), pod("low", spec={"priority": 1})]
    jobs = [job(pods[0], age=10), job(pods[1], age=90), job("gone-old", age=50), job("gone-new", age=5)]
    assert ordered(pods, jobs) == ["gone-new", "gone-old", "low", "old"]


def test_verdicts() -> None:
    candidate, bare = pod("a"), pod("bare", by="")
    view = ListedView([candidate, bare], [], {"uid-rs": 10})
    cases = [
        (job(candidate), Outcome.PASSED),
        (job("missing"), Outcome.PASSED),
        (job(bare), Outcome.FORBIDDEN),
        (job(candidate, age=299), Outcome.PASSED),
        (job(candidate, age=300), Outcome.EXPIRED),
        (job(candidate, age=10_000, ttl="0s"), Outcome.PASSED),
    ]
    for each, outcome in cases:
        assert arbitrate(each, view, rules(), moving_of(view), NOW).outcome is outcome


def test_jobs_that_reserve_need_a_scheduler_that_supports_reservations() -> None:
    """Otherwise the pod would be evicted for room that its replacement ignores."""
    candidate = pod("a", spec={"schedulerName": "default-scheduler"})
    view = ListedView([candidate], [], {"uid-rs": 10})
    for mode, outcome in (
        ("", Outcome.FORBIDDEN),
        ("ReservationFirst", Outcome.FORBIDDEN),
        ("EvictDirectly", Outcome.PASSED),
    ):
        assert arbitrate(job(candidate, mode=mode), view, rules(), moving_of(view), NOW).outcome is outcome


def test_without_arbitration_every_job_passes_until_its_time_is_over() -> None:
    bare = pod("bare", by="")
    view, off = ListedView([bare]), rules(arbitration_args=ArbitrationArgs(enabled=False))
    assert arbitrate(job(bare), view, off, moving_of(view), NOW).outcome is Outcome.PASSED
    assert arbitrate(job(bare, age=300), view, off, moving_of(view), NOW).outcome is Outcome.EXPIRED


def test_only_running_and_passed_jobs_count() -> None:
    pods = [pod("a"), pod("b")]
    waiting, running = job(pods[1]), job(pods[1], phase="Running")
    limits = rules(max_migrating_globally=1)
    subject = job(pods[0])

    def outcome(other: PodMigrationJob, passed: frozenset[str]) -> Outcome:
        view = ListedView(pods, [subject, other], {"uid-rs": 10})
        return arbitrate(subject, view, limits, moving_of(view, passed), NOW).outcome

    assert outcome(waiting, NONE_PASSED) is Outcome.PASSED
    assert outcome(waiting, frozenset({waiting.metadata.uid})) is Outcome.WAITING
    assert outcome(running, NONE_PASSED) is Outcome.WAITING


def test_a_job_waits_while_its_workload_is_unknown() -> None:
    candidate = pod("a")
    view = ListedView([candidate], [], {"uid-rs": None})
    assert arbitrate(job(candidate), view, rules(), moving_of(view), NOW).outcome is Outcome.WAITING
