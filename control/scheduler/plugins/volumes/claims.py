"""A pod's claims and the volumes and classes behind them, as the caches know them.

Without `handle.objects` there are none of any. What this process assumed but the API server has not told back yet
(`Assumed`) overrides the caches: two pods in a row must not both count on one volume.
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
    """Decisions that are under way: volume -> claim key, claim key -> node for which it is to be provisioned.

    Several pods may use one claim; what was decided for it holds until the last of them is through."""

    volumes: dict[str, str] = field(default_factory=dict)
    provisioned: dict[str, str] = field(default_factory=dict)
    _holders: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By claim, and volume or "": pods that are being bound with it."""

    def hold(self, matched: Iterable[tuple[str, str]], provisioned: Iterable[str], node: str) -> None:
        """Note (claim, volume) pairs, and claims that are to be provisioned for `node`."""
        for claim, volume in matched:
            self.volumes[volume] = claim
            self._holders[claim, volume] += 1
        for claim in provisioned:
            self.provisioned[claim] = node
            self._holders[claim, ""] += 1

    def release(self, matched: Iterable[tuple[str, str]], provisioned: Iterable[str]) -> None:
        """Take back what one `hold` noted."""
        for claim, volume in matched:
            if self._let_go(claim, volume):
                self.volumes.pop(volume, None)
        for claim in provisioned:
            if self._let_go(claim, ""):
                self.provisioned.pop(claim, None)

    def _let_go(self, claim: str, volume: str) -> bool:
        """Whether that was the last."""
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
                self._objects.informer(kind)  # in time, before the caches start
        self.assumed = Assumed()

    def _get(self, kind: type[T], key: str) -> T | None:
        found: T | None = None if self._objects is None else self._objects.informer(kind).get(key)
        return found

    def _list(self, kind: type[T]) -> list[T]:
        found: list[T] = [] if self._objects is None else self._objects.informer(kind).list()
        return found

    def claim(self, key: str) -> PersistentVolumeClaim | None:
        return self._get(PersistentVolumeClaim, key)

    def volume(self, name: str) -> PersistentVolume | None:
        return self._get(PersistentVolume, name)

    def volumes(self) -> list[PersistentVolume]:
        return self._list(PersistentVolume)

    def storage_class(self, claim: PersistentVolumeClaim) -> StorageClass | None:
        return self._get(StorageClass, class_name(claim))

    def csi_node(self, node: str) -> CSINode | None:
        return self._get(CSINode, node)

    def csi_nodes(self) -> list[CSINode]:
        return self._list(CSINode)

    def driver(self, name: str) -> CSIDriver | None:
        return self._get(CSIDriver, name)

    def capacities(self) -> list[CSIStorageCapacity]:
        return self._list(CSIStorageCapacity)

    def waits_for_consumer(self, claim: PersistentVolumeClaim) -> bool:
        """Whether the claim's class binds only once a pod that uses it has a node."""
        found = self.storage_class(claim)
        return found is not None and found.volume_binding_mode == "WaitForFirstConsumer"


def class_name(claim: PersistentVolumeClaim) -> str:
    """The claim's class; the annotation of old clusters counts first."""
    beta = claim.metadata.annotations.get(BETA_CLASS)
    return beta if beta is not None else (claim.spec.storage_class_name or "")


def claim_names(pod: Pod) -> list[str]:
    """Names of the claims that the pod uses, those made for it included; each once."""
    return list(dict.fromkeys(name for name, _ in _claimed(pod)))


def _claimed(pod: Pod) -> Iterator[tuple[str, bool]]:
    """(name of a claim, whether it is made for the pod)"""
    for volume in pod.spec.volumes:
        if volume.persistent_volume_claim is not None:
            yield volume.persistent_volume_claim.claim_name, False
        elif volume.ephemeral is not None:
            yield f"{pod.metadata.name}-{volume.name}", True


def claims_of(pod: PodInfo) -> list[str]:
    """The pod's claims as `namespace/name`; none, mostly, and then remembered on the shape."""
    found: list[str] | None = pod.shape.memo.get("claims")
    if found is None:
        found = pod.shape.memo["claims"] = [f"{pod.namespace}/{name}" for name in claim_names(pod.shape.pod)]
    return found


def named_claims(pod: PodInfo) -> tuple[str, ...]:
    """The claims that the pod names, as `namespace/name`; not those that are made for it."""
    found: tuple[str, ...] | None = pod.shape.memo.get("claims/named")
    if found is None:
        names = dict.fromkeys(f"{pod.namespace}/{name}" for name, made in _claimed(pod.shape.pod) if not made)
        found = pod.shape.memo["claims/named"] = tuple(names)
    return found


def not_found(key: str) -> str:
    """What a pod is told whose claim (`namespace/name`) is not there."""
    return f'persistentvolumeclaim "{key.partition("/")[2]}" not found'


def is_bound(claim: PersistentVolumeClaim) -> bool:
    """Whether claim and volume are bound to each other for good."""
    return bool(claim.spec.volume_name) and BIND_COMPLETED in claim.metadata.annotations


def requested(claim: PersistentVolumeClaim) -> int:
    """Bytes asked for."""
    amount = claim.spec.resources.requests.get("storage")
    return 0 if amount is None else amount.value()


def could_hold(volume: PersistentVolume, claim: PersistentVolumeClaim) -> bool:
    """Whether a volume is of the claim's kind and large enough, also when it is reserved for it."""
    spec = volume.spec
    capacity = spec.capacity.get("storage")
    if capacity is None or capacity.value() < requested(claim) or volume.metadata.deletion_timestamp is not None:
        return False
    if (spec.volume_mode or "Filesystem") != (claim.spec.volume_mode or "Filesystem"):
        return False
    beta = volume.metadata.annotations.get(BETA_CLASS)
    return (beta if beta is not None else spec.storage_class_name) == class_name(claim)


def suits(volume: PersistentVolume, claim: PersistentVolumeClaim) -> bool:
    """Whether a volume that nobody has could serve the claim, wherever it is.

    One that its controller has not found available yet would be refused to whoever binds it."""
    wanted = claim.spec
    if not could_hold(volume, claim) or volume.status.phase != "Available":
        return False
    if not set(wanted.access_modes) <= set(volume.spec.access_modes):
        return False
    return wanted.selector is None or wanted.selector.matches(volume.metadata.labels)


def reference_of(claim: PersistentVolumeClaim) -> dict[str, Any]:
    """The claim as a volume's `claimRef` names it."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "namespace": claim.metadata.namespace,
        "name": claim.metadata.name,
        "uid": claim.metadata.uid,
        "resourceVersion": claim.metadata.resource_version,
    }


def smallest(volumes: Iterable[PersistentVolume]) -> PersistentVolume | None:
    """The volume that wastes least; by name among equals."""
    return min(volumes, key=lambda v: (v.spec.capacity["storage"].value(), v.metadata.name), default=None)
