"""VolumeRestrictions, NodeVolumeLimits, VolumeBinding and VolumeZone, one node and one claim at a time.

Each plugin has a `…_first` that says what it finds wrong with the pod wherever it goes, and one that looks at a node.
A claim counts once however often a pod names it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from koordlet.api.core import Node, PersistentVolume, PersistentVolumeClaim, Pod, StorageClass
from koordlet.api.core.pod import Volume
from tests.control.scheduler.plain.world import S, Storage, U, Verdict, World

CLASS_OF_OLD = "volume.beta.kubernetes.io/storage-class"
SELECTED = "volume.kubernetes.io/selected-node"
CONFLICT = "node(s) didn't match PersistentVolume's node affinity"
UNMATCHED = "node(s) didn't find available persistent volumes to bind"
FULL = "node(s) did not have enough free storage"
GONE = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"


def _named(objects: Sequence[Any], name: str) -> Any:
    for obj in objects:
        if obj.metadata.name == name:
            return obj
    return None


def _claim(world: World, pod: Pod, name: str) -> PersistentVolumeClaim | None:
    for claim in world.storage.claims:
        if claim.metadata.namespace == pod.metadata.namespace and claim.metadata.name == name:
            return claim
    return None


def _uses(pod: Pod) -> Iterator[tuple[str, bool]]:
    """(claim's name, whether it is made for the pod)"""
    seen = set()
    for volume in pod.spec.volumes:
        if volume.persistent_volume_claim is not None:
            name, generated = volume.persistent_volume_claim.claim_name, False
        elif volume.ephemeral is not None:
            name, generated = pod.metadata.name + "-" + volume.name, True
        else:
            continue
        if name not in seen:
            seen.add(name)
            yield name, generated


def _class_name(claim: PersistentVolumeClaim) -> str:
    if CLASS_OF_OLD in claim.metadata.annotations:
        return claim.metadata.annotations[CLASS_OF_OLD]
    return claim.spec.storage_class_name or ""


def _class(storage: Storage, claim: PersistentVolumeClaim) -> StorageClass | None:
    storage_class: StorageClass | None = _named(storage.classes, _class_name(claim))
    return storage_class


def _size(claim: PersistentVolumeClaim) -> int:
    requests = claim.spec.resources.requests
    return requests["storage"].value() if "storage" in requests else 0


# VolumeRestrictions


def restrictions_first(pod: Pod, world: World) -> Verdict:
    for name, is_generated in _uses(pod):
        if not is_generated and _claim(world, pod, name) is None:
            return U, (f'persistentvolumeclaim "{name}" not found',)
    return None


def restrictions(pod: Pod, node: Node, world: World) -> Verdict:
    for other in world.on(node):
        for ours in pod.spec.volumes:
            for theirs in other.spec.volumes:
                if _one_disk(ours, theirs):
                    return S, ("node(s) had no available disk",)
    mine = [name for name, is_generated in _uses(pod) if not is_generated]
    for other in world.pods:
        for name, is_generated in _uses(other):
            if is_generated or name not in mine or other.metadata.namespace != pod.metadata.namespace:
                continue
            claim = _claim(world, pod, name)
            if claim is not None and "ReadWriteOncePod" in claim.spec.access_modes:
                return S, (
                    "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already"
                    " in-use by another pod",
                )
    return None


def _one_disk(a: Volume, b: Volume) -> bool:
    """Whether two volumes are one disk that is not only read."""
    if a.gce_persistent_disk and b.gce_persistent_disk:
        both_read = a.gce_persistent_disk.read_only and b.gce_persistent_disk.read_only
        return a.gce_persistent_disk.pd_name == b.gce_persistent_disk.pd_name and not both_read
    if a.aws_elastic_block_store and b.aws_elastic_block_store:
        return a.aws_elastic_block_store.volume_id == b.aws_elastic_block_store.volume_id
    if a.iscsi and b.iscsi:
        return a.iscsi.iqn == b.iscsi.iqn and not (a.iscsi.read_only and b.iscsi.read_only)
    if a.rbd and b.rbd:
        same_image = bool(set(a.rbd.monitors) & set(b.rbd.monitors)) and (a.rbd.pool, a.rbd.image) == (
            b.rbd.pool,
            b.rbd.image,
        )
        return same_image and not (a.rbd.read_only and b.rbd.read_only)
    return False


# NodeVolumeLimits


def limits(pod: Pod, node: Node, world: World) -> Verdict:
    if any(_claim(world, pod, name) is None for name, _ in _uses(pod)):
        return U, ("a persistentvolumeclaim of the pod was not found",)
    new = dict(_attached(pod, world))
    there: dict[str, str] = {}
    for other in world.on(node):
        there |= dict(_attached(other, world))
    described = _named(world.storage.nodes, node.metadata.name)
    for driver in described.spec.drivers if described is not None else ():
        if driver.allocatable is None or driver.allocatable.count is None:
            continue
        more = [volume for volume, of in new.items() if of == driver.name and volume not in there]
        have = [volume for volume, of in there.items() if of == driver.name]
        if more and len(more) + len(have) > driver.allocatable.count:
            return S, ("node(s) exceed max volume count",)
    return None


def _attached(pod: Pod, world: World) -> Iterator[tuple[str, str]]:
    """(volume, driver) that a node has attached for the pod."""
    for name, _ in _uses(pod):
        claim = _claim(world, pod, name)
        if claim is None:
            continue
        volume = _named(world.storage.volumes, claim.spec.volume_name) if claim.spec.volume_name else None
        if volume is None:
            storage_class = _class(world.storage, claim)
            if storage_class is not None and storage_class.provisioner:
                yield f"to be made: {pod.metadata.namespace} {name}", storage_class.provisioner
        elif volume.spec.csi is not None and volume.spec.csi.volume_handle:
            yield f"{volume.spec.csi.driver} {volume.spec.csi.volume_handle}", volume.spec.csi.driver


# VolumeBinding


def binding_first(pod: Pod, world: World) -> Verdict:
    claims = []
    for name, is_generated in _uses(pod):
        claim = _claim(world, pod, name)
        if claim is None:
            if is_generated:
                return U, (f'waiting for ephemeral volume controller to create the persistentvolumeclaim "{name}"',)
            return U, (f'persistentvolumeclaim "{name}" not found',)
        if claim.status.phase == "Lost":
            lost = claim.spec.volume_name
            return U, (f'persistentvolumeclaim "{name}" bound to non-existent persistentvolume "{lost}"',)
        if claim.metadata.deletion_timestamp is not None:
            return U, (f'persistentvolumeclaim "{name}" is being deleted',)
        if is_generated:
            owners = [ref.uid for ref in claim.metadata.owner_references if ref.controller]
            if owners != [pod.metadata.uid]:
                whole = f"{pod.metadata.namespace}/{name}"
                return U, (f"PVC {whole} was not created for pod {pod.metadata.key} (pod is not owner)",)
        claims.append(claim)
    for claim in claims:
        storage_class = _class(world.storage, claim)
        late = storage_class is not None and storage_class.volume_binding_mode == "WaitForFirstConsumer"
        if not _bound(claim) and (not late or claim.spec.volume_name):
            return U, ("pod has unbound immediate PersistentVolumeClaims",)
    return None


def _bound(claim: PersistentVolumeClaim) -> bool:
    return bool(claim.spec.volume_name) and "pv.kubernetes.io/bind-completed" in claim.metadata.annotations


def binding(pod: Pod, node: Node, world: World) -> Verdict:
    claims = [claim for name, _ in _uses(pod) if (claim := _claim(world, pod, name)) is not None]
    reasons = [_of_bound([claim for claim in claims if _bound(claim)], node, world.storage)]
    reasons.append(placed(pod, node, world)[0])
    listed = [reason for reason in (CONFLICT, UNMATCHED, FULL, GONE) if reason in reasons]
    return (U, tuple(listed)) if listed else None


def _of_bound(claims: list[PersistentVolumeClaim], node: Node, storage: Storage) -> str:
    for claim in claims:
        volume = _named(storage.volumes, claim.spec.volume_name)
        if volume is None:
            return GONE
        if not _reaches(node, volume):
            return CONFLICT
    return ""


def _reaches(node: Node, volume: PersistentVolume) -> bool:
    affinity = volume.spec.node_affinity
    if affinity is None or affinity.required is None:
        return True
    fields = {"metadata.name": node.metadata.name}
    return any(term.matches(node.metadata.labels, fields) for term in affinity.required.node_selector_terms)


def placed(pod: Pod, node: Node, world: World) -> tuple[str, dict[str, str], list[str]]:
    """(why not; empty: possible, claim -> its volume, claims whose volumes are to be made here)."""
    storage = world.storage
    open_: list[PersistentVolumeClaim] = []
    to_make: list[PersistentVolumeClaim] = []
    for name, _ in _uses(pod):
        claim = _claim(world, pod, name)
        if claim is None or _bound(claim):
            continue
        notes = dict(claim.metadata.annotations)
        if claim.metadata.key in storage.being_made:
            notes[SELECTED] = storage.being_made[claim.metadata.key]
        if SELECTED in notes:
            if notes[SELECTED] != node.metadata.name:
                return UNMATCHED, {}, []
            to_make.append(claim)
        else:
            open_.append(claim)
    matched: dict[str, str] = {}
    for claim in sorted(open_, key=_size):
        volume = _volume_for(claim, node, storage, list(matched.values()))
        if volume is None:
            to_make.append(claim)
        else:
            matched[claim.metadata.key] = volume.metadata.name
    for claim in to_make:
        why_not = _why_not_made(claim, node, storage)
        if why_not:
            return why_not, {}, []
    return "", matched, [claim.metadata.key for claim in to_make]


def _volume_for(
    claim: PersistentVolumeClaim, node: Node, storage: Storage, taken: list[str]
) -> PersistentVolume | None:
    best: PersistentVolume | None = None
    mine, free = [], []
    for volume in storage.volumes:
        if volume.metadata.name in taken or volume.metadata.deletion_timestamp is not None:
            continue
        if volume.spec.capacity["storage"].value() < _size(claim):
            continue
        if (volume.spec.volume_mode or "Filesystem") != (claim.spec.volume_mode or "Filesystem"):
            continue
        if (volume.spec.volume_attributes_class_name or "") != (claim.spec.volume_attributes_class_name or ""):
            continue
        of = volume.metadata.annotations.get(CLASS_OF_OLD, volume.spec.storage_class_name)
        if of != _class_name(claim):
            continue
        ref, promised = volume.spec.claim_ref, storage.promised.get(volume.metadata.name)
        if ref is not None:
            same = (ref.namespace, ref.name) == (claim.metadata.namespace, claim.metadata.name)
            if same and ref.uid in ("", claim.metadata.uid):
                mine.append(volume)
        elif promised is not None:
            if promised == claim.metadata.key:
                mine.append(volume)
        else:
            free.append(volume)
    if mine:
        free = mine
    for volume in free:
        if not _reaches(node, volume):
            continue
        if volume not in mine:
            if volume.status.phase != "Available":
                continue
            if claim.spec.selector is not None and not claim.spec.selector.matches(volume.metadata.labels):
                continue
            if any(mode not in volume.spec.access_modes for mode in claim.spec.access_modes):
                continue
        if best is None or _order(volume) < _order(best):
            best = volume
    return best


def _order(volume: PersistentVolume) -> tuple[int, str]:
    return volume.spec.capacity["storage"].value(), volume.metadata.name


def _why_not_made(claim: PersistentVolumeClaim, node: Node, storage: Storage) -> str:
    storage_class = _class(storage, claim)
    if storage_class is None or storage_class.provisioner in ("", "kubernetes.io/no-provisioner"):
        return UNMATCHED
    allowed = not storage_class.allowed_topologies
    for term in storage_class.allowed_topologies:
        pairs = [(expression.key, expression.values) for expression in term.match_label_expressions]
        if pairs and all(node.metadata.labels.get(key) in values for key, values in pairs):
            allowed = True
    if not allowed:
        return UNMATCHED
    driver = _named(storage.drivers, storage_class.provisioner)
    if driver is None or not driver.spec.storage_capacity or "storage" not in claim.spec.resources.requests:
        return ""
    for capacity in storage.capacities:
        most = capacity.maximum_volume_size if capacity.maximum_volume_size is not None else capacity.capacity
        if capacity.storage_class_name != storage_class.metadata.name or capacity.node_topology is None or most is None:
            continue
        if most.value() >= _size(claim) and capacity.node_topology.matches(node.metadata.labels):
            return ""
    return FULL


# VolumeZone

OLD_ZONE, OLD_REGION = "failure-domain.beta.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/region"
NEW_NAME = {OLD_ZONE: "topology.kubernetes.io/zone", OLD_REGION: "topology.kubernetes.io/region"}
PLACES = (OLD_ZONE, OLD_REGION, "topology.kubernetes.io/zone", "topology.kubernetes.io/region")


def zone_first(pod: Pod, world: World) -> Verdict:
    for name, is_generated in _uses(pod):
        if is_generated:
            continue
        claim = _claim(world, pod, name)
        if claim is None:
            return U, (f'persistentvolumeclaim "{name}" not found',)
        if claim.spec.volume_name:
            if _named(world.storage.volumes, claim.spec.volume_name) is None:
                return U, (f'persistentvolume "{claim.spec.volume_name}" not found',)
            continue
        kind = _class_name(claim)
        if not kind:
            return U, ("PersistentVolumeClaim had no pv name and storageClass name",)
        storage_class = _class(world.storage, claim)
        if storage_class is None:
            return U, (f'storageclass.storage.k8s.io "{kind}" not found',)
        if storage_class.volume_binding_mode is None:
            return U, (f'VolumeBindingMode not set for StorageClass "{kind}"',)
        if storage_class.volume_binding_mode != "WaitForFirstConsumer":
            return U, ("PersistentVolume had no name",)
    return None


def zone(pod: Pod, node: Node, world: World) -> Verdict:
    labels = node.metadata.labels
    if not any(place in labels for place in PLACES):
        return None
    for name, is_generated in _uses(pod):
        claim = None if is_generated else _claim(world, pod, name)
        volume = None if claim is None else _named(world.storage.volumes, claim.spec.volume_name)
        if volume is None:
            continue
        for place in PLACES:
            if place not in volume.metadata.labels:
                continue
            zones = [part.strip() for part in volume.metadata.labels[place].split("__")]
            if "" in zones:
                continue
            here = labels.get(place, labels.get(NEW_NAME.get(place, place)))
            if here not in zones:
                return U, ("node(s) had no available volume zone",)
    return None
