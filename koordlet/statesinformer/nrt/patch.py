"""From a topology status to what is written: does the stored object differ, and by which patch (spec 02 §3.8). Pure.

Ours are eight annotations, two labels, `topologyPolicies`, and within the zones the resources of `OWNED_RESOURCES`.
What others put into zones of ours (devices, costs) stays and counts for no difference; zones that this machine does
not have go. Zones are a list and therefore written whole, so the patch names the resourceVersion that it was made for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from koordlet.api.core import Node
from koordlet.api.crs.topology import NodeResourceTopology, ResourceInfo, Zone
from koordlet.api.encoding.wire import WireError, decode, to_builtins
from koordlet.api.names import LABEL_ENABLE_NUMA_RESERVATION, LABEL_MANAGED_BY, MANAGED_BY_KOORDINATOR
from koordlet.statesinformer.nrt.status import OWNED_RESOURCES, TopologyStatus
from koordlet.statesinformer.ownobject import owned_by


def new_object(node: Node, status: TopologyStatus) -> NodeResourceTopology:
    """The object to create: named like the node and gone with it."""
    labels = {key: value for key, value in _labels(status).items() if value is not None}
    return NodeResourceTopology(
        metadata=owned_by(node, labels=labels, annotations=dict(status.annotations)),
        topology_policies=[status.policy],
        zones=list(status.zones),
    )


def patch_for(stored: NodeResourceTopology, status: TopologyStatus) -> dict[str, Any]:
    """The merge patch that brings `stored` up to date; empty when it is."""
    meta: dict[str, Any] = {}
    annotations = {
        key: text
        for key, text in status.annotations.items()
        if not _same_json(stored.metadata.annotations.get(key), text)
    }
    if annotations:
        meta["annotations"] = annotations
    labels = {key: value for key, value in _labels(status).items() if stored.metadata.labels.get(key) != value}
    if labels:
        meta["labels"] = labels
    patch: dict[str, Any] = {}
    if stored.topology_policies != [status.policy]:
        patch["topologyPolicies"] = [status.policy]
    if _zones_differ(stored.zones, status.zones):
        patch["zones"] = to_builtins(merged_zones(stored.zones, status.zones))
    if meta or patch:
        patch["metadata"] = {**meta, "resourceVersion": stored.metadata.resource_version}
    return patch


def merged_zones(stored: Iterable[Zone], ours: Iterable[Zone]) -> list[Zone]:
    """Our zones, each with what others keep in the stored one."""
    known = {zone.name: zone for zone in stored}
    merged = []
    for zone in ours:
        old = known.get(zone.name, zone)
        foreign = [resource for resource in old.resources if resource.name not in OWNED_RESOURCES]
        merged.append(
            Zone(
                name=zone.name,
                type=zone.type,
                parent=old.parent,
                costs=old.costs,
                attributes=old.attributes,
                resources=sorted([*zone.resources, *foreign], key=lambda resource: resource.name),
            )
        )
    return merged


def _labels(status: TopologyStatus) -> dict[str, str | None]:
    """None: must not be there."""
    return {
        LABEL_MANAGED_BY: MANAGED_BY_KOORDINATOR,
        LABEL_ENABLE_NUMA_RESERVATION: status.numa_reservation or None,
    }


def _zones_differ(stored: list[Zone], ours: tuple[Zone, ...]) -> bool:
    if [(zone.name, zone.type) for zone in stored] != [(zone.name, zone.type) for zone in ours]:
        return True
    return any(_owned(old) != _owned(new) for old, new in zip(stored, ours, strict=True))


def _owned(zone: Zone) -> Mapping[str, ResourceInfo]:
    return {resource.name: resource for resource in zone.resources if resource.name in OWNED_RESOURCES}


def _same_json(stored: str | None, ours: str) -> bool:
    """Whether two texts say the same; the order of keys does not matter."""
    if stored is None or stored == ours:
        return stored == ours
    try:
        return bool(decode(stored, Any) == decode(ours, Any))
    except WireError:
        return False
