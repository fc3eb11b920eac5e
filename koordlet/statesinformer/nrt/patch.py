"""The merge patch that makes the stored NodeResourceTopology equal to a topology status (spec 02 §3.8). Pure.

koordlet owns eight annotations, two labels, `topologyPolicies`, and the resources `OWNED_RESOURCES` of the zones. What
other writers add to these zones (devices, costs) is kept and never causes a write; zones that this machine does not
have are removed. A merge patch replaces the list of zones as a whole, so the patch names the resourceVersion that it
was made for.
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
    """The object to create, owned by the Node."""
    labels = {key: value for key, value in _labels(status).items() if value is not None}
    return NodeResourceTopology(
        metadata=owned_by(node, labels=labels, annotations=dict(status.annotations)),
        topology_policies=[status.policy],
        zones=list(status.zones),
    )


def patch_for(stored: NodeResourceTopology, status: TopologyStatus) -> dict[str, Any]:
    """The merge patch that updates `stored`; empty if it is up to date."""
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


def merged_zones(stored: Iterable[Zone], computed: Iterable[Zone]) -> list[Zone]:
    """The computed zones, each with the other writers' part of the stored zone."""
    stored_by_name = {zone.name: zone for zone in stored}
    merged = []
    for zone in computed:
        old = stored_by_name.get(zone.name, zone)
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
    """None: the label must be absent."""
    return {
        LABEL_MANAGED_BY: MANAGED_BY_KOORDINATOR,
        LABEL_ENABLE_NUMA_RESERVATION: status.numa_reservation or None,
    }


def _zones_differ(stored: list[Zone], computed: tuple[Zone, ...]) -> bool:
    if [(zone.name, zone.type) for zone in stored] != [(zone.name, zone.type) for zone in computed]:
        return True
    return any(_owned(old) != _owned(new) for old, new in zip(stored, computed, strict=True))


def _owned(zone: Zone) -> Mapping[str, ResourceInfo]:
    return {resource.name: resource for resource in zone.resources if resource.name in OWNED_RESOURCES}


def _same_json(stored: str | None, computed: str) -> bool:
    """Whether two JSON texts are equal, regardless of the order of keys."""
    if stored is None or stored == computed:
        return stored == computed
    try:
        return bool(decode(stored, Any) == decode(computed, Any))
    except WireError:
        return False
