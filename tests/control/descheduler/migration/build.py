"""Short ways to write pods, jobs and Reservations, and a `ClusterView` over plain lists."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from control.descheduler.migration.decide.pods import controller_uid
from control.descheduler.migration.decide.view import WorkloadUnknown, is_terminal
from control.descheduler.migration.decide.workloads import ReplicatedWorkload
from control.descheduler.state.pods import PlacementRules
from koordlet.api.core import Pod
from koordlet.api.crs.migration import PodMigrationJob
from koordlet.api.crs.reservation import Reservation
from koordlet.api.encoding import wire
from koordlet.api.encoding.wire import Time

NOW = 1_700_000_000.0
_numbers = itertools.count(1)


def moment(seconds: float) -> str:
    return str(Time.from_unix(seconds))


def owner(kind: str, name: str, *, controller: bool = True) -> dict[str, Any]:
    version = {"Job": "batch/v1", "ReplicationController": "v1"}.get(kind, "apps/v1")
    return {"apiVersion": version, "kind": kind, "name": name, "uid": f"uid-{name}", "controller": controller}


def pod(
    name: str,
    *,
    by: str = "rs",
    kind: str = "ReplicaSet",
    namespace: str = "default",
    on: str = "n1",
    ready: bool = True,
    phase: str = "Running",
    uid: str = "",
    created: float = NOW - 3600,
    terminating: bool = False,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    spec: Mapping[str, Any] | None = None,
    conditions: Sequence[Mapping[str, Any]] | None = None,
) -> Pod:
    """A pod of workload `by`; empty: a bare pod."""
    metadata = {
        "name": name,
        "namespace": namespace,
        "uid": uid or f"uid-{name}",
        "labels": dict(labels or {}),
        "annotations": dict(annotations or {}),
        "creationTimestamp": moment(created),
        "ownerReferences": [owner(kind, by)] if by else [],
        **({"deletionTimestamp": moment(NOW)} if terminating else {}),
    }
    states = conditions if conditions is not None else [{"type": "Ready", "status": "True" if ready else "False"}]
    return wire.convert(
        {
            "metadata": metadata,
            "spec": {"nodeName": on, "schedulerName": "koord-scheduler", "containers": [{"name": "c"}], **(spec or {})},
            "status": {"phase": phase, "conditions": list(states)},
        },
        Pod,
    )


def job(
    of: Pod | str,
    *,
    phase: str = "",
    name: str = "",
    age: float = 0.0,
    uid: bool = True,
    ttl: str = "5m",
    mode: str = "",
    annotations: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    status: Mapping[str, Any] | None = None,
    **spec: Any,
) -> PodMigrationJob:
    """A job for a pod; a text is the name of a pod of namespace default that does not exist."""
    name = name or f"job-{next(_numbers)}"
    if isinstance(of, Pod):
        ref = {"namespace": of.metadata.namespace, "name": of.metadata.name}
        ref |= {"uid": of.metadata.uid} if uid else {}
    else:
        ref = {"namespace": "default", "name": of}
    return wire.convert(
        {
            "metadata": {
                "name": name,
                "uid": f"uid-{name}",
                "resourceVersion": "1",
                "creationTimestamp": moment(NOW - age),
                "annotations": dict(annotations or {}),
                "labels": dict(labels or {}),
            },
            "spec": {"podRef": ref, "ttl": ttl, "mode": mode, **spec},
            "status": {"phase": phase, **(status or {})},
        },
        PodMigrationJob,
    )


def reservation(name: str, **parts: Any) -> Reservation:
    """A Reservation as JSON parts: `metadata`, `spec`, `status`."""
    spec = {"template": {}, "owners": [], **parts.get("spec", {})}
    return wire.convert(
        {
            "metadata": {"name": name, "uid": f"uid-{name}", **parts.get("metadata", {})},
            "spec": spec,
            "status": parts.get("status", {}),
        },
        Reservation,
    )


class ListedView:
    """A `ClusterView` over lists. `replicas`: by UID of the controller; None there raises WorkloadUnknown."""

    def __init__(
        self,
        pods: Sequence[Pod] = (),
        jobs: Sequence[PodMigrationJob] = (),
        replicas: Mapping[str, int | None] | None = None,
    ) -> None:
        self._pods = {(each.metadata.namespace, each.metadata.name): each for each in pods}
        self._jobs = list(jobs)
        self._replicas = dict(replicas or {})
        self._placements = PlacementRules()

    def pod(self, namespace: str, name: str) -> Pod | None:
        return self._pods.get((namespace, name))

    def pods_of(self, owner_uid: str) -> list[Pod]:
        return [
            each
            for each in self._pods.values()
            if any(reference.uid == owner_uid for reference in each.metadata.owner_references)
        ]

    def order(self, pod: Pod) -> tuple[object, ...]:
        record = self._placements.record(pod)
        return (*record.order, -record.created, record.namespace, record.name)

    def jobs(self) -> list[PodMigrationJob]:
        return [each for each in self._jobs if not is_terminal(each)]

    def workload(self, pod: Pod) -> ReplicatedWorkload:
        pods = self.pods_of(controller_uid(pod))
        replicas = self._replicas.get(controller_uid(pod), len(pods))
        if replicas is None:
            raise WorkloadUnknown("no answer")
        return ReplicatedWorkload(replicas, pods)
