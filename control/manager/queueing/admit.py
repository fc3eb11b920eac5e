"""One pass over a queue: which jobs start now, and why the others wait (spec 05 §14).

A job is admitted as the scheduler admits a pod: its whole request must fit into the runtime of the quota and of every
ancestor. Waiting jobs count as requests, so two quotas share what is scarce before any of their pods exist.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from control.quota.admission import AdmissionRules, refusal
from control.quota.amounts import Amounts, exceeding, masked
from control.quota.figures import QuotaFigures, QuotaPod
from control.quota.forest import QuotaForest

RULES: Final = AdmissionRules(by_runtime=True, check_parents=True)


@dataclass(frozen=True)
class QueueOrder:
    """How a queue is served."""

    name: str
    by_priority: bool = False
    """Policy Priority; otherwise FIFO."""
    blocking: bool = True
    """No job overtakes another."""
    priority: int = 0
    """Among queues."""


@dataclass(frozen=True)
class WaitingJob:
    """An enqueued unit."""

    uid: str
    key: str
    """`namespace/name`"""
    created: float
    priority: int
    request: Amounts
    quotas: tuple[str, ...]
    """In the order in which they are tried."""
    problem: str = ""
    """Why it may use none."""


@dataclass(frozen=True)
class QueueVerdict:
    """`quota`: the one that admits the job; otherwise it waits at `position`, because of `message`."""

    job: WaitingJob
    quota: str
    message: str
    position: int


def ordered(order: QueueOrder, jobs: Iterable[WaitingJob]) -> list[WaitingJob]:
    """The jobs as the queue serves them."""
    return sorted(jobs, key=lambda job: (-job.priority if order.by_priority else 0, job.created, job.key))


def virtual_pod(uid: str, key: str, quota: str, request: Amounts) -> QuotaPod:
    """A job as its quota counts it: like one pod, without a namespace, so that only the label decides."""
    return QuotaPod(f"job:{uid}", key, label=quota, namespace="", request=request, non_preemptible=False)


def admit(forest: QuotaForest, order: QueueOrder, jobs: Iterable[WaitingJob]) -> Iterator[QueueVerdict]:
    """The verdicts in the order of the queue. An admitted job counts as used in `forest`. A job that no quota could
    ever hold does not block the others."""
    blocked_by, position = "", 0
    for job in ordered(order, jobs):
        if job.problem:
            position += 1
            yield QueueVerdict(job, "", job.problem, position)
        elif blocked_by:
            position += 1
            yield QueueVerdict(job, "", f"Waits behind {blocked_by}", position)
        else:
            quota, message = _admitted(forest, job)
            if quota:
                yield QueueVerdict(job, quota, "", 0)
                continue
            position += 1
            if order.blocking and _possible(forest, job):
                blocked_by = job.key
            yield QueueVerdict(job, "", message, position)


def _admitted(forest: QuotaForest, job: WaitingJob) -> tuple[str, str]:
    """(the quota that admits the job, or empty; why the first does not)."""
    reasons = []
    for name in job.quotas:
        reason = _refusal(forest, job, name)
        if not reason:
            forest.assign(f"job:{job.uid}", True)
            return name, ""
        reasons.append(reason)
    if len(job.quotas) > 1:
        forest.set_pod(virtual_pod(job.uid, job.key, job.quotas[0], job.request))
    return "", "; ".join(reasons)


def _refusal(forest: QuotaForest, job: WaitingJob, name: str) -> str:
    quota = forest.get(name)
    if quota is None:
        return f"ElasticQuota {name} does not exist"
    forest.set_pod(virtual_pod(job.uid, job.key, name, job.request))
    tree = forest.tree(quota)
    if not quota.attached:
        return f"The parents of ElasticQuota {name} do not lead to the root"
    return refusal(tree, quota, job.request, RULES, non_preemptible=False)


def _possible(forest: QuotaForest, job: WaitingJob) -> bool:
    """Whether a quota could hold the job if all quotas and nodes were empty."""
    return any(_holds(forest, quota, job.request) for name in job.quotas if (quota := forest.get(name)) is not None)


def _holds(forest: QuotaForest, quota: QuotaFigures, request: Amounts) -> bool:
    counted = masked(request, quota.max)
    limits = [each.max for each in quota.path()]
    if not quota.outside:
        total = forest.tree(quota).total
        limits.append({name: total.get(name, 0) for name in counted})
    return quota.attached and not any(exceeding(counted, limit) for limit in limits)
