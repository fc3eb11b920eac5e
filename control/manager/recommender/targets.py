"""The pods that a Recommendation targets: by a controller that owns them, or by their labels. Pure.

The owners of a pod are its controller and, if that is a ReplicaSet or a Job, the controller of it: a Recommendation
names the Deployment, while the pod's owner reference names the ReplicaSet.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from koordlet.api.core import Container, Pod
from koordlet.api.crs.analysis import Recommendation
from koordlet.api.meta import ObjectMeta, OwnerReference, SelectorError

API_GROUPS: Final = {
    "Deployment": "apps",
    "StatefulSet": "apps",
    "DaemonSet": "apps",
    "ReplicaSet": "apps",
    "Job": "batch",
    "CronJob": "batch",
}
"""Workload kind -> API group."""
INTERMEDIATE: Final = ("ReplicaSet", "Job")
"""Kinds of controllers that are usually controlled by another controller."""

MetadataLookup = Callable[[str, OwnerReference], ObjectMeta | None]
"""(namespace, reference to a ReplicaSet or Job) -> metadata of that object; None when it is unknown."""


class UnsupportedTarget(ValueError):
    """The target is invalid or not supported; the message names the field."""


@dataclass(frozen=True, slots=True)
class WorkloadOwner:
    """A controller of pods."""

    group: str
    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class TargetPods:
    """The selected pods of a namespace: those with this owner, or those with matching labels."""

    owner: WorkloadOwner | None
    matches: Callable[[dict[str, str]], bool]

    def selects(self, pod: Pod, owners: Sequence[WorkloadOwner]) -> bool:
        """Whether a pod with these owners is selected."""
        return self.matches(pod.metadata.labels) if self.owner is None else self.owner in owners


class PodIndex:
    """The pods of some namespaces, indexed by owner."""

    def __init__(self) -> None:
        self.by_namespace: dict[str, list[Pod]] = defaultdict(list)
        self._by_owner: dict[tuple[str, WorkloadOwner], list[Pod]] = defaultdict(list)

    def add(self, pod: Pod, owners: Sequence[WorkloadOwner]) -> None:
        """Add a pod with its owners."""
        namespace = pod.metadata.namespace
        self.by_namespace[namespace].append(pod)
        for owner in owners:
            self._by_owner[namespace, owner].append(pod)

    def of(self, namespace: str, target: TargetPods) -> Sequence[Pod]:
        """The pods of a target in a namespace."""
        if target.owner is not None:
            return self._by_owner.get((namespace, target.owner), ())
        return [pod for pod in self.by_namespace.get(namespace, ()) if target.selects(pod, ())]


def target_of(recommendation: Recommendation) -> TargetPods:
    """The target of `spec.target`. Raises UnsupportedTarget."""
    target = recommendation.spec.target
    if target.type == "podSelector":
        selector = target.pod_selector
        if selector is None:
            raise UnsupportedTarget("spec.target.podSelector: is missing")
        try:
            selector.matches({})
        except SelectorError as error:
            raise UnsupportedTarget(f"spec.target.podSelector: {error}") from error
        return TargetPods(None, selector.matches)
    if target.type != "workload":
        raise UnsupportedTarget(f"spec.target.type: {target.type!r} is neither workload nor podSelector")
    workload = target.workload
    if workload is None or not workload.name:
        raise UnsupportedTarget("spec.target.workload: is missing or has no name")
    group = API_GROUPS.get(workload.kind)
    if group is None:
        raise UnsupportedTarget(f"spec.target.workload.kind: {workload.kind!r} is not one of {', '.join(API_GROUPS)}")
    if workload.api_version and _group(workload.api_version) != group:
        raise UnsupportedTarget(
            f"spec.target.workload.apiVersion: {workload.kind} is in API group {group}, not {workload.api_version!r}"
        )
    return TargetPods(WorkloadOwner(group, workload.kind, workload.name), lambda labels: False)


def controller(meta: ObjectMeta) -> OwnerReference | None:
    """The owner reference of the managing controller; None without one."""
    return next((reference for reference in meta.owner_references if reference.controller), None)


def owners(namespace: str, meta: ObjectMeta, lookup: MetadataLookup) -> tuple[WorkloadOwner, ...]:
    """The controllers that own a pod, the nearest first, as far as `lookup` finds them."""
    chain: list[WorkloadOwner] = []
    reference = controller(meta)
    while reference is not None and len(chain) < 3:
        chain.append(WorkloadOwner(_group(reference.api_version), reference.kind, reference.name))
        if reference.kind not in INTERMEDIATE:
            break
        parent = lookup(namespace, reference)
        # an object of the same name but with another uid is not the owner
        reference = controller(parent) if parent is not None and parent.uid == reference.uid else None
    return tuple(chain)


def measured_container(pod: Pod) -> Container | None:
    """The pod's only container, whose usage equals the pod's; None if several containers run in parallel."""
    if len(pod.spec.containers) != 1 or any(container.is_sidecar for container in pod.spec.init_containers):
        return None
    return pod.spec.containers[0]


def _group(api_version: str) -> str:
    return api_version.rpartition("/")[0]
