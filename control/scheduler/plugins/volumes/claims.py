"""A pod's claims with their volumes and storage classes, from the caches.

Without `handle.objects` there are no claims. Decisions of this process that the API server has not confirmed yet
(`Assumed`) override the caches, so that two consecutive pods do not use the same volume.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from control.scheduler.framework.handle import Handle
from control.scheduler.state.pods import PodInfo
from koordlet.api.core import PersistentVolume, PersistentVolumeClaim, Pod, StorageClass
from koordlet.api.core.storage import CSIDriver, CSINode, CSIStorageCapacity

SELECTED_NODE: Final = "volume.kubernetes.io/selected-node"
BIND_COMPLETED: Final = "pv.kubernetes.io/bind-completed"
BOUND_BY_CONTROLLER: Final = "pv.kubernetes.io/bound-by-controller"
BETA_CLASS: Final = "volume.beta.kubernetes.io/storage-class"
NO_PROVISIONER: Final = "kubernetes.io/no-provisioner"
T = TypeVar("T")


@dataclass
class Assumed:
    """Decisions in progress: volume -> claim key, and claim key -> node for which it is provisioned.

    Several pods may use one claim; its decision is kept until the binding of the last of them has ended."""

    volumes: dict[str, str] = field(default_factory=dict)
    provisioned: dict[str, str] = field(default_factory=dict)
    _holders: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(claim, volume or "") -> number of pods that are being bound with it."""

    def hold(self, matched: Iterable[tuple[str, str]], provisioned: Iterable[str], node: str) -> None:
        """Record (claim, volume) pairs, and claims that are provisioned for `node`."""
        for claim, volume in matched:
            self.volumes[volume] = claim
            self._holders[claim, volume] += 1
        for claim in provisioned:
            self.provisioned[claim] = node
            self._holders[claim, ""] += 1

    def release(self, matched: Iterable[tuple[str, str]], provisioned: Iterable[str]) -> None:
        """Revert one call of `hold`."""
        for claim, volume in matched:
            if self._drop_holder(claim, volume):
                self.volumes.pop(volume, None)
        for claim in provisioned:
            if self._drop_holder(claim, ""):
                self.provisioned.pop(claim, None)

    def _drop_holder(self, claim: str, volume: str) -> bool:
        """Remove one holder. Returns whether it was the last."""
        key = (claim, volume)
        self._holders[key] -= 1
        if self._holders[key] > 0:
            return False
        del self._holders[key]
        return True


class Storage:
    """Lookups for one profile."""

    KINDS: Final = (PersistentVolumeClaim, PersistentVolume, StorageClass, CSINode, CSIDriver, CSIStorageCapacity)

    def __init__(self, handle: Handle) -> None:
        self._objects = handle.objects
        if self._objects is not None:
            for kind in self.KINDS:
                self._objects.informer(kind)  # informers must exist before the caches start
        self.assumed = Assumed()

    def _get(self, kind: type[T], key: str) -> T | None:
        cached: T | None = None if self._objects is None else self._objects.informer(kind).get(key)
        return cached

    def _list(self, kind: type[T]) -> list[T]:
        cached: list[T] = [] if self._objects is None else self._objects.informer(kind).list()
        return cached

    def claim(self, key: str) -> PersistentVolumeClaim | None:
        return self._get(PersistentVolumeClaim, key)

    def volume(self, name: str) -> PersistentVolume | None:
        return self._get(PersistentVolume, name)

    def volumes(self) -> list[PersistentVolume]:
        return self._list(PersistentVolume)

    def storage_class(self, claim: PersistentVolumeClaim) -> StorageClass | None:
        return self._get(StorageClass, class_name(claim))

    def csi_nodes(self) -> list[CSINode]:
        return self._list(CSINode)

    def driver(self, name: str) -> CSIDriver | None:
        return self._get(CSIDriver, name)

    def capacities(self) -> list[CSIStorageCapacity]:
        return self._list(CSIStorageCapacity)

    def waits_for_consumer(self, claim: PersistentVolumeClaim) -> bool:
        """Whether the claim is bound only after a pod that uses it has a node (WaitForFirstConsumer)."""
        storage_class = self.storage_class(claim)
        return storage_class is not None and storage_class.volume_binding_mode == "WaitForFirstConsumer"


def class_name(claim: PersistentVolumeClaim) -> str:
    """The storage class of the claim. The beta annotation takes precedence."""
    beta = claim.metadata.annotations.get(BETA_CLASS)
    return beta if beta is not None else (claim.spec.storage_class_name or "")


def claim_names(pod: Pod) -> list[str]:
    """The distinct names of the claims that the pod uses, including those of ephemeral volumes."""
    return list(dict.fromkeys(name for name, _ in _claimed(pod)))


def _claimed(pod: Pod) -> Iterator[tuple[str, bool]]:
    """(name of the claim, whether it belongs to an ephemeral volume of the pod)."""
    for volume in pod.spec.volumes:
        if volume.persistent_volume_claim is not None:
            yield volume.persistent_volume_claim.claim_name, False
        elif volume.ephemeral is not None:
            yield f"{pod.metadata.name}-{volume.name}", True


def claims_of(pod: PodInfo) -> list[str]:
    """The pod's claims as `namespace/name`, cached in the shape."""
    keys: list[str] | None = pod.shape.memo.get("claims")
    if keys is None:
        keys = pod.shape.memo["claims"] = [f"{pod.namespace}/{name}" for name in claim_names(pod.shape.pod)]
    return keys


def named_claims(pod: PodInfo) -> tuple[str, ...]:
    """The claims that the pod names, as `namespace/name`, without those of ephemeral volumes."""
    keys: tuple[str, ...] | None = pod.shape.memo.get("claims/named")
    if keys is None:
        names = dict.fromkeys(f"{pod.namespace}/{name}" for name, ephemeral in _claimed(pod.shape.pod) if not ephemeral)
        keys = pod.shape.memo["claims/named"] = tuple(names)
    return keys


def not_found(key: str) -> str:
    """The message for a missing claim (`namespace/name`)."""
    return f'persistentvolumeclaim "{key.partition("/")[2]}" not found'


def is_bound(claim: PersistentVolumeClaim) -> bool:
    """Whether the binding of the claim to its volume is complete."""
    return bool(claim.spec.volume_name) and BIND_COMPLETED in claim.metadata.annotations


def requested(claim: PersistentVolumeClaim) -> int:
    """Requested bytes."""
    amount = claim.spec.resources.requests.get("storage")
    return 0 if amount is None else amount.value()


def could_hold(volume: PersistentVolume, claim: PersistentVolumeClaim) -> bool:
    """Whether mode, class and size of the volume satisfy the claim; sufficient for a volume reserved for the claim."""
    spec = volume.spec
    capacity = spec.capacity.get("storage")
    if capacity is None or capacity.value() < requested(claim) or volume.metadata.deletion_timestamp is not None:
        return False
    if (spec.volume_mode or "Filesystem") != (claim.spec.volume_mode or "Filesystem"):
        return False
    if (spec.volume_attributes_class_name or "") != (claim.spec.volume_attributes_class_name or ""):
        return False
    beta = volume.metadata.annotations.get(BETA_CLASS)
    return (beta if beta is not None else spec.storage_class_name) == class_name(claim)


def suits(volume: PersistentVolume, claim: PersistentVolumeClaim) -> bool:
    """Whether an unclaimed volume satisfies the claim, on whatever node it is.

    Binding a volume that its controller has not marked as Available yet would be refused."""
    spec = claim.spec
    if not could_hold(volume, claim) or volume.status.phase != "Available":
        return False
    if not set(spec.access_modes) <= set(volume.spec.access_modes):
        return False
    return spec.selector is None or spec.selector.matches(volume.metadata.labels)


def reference_of(claim: PersistentVolumeClaim) -> dict[str, Any]:
    """The `claimRef` of a volume that is bound to the claim."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "namespace": claim.metadata.namespace,
        "name": claim.metadata.name,
        "uid": claim.metadata.uid,
        "resourceVersion": claim.metadata.resource_version,
    }


def smallest(volumes: Iterable[PersistentVolume]) -> PersistentVolume | None:
    """The smallest volume; the first by name among equals."""
    return min(volumes, key=lambda v: (v.spec.capacity["storage"].value(), v.metadata.name), default=None)
