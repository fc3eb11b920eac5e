"""Decides whether a node can satisfy a pod's claims, and with which volumes (spec 05 §4). Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from control.scheduler.plugins.nodeselection import RequiredNodes
from control.scheduler.plugins.volumes.claims import (
    NO_PROVISIONER,
    SELECTED_NODE,
    Storage,
    could_hold,
    requested,
    smallest,
    suits,
)
from koordlet.api.core import Node, PersistentVolume, PersistentVolumeClaim, StorageClass
from koordlet.api.meta import SelectorError

NODE_CONFLICT = "node(s) didn't match PersistentVolume's node affinity"
BIND_CONFLICT = "node(s) didn't find available persistent volumes to bind"
NO_SPACE = "node(s) did not have enough free storage"
GONE = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"


@dataclass(frozen=True)
class PodClaims:
    """A pod's claims, classified once per cycle."""

    bound: tuple[PersistentVolumeClaim, ...]
    delayed: tuple[PersistentVolumeClaim, ...]
    """Claims that are bound for the chosen node."""
    candidates: Mapping[str, tuple[PersistentVolume, ...]]
    """Delayed claim (`namespace/name`) -> suitable volumes on any node."""


@dataclass(frozen=True)
class VolumePlan:
    """The volumes for the delayed claims on one node. Claims are `namespace/name`."""

    matched: tuple[tuple[str, str], ...] = ()
    """(claim, volume)"""
    provisioned: tuple[str, ...] = ()


def candidate_volumes(
    storage: Storage, delayed: Sequence[PersistentVolumeClaim]
) -> dict[str, tuple[PersistentVolume, ...]]:
    """The volumes for each delayed claim: those reserved for it and large enough, else unclaimed and suitable ones.

    A decision in progress for another pod with the same claim also reserves a volume."""
    volumes = storage.volumes() if delayed else []
    assumed = storage.assumed.volumes
    candidates: dict[str, tuple[PersistentVolume, ...]] = {}
    for claim in delayed:
        key = claim.metadata.key
        reserved = (v for v in volumes if assumed.get(v.metadata.name) == key or _is_for(v, claim))
        own = tuple(v for v in reserved if could_hold(v, claim))
        free = (v for v in volumes if v.spec.claim_ref is None and v.metadata.name not in assumed)
        candidates[key] = own or tuple(v for v in free if _suits(v, claim))
    return candidates


def reachable(volume: PersistentVolume, node: Node) -> bool:
    """Whether the volume's node affinity allows the node."""
    affinity = volume.spec.node_affinity
    return affinity is None or affinity.required is None or RequiredNodes.selected_by(affinity.required).matches(node)


def deciding_labels(storage: Storage, claims: PodClaims) -> frozenset[str] | None:
    """The node labels that determine the result of `plan`. None: it also depends on other node data."""
    keys: set[str] = set()
    for claim in claims.delayed:
        key = claim.metadata.key
        if _selected_node(storage, claim) is not None:
            return None
        for volume in claims.candidates[key]:
            affinity = volume.spec.node_affinity
            terms = affinity.required.node_selector_terms if affinity is not None and affinity.required else ()
            if any(term.match_fields for term in terms):
                return None
            keys.update(expression.key for term in terms for expression in term.match_expressions)
        storage_class = storage.storage_class(claim)
        if storage_class is None:
            continue
        keys.update(
            expression.key for term in storage_class.allowed_topologies for expression in term.match_label_expressions
        )
        driver = storage.driver(storage_class.provisioner)
        if driver is not None and driver.spec.storage_capacity:
            for capacity in storage.capacities():
                topology = capacity.node_topology
                if topology is not None:
                    keys.update(topology.match_labels)
                    keys.update(expression.key for expression in topology.match_expressions)
    return frozenset(keys)


def plan(storage: Storage, claims: PodClaims, node: Node) -> VolumePlan | str:
    """The volumes for the delayed claims on a node, or the reason why it cannot satisfy them."""
    taken: set[str] = set()
    matched: list[tuple[str, str]] = []
    provisioned: list[PersistentVolumeClaim] = []
    unassigned: list[PersistentVolumeClaim] = []
    for claim in claims.delayed:
        chosen_for = _selected_node(storage, claim)
        if chosen_for is not None and chosen_for != node.metadata.name:
            return BIND_CONFLICT
        (unassigned if chosen_for is None else provisioned).append(claim)
    # Small claims first: each takes the smallest volume, so that large volumes are left for large claims.
    for claim in sorted(unassigned, key=requested):
        key = claim.metadata.key
        options = [v for v in claims.candidates[key] if v.metadata.name not in taken and reachable(v, node)]
        best = smallest(options)
        if best is not None:
            taken.add(best.metadata.name)
            matched.append((key, best.metadata.name))
        else:
            provisioned.append(claim)
    for claim in provisioned:
        rejection = _refused(storage, claim, node)
        if rejection:
            return rejection
    return VolumePlan(tuple(matched), tuple(claim.metadata.key for claim in provisioned))


def _selected_node(storage: Storage, claim: PersistentVolumeClaim) -> str | None:
    """The node for which the claim's volume is being provisioned."""
    assumed = storage.assumed.provisioned.get(claim.metadata.key)
    return claim.metadata.annotations.get(SELECTED_NODE) if assumed is None else assumed


def _refused(storage: Storage, claim: PersistentVolumeClaim, node: Node) -> str:
    """Why no volume can be provisioned for the claim on the node; empty if it can."""
    storage_class = storage.storage_class(claim)
    if storage_class is None or storage_class.provisioner in ("", NO_PROVISIONER):
        return BIND_CONFLICT
    if not _allowed(storage_class, node):
        return BIND_CONFLICT
    driver = storage.driver(storage_class.provisioner)
    if driver is not None and driver.spec.storage_capacity and not _has_room(storage, storage_class, claim, node):
        return NO_SPACE
    return ""


def _allowed(storage_class: StorageClass, node: Node) -> bool:
    terms = storage_class.allowed_topologies
    labels = node.metadata.labels
    return not terms or any(
        bool(term.match_label_expressions)
        and all(labels.get(expression.key) in expression.values for expression in term.match_label_expressions)
        for term in terms
    )


def _has_room(storage: Storage, storage_class: StorageClass, claim: PersistentVolumeClaim, node: Node) -> bool:
    if "storage" not in claim.spec.resources.requests:
        return True
    size = requested(claim)
    for capacity in storage.capacities():
        if capacity.storage_class_name != storage_class.metadata.name or capacity.node_topology is None:
            continue
        most = capacity.capacity if capacity.maximum_volume_size is None else capacity.maximum_volume_size
        if most is not None and most.value() >= size and capacity.node_topology.matches(node.metadata.labels):
            return True
    return False


def _is_for(volume: PersistentVolume, claim: PersistentVolumeClaim) -> bool:
    ref = volume.spec.claim_ref
    if ref is None or (ref.namespace, ref.name) != (claim.metadata.namespace, claim.metadata.name):
        return False
    return not ref.uid or ref.uid == claim.metadata.uid


def _suits(volume: PersistentVolume, claim: PersistentVolumeClaim) -> bool:
    try:
        return suits(volume, claim)
    except SelectorError:  # the API server rejects such selectors; a claim with one matches no volume
        return False
