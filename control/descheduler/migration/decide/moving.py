"""The pods that move, indexed so that a limit costs the same for any number of jobs (spec 07 §11.4)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from control.descheduler.migration.decide.pods import controller_uid
from control.descheduler.migration.decide.view import ClusterView, pod_of
from koordlet.api.core import Pod
from koordlet.api.crs.migration import PodMigrationJob

PodKey = tuple[str, str]
"""Namespace and name."""


class MovingPods:
    """The jobs that count as migrating, and their pods as they were when the jobs were added."""

    def __init__(self, view: ClusterView, jobs: Iterable[PodMigrationJob]) -> None:
        self._view = view
        self._total = 0
        self._namespaces: Counter[str] = Counter()
        self._by_uid: dict[str, list[PodMigrationJob]] = {}
        self._without_uid: dict[PodKey, list[PodMigrationJob]] = {}
        self._keys: set[PodKey] = set()
        self._nodes: dict[str, set[PodKey]] = {}
        self._owners: dict[str, set[str]] = {}
        self._existing: set[str] = set()
        for job in jobs:
            self.add(job)

    def add(self, job: PodMigrationJob) -> None:
        """Count a job, too."""
        ref = job.spec.pod_ref
        key = (ref.namespace, ref.name)
        self._total += 1
        self._namespaces[ref.namespace] += 1
        self._keys.add(key)
        if ref.uid:
            self._by_uid.setdefault(ref.uid, []).append(job)
        else:
            self._without_uid.setdefault(key, []).append(job)
        pod = pod_of(self._view, job)
        if pod is not None:
            self._existing.add(pod.metadata.uid)
            self._nodes.setdefault(pod.spec.node_name, set()).add(key)
            self._owners.setdefault(controller_uid(pod), set()).add(pod.metadata.uid)

    def names(self, pod: Pod) -> bool:
        """Whether a job moves the pod or one of the same name."""
        return pod.metadata.uid in self._by_uid or _key(pod) in self._keys

    def job_of(self, pod: Pod) -> str:
        """The name of a job that moves the pod; empty without one."""
        return next((job.metadata.name for job in self._own(pod)), "")

    def others(self, pod: Pod) -> int:
        """The jobs of other pods."""
        return self._total - len(self._own(pod))

    def others_in_namespace(self, pod: Pod) -> int:
        """The jobs of other pods of the same namespace."""
        namespace = pod.metadata.namespace
        own = sum(job.spec.pod_ref.namespace == namespace for job in self._own(pod))
        return self._namespaces[namespace] - own

    def others_on_node(self, pod: Pod) -> int:
        """The other pods of the same node that move."""
        return len(self._nodes.get(pod.spec.node_name, set()) - {_key(pod)})

    def siblings(self, pod: Pod, members: Iterable[Pod]) -> set[str]:
        """UIDs of the other pods of the workload that move and still exist. `members`: pods of the workload."""
        moving = {each.metadata.uid for each in members if each.metadata.uid in self._existing}
        return (moving | self._owners.get(controller_uid(pod), set())) - {pod.metadata.uid}

    def _own(self, pod: Pod) -> list[PodMigrationJob]:
        """The jobs of this pod: by UID, by name while a job has no UID yet."""
        return self._by_uid.get(pod.metadata.uid, []) + self._without_uid.get(_key(pod), [])


def _key(pod: Pod) -> PodKey:
    return pod.metadata.namespace, pod.metadata.name
