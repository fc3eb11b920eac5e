"""The real `ClusterView`: pods and workloads from informers, jobs from the job book (spec 07 §11.4)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from control.component.informers import InformerSet
from control.descheduler.migration.decide.pods import controller_of
from control.descheduler.migration.decide.workloads import ReplicatedWorkload
from control.descheduler.migration.jobbook import JobBook
from control.descheduler.migration.scales import Scales
from control.descheduler.state.cluster import ClusterState
from koordlet.api.core import Deployment, Pod, ReplicaSet, ReplicationController, StatefulSet
from koordlet.api.crs.migration import PodMigrationJob
from koordlet.api.meta import OwnerReference

DEFAULT_REPLICAS = 1
"""Of a workload without `spec.replicas`."""
_KINDS: dict[tuple[str, str], type[Any]] = {
    ("apps", "ReplicaSet"): ReplicaSet,
    ("apps", "Deployment"): Deployment,
    ("apps", "StatefulSet"): StatefulSet,
    ("", "ReplicationController"): ReplicationController,
}


class CachedView:
    """See `ClusterView`."""

    def __init__(self, state: ClusterState, objects: InformerSet, book: JobBook, scales: Scales) -> None:
        self._state = state
        self._book = book
        self._scales = scales
        self._informers = {key: objects.informer(kind) for key, kind in _KINDS.items()}
        self._sets_by_deployment: dict[str, set[str]] = {}
        objects.informer(ReplicaSet).add_handler(self._link, lambda old, new: self._link(new), self._unlink)

    def pod(self, namespace: str, name: str) -> Pod | None:
        record = self._state.pods.get(f"{namespace}/{name}")
        return record.pod if record is not None else None

    def pods_of(self, owner_uid: str) -> Sequence[Pod]:
        return [record.pod for record in self._state.owned_by(owner_uid)]

    def order(self, pod: Pod) -> tuple[object, ...]:
        record = self._state.pod_by_uid(pod.metadata.uid) or self._state.placements.record(pod)
        return (*record.order, -record.created, record.namespace, record.name)

    def jobs(self) -> Sequence[PodMigrationJob]:
        return self._book.active()

    def workload(self, pod: Pod) -> ReplicatedWorkload:
        owner = controller_of(pod.metadata)
        if owner is None:
            return ReplicatedWorkload(0, ())
        namespace = pod.metadata.namespace
        owning = self._object(namespace, owner)
        if owning is None:
            pods = self.pods_of(owner.uid)
            replicas = self._scales.replicas(namespace, owner)
            return ReplicatedWorkload(len(pods) if replicas is None else replicas, pods)
        if isinstance(owning, ReplicaSet):
            parent = controller_of(owning.metadata)
            deployment = self._object(namespace, parent) if parent is not None else None
            if deployment is not None:
                pods = [each for uid in self._replica_sets(deployment) for each in self.pods_of(uid)]
                return ReplicatedWorkload(_replicas(deployment), pods)
        return ReplicatedWorkload(_replicas(owning), self.pods_of(owner.uid))

    async def resolve(self, pod: Pod) -> None:
        """Fetch the replicas of a workload whose kind is not cached. Raises KubeError."""
        owner = controller_of(pod.metadata)
        if owner is not None and self._object(pod.metadata.namespace, owner) is None:
            await self._scales.fetch(pod.metadata.namespace, owner)

    def _object(self, namespace: str, owner: OwnerReference) -> Any:
        """The cached workload; None for another kind, or if another object has the name now."""
        informer = self._informers.get((owner.api_version.rpartition("/")[0], owner.kind))
        cached = informer.get(f"{namespace}/{owner.name}") if informer is not None else None
        return cached if cached is not None and cached.metadata.uid == owner.uid else None

    def _replica_sets(self, deployment: Deployment) -> Iterator[str]:
        yield from sorted(self._sets_by_deployment.get(deployment.metadata.uid, ()))

    # Events

    def _link(self, replica_set: ReplicaSet) -> None:
        owner = controller_of(replica_set.metadata)
        if owner is not None:
            self._sets_by_deployment.setdefault(owner.uid, set()).add(replica_set.metadata.uid)

    def _unlink(self, replica_set: ReplicaSet) -> None:
        owner = controller_of(replica_set.metadata)
        if owner is not None:
            sets = self._sets_by_deployment.get(owner.uid, set())
            sets.discard(replica_set.metadata.uid)
            if not sets:
                self._sets_by_deployment.pop(owner.uid, None)


def _replicas(workload: Any) -> int:
    replicas = workload.spec.replicas
    return DEFAULT_REPLICAS if replicas is None else replicas
