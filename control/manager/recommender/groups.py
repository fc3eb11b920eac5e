"""Whose pods a Recommendation is about: by the controller that stands above them, or by their labels. Pure.

A pod's chain is its controller and, when that is a ReplicaSet or a Job, the controller of that: what people write into
a Recommendation is the Deployment, and the pod knows its ReplicaSet only.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from koordlet.api.core import Container, Pod
from koordlet.api.crs.analysis import Recommendation
from koordlet.api.meta import ObjectMeta, OwnerReference, SelectorError

GROUPS: Final = {
    "Deployment": "apps",
    "StatefulSet": "apps",
    "DaemonSet": "apps",
    "ReplicaSet": "apps",
    "Job": "batch",
    "CronJob": "batch",
}
"""Kinds of workloads -> their API group."""
BETWEEN: Final = ("ReplicaSet", "Job")
"""Kinds of controllers that are controlled by others."""

Above = Callable[[str, OwnerReference], ObjectMeta | None]
"""Namespace and a reference to a ReplicaSet or Job -> that object's metadata; None when it is not known."""


class UnsupportedTarget(ValueError):
    """A target that names no pods we can find; the message names the field."""


@dataclass(frozen=True, slots=True)
class Owner:
    """A controller of pods."""

    group: str
    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class Target:
    """Which pods of a namespace: those with this owner, or those that the labels match."""

    owner: Owner | None
    matches: Callable[[dict[str, str]], bool]

    def wants(self, pod: Pod, owners: Sequence[Owner]) -> bool:
        """Whether a pod under these controllers belongs to it."""
        return self.matches(pod.metadata.labels) if self.owner is None else self.owner in owners


class Members:
    """The pods of some namespaces, to be asked for by target."""

    def __init__(self) -> None:
        self.by_namespace: dict[str, list[Pod]] = defaultdict(list)
        self._by_owner: dict[tuple[str, Owner], list[Pod]] = defaultdict(list)

    def add(self, pod: Pod, above: Sequence[Owner]) -> None:
        """A pod and the controllers above it."""
        namespace = pod.metadata.namespace
        self.by_namespace[namespace].append(pod)
        for owner in above:
            self._by_owner[namespace, owner].append(pod)

    def of(self, namespace: str, target: Target) -> Sequence[Pod]:
        """The pods of a target in a namespace."""
        if target.owner is not None:
            return self._by_owner.get((namespace, target.owner), ())
        return [pod for pod in self.by_namespace.get(namespace, ()) if target.wants(pod, ())]


def target_of(recommendation: Recommendation) -> Target:
    """What `spec.target` says. Raises UnsupportedTarget."""
    target = recommendation.spec.target
    if target.type == "podSelector":
        selector = target.pod_selector
        if selector is None:
            raise UnsupportedTarget("spec.target.podSelector: is missing")
        try:
            selector.matches({})
        except SelectorError as error:
            raise UnsupportedTarget(f"spec.target.podSelector: {error}") from error
        return Target(None, selector.matches)
    if target.type != "workload":
        raise UnsupportedTarget(f"spec.target.type: {target.type!r} is neither workload nor podSelector")
    workload = target.workload
    if workload is None or not workload.name:
        raise UnsupportedTarget("spec.target.workload: is missing or has no name")
    wanted = GROUPS.get(workload.kind)
    if wanted is None:
        raise UnsupportedTarget(f"spec.target.workload.kind: {workload.kind!r} is none of {', '.join(GROUPS)}")
    if workload.api_version and _group(workload.api_version) != wanted:
        raise UnsupportedTarget(
            f"spec.target.workload.apiVersion: {workload.kind} is of the group {wanted},"
            f" not of {workload.api_version!r}"
        )
    return Target(Owner(wanted, workload.kind, workload.name), lambda labels: False)


def controller(meta: ObjectMeta) -> OwnerReference | None:
    """The owner that manages an object; None when nobody does."""
    return next((reference for reference in meta.owner_references if reference.controller), None)


def owners(namespace: str, meta: ObjectMeta, above: Above) -> tuple[Owner, ...]:
    """The controllers above a pod, the nearest first; as far as `above` knows them."""
    found: list[Owner] = []
    reference = controller(meta)
    while reference is not None and len(found) < 3:
        found.append(Owner(_group(reference.api_version), reference.kind, reference.name))
        if reference.kind not in BETWEEN:
            break
        parent = above(namespace, reference)
        # one of the same name that was made anew is another one
        reference = controller(parent) if parent is not None and parent.uid == reference.uid else None
    return tuple(found)


def measured_container(pod: Pod) -> Container | None:
    """The container whose usage the pod's is: its only one; None where several run side by side."""
    if len(pod.spec.containers) != 1 or any(container.is_sidecar for container in pod.spec.init_containers):
        return None
    return pod.spec.containers[0]


def _group(api_version: str) -> str:
    return api_version.rpartition("/")[0]
