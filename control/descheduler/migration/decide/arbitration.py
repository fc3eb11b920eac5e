"""In which order waiting jobs are decided, and which of them may start (spec 07 §11.3). Pure."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from control.descheduler.migration.decide.filters import MigrationFilter
from control.descheduler.migration.decide.lifetime import has_expired
from control.descheduler.migration.decide.moving import MovingPods
from control.descheduler.migration.decide.pods import controller_of
from control.descheduler.migration.decide.view import (
    RUNNING,
    ClusterView,
    WorkloadUnknown,
    is_terminal,
    pod_of,
)
from koordlet.api.core import Pod
from koordlet.api.crs.migration import PodMigrationJob


class Outcome(enum.Enum):
    """What happens with a waiting job in one round."""

    PASSED = "passed"
    FORBIDDEN = "forbidden"
    EXPIRED = "expired"
    WAITING = "waiting"


@dataclass(frozen=True, slots=True)
class ArbitrationVerdict:
    """The outcome, and the reason if the job does not start."""

    outcome: Outcome
    reason: str = ""


PASSED = ArbitrationVerdict(Outcome.PASSED)


def arbitrate(
    job: PodMigrationJob,
    view: ClusterView,
    rules: MigrationFilter,
    moving: MovingPods,
    now: float,
    *,
    exempt: bool = False,
) -> ArbitrationVerdict:
    """The verdict on one waiting job. `moving`: the jobs that passed already, in this round or before. `exempt`: the
    pod moves although it is not evictable; the limits hold."""
    if has_expired(job, now):
        return ArbitrationVerdict(Outcome.EXPIRED)
    if not rules.args.arbitration_args.enabled:
        return PASSED
    pod = pod_of(view, job)
    if pod is None:
        return PASSED  # the reconciler reports the missing pod
    if controller_of(pod.metadata) is not None:
        try:
            view.workload(pod)
        except WorkloadUnknown as error:
            return ArbitrationVerdict(Outcome.WAITING, f"its workload is unknown: {error}")
    if reason := rules.unreservable(pod, job.spec.mode) or ("" if exempt else rules.forbidden(pod, view)):
        return ArbitrationVerdict(Outcome.FORBIDDEN, reason)
    if reason := rules.over_limits(pod, view, moving):
        return ArbitrationVerdict(Outcome.WAITING, reason)
    return PASSED


def counts_in_arbitration(job: PodMigrationJob, passed: frozenset[str] | set[str]) -> bool:
    """The jobs that count as migrating in arbitration: running, or passed and not started yet."""
    return not is_terminal(job) and (job.metadata.uid in passed or job.status.phase == RUNNING)


def arrange(
    waiting: Iterable[PodMigrationJob], view: ClusterView, passed: frozenset[str] | set[str]
) -> list[PodMigrationJob]:
    """The waiting jobs in the order of their decision: four stable sorts, the last one is the strongest."""
    jobs = sorted(waiting, key=_newest_first)
    pods = {job.metadata.uid: pod_of(view, job) for job in jobs}
    jobs.sort(key=lambda job: _pod_order(view, pods[job.metadata.uid]))
    owners = {uid: batch_owner(pod) for uid, pod in pods.items()}
    jobs = _beside_siblings(jobs, owners)
    migrating = _migrating_by_batch_job(view, passed)
    jobs.sort(key=lambda job: -migrating[owners[job.metadata.uid]] if owners[job.metadata.uid] else 0)
    return jobs


def batch_owner(pod: Pod | None) -> str:
    """The UID of the controlling batch Job; empty for every other pod."""
    owner = controller_of(pod.metadata) if pod is not None else None
    return owner.uid if owner is not None and owner.kind == "Job" else ""


def _newest_first(job: PodMigrationJob) -> tuple[float, str]:
    created = job.metadata.creation_timestamp
    return -(created.unix if created is not None else 0.0), job.metadata.name


def _pod_order(view: ClusterView, pod: Pod | None) -> tuple[object, ...]:
    return (0,) if pod is None else (1, *view.order(pod))


def _beside_siblings(jobs: Sequence[PodMigrationJob], owners: Mapping[str, str]) -> list[PodMigrationJob]:
    """The same order, but jobs of one batch Job follow its first one; all others keep their index."""
    groups: dict[str, list[PodMigrationJob]] = {}
    for job in jobs:
        groups.setdefault(owners[job.metadata.uid] or f"/{job.metadata.uid}", []).append(job)
    return [job for group in groups.values() for job in group]


def _migrating_by_batch_job(view: ClusterView, passed: frozenset[str] | set[str]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for job in view.jobs():
        if counts_in_arbitration(job, passed):
            counts[batch_owner(pod_of(view, job))] += 1
    return counts
