"""The arbitrator written plainly from spec 07 §11.3 and §11.4: slow, no shared code with the product.

`rounds` decides on all waiting jobs one after the other, as one tick of the arbitrator does when every write succeeds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from koordlet.api.core import Pod
from koordlet.api.crs.migration import PodMigrationJob
from koordlet.api.priority import priority_class
from koordlet.api.qos import qos_class

ENDED = ("Succeeded", "Failed", "Aborted")
CLASS = {"koord-free": 1, "koord-batch": 2, "koord-mid": 3, "koord-prod": 4}
QOS = {"BE": 1, "LS": 2, "LSR": 3, "LSE": 4, "SYSTEM": 4}
KUBE = {"BestEffort": 1, "Burstable": 2, "Guaranteed": 3}


def limit_of(replicas: int, value: int | str | None) -> int:
    if value is None:
        result = replicas // 10 if replicas > 10 else (2 if replicas >= 4 else 1)
    elif isinstance(value, str):
        result = replicas * int(value[:-1]) // 100 or 1
    else:
        result = value or 1
    return result if result < replicas else replicas


class PlainArbitrator:
    """`limits`: globally, node, namespace, workload, unavailable; `replicas`: by UID of the controller."""

    def __init__(
        self,
        pods: Sequence[Pod],
        jobs: Sequence[PodMigrationJob],
        replicas: Mapping[str, int],
        passed: Sequence[str],
        limits: Mapping[str, Any],
    ) -> None:
        self.pods = {(pod.metadata.namespace, pod.metadata.name): pod for pod in pods}
        self.jobs, self.replicas, self.passed, self.limits = list(jobs), replicas, set(passed), limits

    def round(self) -> tuple[list[str], dict[str, str]]:
        """The order of the waiting jobs by name, and name -> passed, forbidden or waiting."""
        waiting = [each for each in self.jobs if each.status.phase in ("", "Pending")]
        waiting = [each for each in waiting if each.metadata.uid not in self.passed]
        result, order = {}, self.sorted(waiting)
        for job in order:
            pod = self.pod(job)
            if pod is None:
                result[job.metadata.name] = "passed"
            elif self.forbidden(pod):
                result[job.metadata.name] = "forbidden"
                job.status.phase = "Failed"
            elif self.full(pod):
                result[job.metadata.name] = "waiting"
            else:
                result[job.metadata.name] = "passed"
            if result[job.metadata.name] == "passed":
                self.passed.add(job.metadata.uid)
        return [each.metadata.name for each in order], result

    # Order

    def sorted(self, jobs: list[PodMigrationJob]) -> list[PodMigrationJob]:
        jobs = sorted(jobs, key=lambda job: job.metadata.name)
        by_age: dict[Any, list[PodMigrationJob]] = {}
        for job in jobs:
            by_age.setdefault(job.metadata.creation_timestamp, []).append(job)
        jobs = [job for moment in sorted(by_age, reverse=True) for job in by_age[moment]]
        without = [job for job in jobs if self.pod(job) is None]
        rest = [job for job in jobs if self.pod(job) is not None]
        jobs = without + sorted(rest, key=self.pod_key)
        grouped: list[PodMigrationJob] = []
        for job in jobs:
            if job not in grouped:
                grouped.append(job)
                if self.batch(job):
                    grouped += [
                        other for other in jobs if other not in grouped and self.batch(other) == self.batch(job)
                    ]
        return sorted(grouped, key=lambda job: -self.moving_of(self.batch(job)))

    def pod_key(self, job: PodMigrationJob) -> tuple[Any, ...]:
        pod = self.pod(job)
        assert pod is not None
        meta, notes = pod.metadata, pod.metadata.annotations
        created = meta.creation_timestamp
        assert created is not None
        return (
            CLASS.get(priority_class(pod), 5),
            pod.spec.priority or 0,
            KUBE["BestEffort"],  # the generated pods have no requests
            QOS[qos_class(pod)],
            int(notes.get("controller.kubernetes.io/pod-deletion-cost", "0")),
            int(notes.get("scheduling.koordinator.sh/eviction-cost", "0")),
            -created.timestamp(),
            meta.namespace,
            meta.name,
        )

    def batch(self, job: PodMigrationJob) -> str:
        pod = self.pod(job)
        for owner in pod.metadata.owner_references if pod is not None else []:
            if owner.controller and owner.kind == "Job":
                return owner.uid
        return ""

    def moving_of(self, uid: str) -> int:
        return sum(1 for job in self.jobs if uid and self.batch(job) == uid and self.counts(job))

    # Checks

    def pod(self, job: PodMigrationJob) -> Pod | None:
        return self.pods.get((job.spec.pod_ref.namespace, job.spec.pod_ref.name))

    def counts(self, job: PodMigrationJob) -> bool:
        phase = job.status.phase
        return phase not in ENDED and (phase == "Running" or job.metadata.uid in self.passed)

    def others(self, pod: Pod) -> list[PodMigrationJob]:
        meta, jobs = pod.metadata, []
        for job in self.jobs:
            ref = job.spec.pod_ref
            own = ref.uid == meta.uid if ref.uid else (ref.namespace, ref.name) == (meta.namespace, meta.name)
            if self.counts(job) and not own:
                jobs.append(job)
        return jobs

    def forbidden(self, pod: Pod) -> bool:
        notes, owners = pod.metadata.annotations, pod.metadata.owner_references
        if "descheduler.alpha.kubernetes.io/evict" in notes:
            return False
        if notes.get("scheduling.koordinator.sh/eviction-cost") == "2147483647" or not owners:
            return True
        if owners[0].kind == "DaemonSet":
            return True
        replicas = self.replicas[owners[0].uid]
        migrating = limit_of(replicas, self.limits["workload"])
        return replicas in (1, migrating, limit_of(replicas, self.limits["unavailable"]))

    def full(self, pod: Pod) -> bool:
        if "descheduler.alpha.kubernetes.io/evict" in pod.metadata.annotations:
            return False
        moving = self.others(pod)
        limit = self.limits["globally"]
        if limit and len(moving) >= limit:
            return True
        here = {
            job.spec.pod_ref.name
            for job in moving
            if (other := self.pod(job)) is not None
            and other.spec.node_name == pod.spec.node_name
            and other.metadata.name != pod.metadata.name
        }
        if self.limits["node"] and pod.spec.node_name and len(here) >= self.limits["node"]:
            return True
        near = [job for job in moving if job.spec.pod_ref.namespace == pod.metadata.namespace]
        if self.limits["namespace"] and len(near) >= self.limits["namespace"]:
            return True
        return self.workload_full(pod, moving)

    def workload_full(self, pod: Pod, jobs: list[PodMigrationJob]) -> bool:
        if not pod.metadata.owner_references:
            return False
        uid = pod.metadata.owner_references[0].uid
        members = [each for each in self.pods.values() if [o.uid for o in each.metadata.owner_references] == [uid]]
        moving = {job.spec.pod_ref.name for job in jobs if self.pod(job) in members} - {pod.metadata.name}
        if moving and len(moving) >= limit_of(self.replicas[uid], self.limits["workload"]):
            return True
        broken = {each.metadata.name for each in members if not self.works(each)}
        return len(broken | moving) >= limit_of(self.replicas[uid], self.limits["unavailable"])

    @staticmethod
    def works(pod: Pod) -> bool:
        condition = pod.status.condition("Ready")
        if pod.status.phase in ("Succeeded", "Failed") or pod.metadata.deletion_timestamp is not None:
            return False
        return condition is not None and condition.status == "True"
