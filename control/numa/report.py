"""What koordlet reports about the NUMA topology of its node, read from a NodeResourceTopology (spec 06 §2.2).

A part that is malformed counts as absent and leaves an error that names the field; the other parts are used.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, TypeVar

from control.numa.layout import CoreLayout, LayoutError, layout_of
from control.numa.masks import mask_of
from koordlet.api import names
from koordlet.api.annotations.node import RESERVATION, amplification_ratios, system_qos_resource
from koordlet.api.annotations.topology import CPU_TOPOLOGY, KUBELET_CPU_MANAGER, POD_CPU_ALLOCS
from koordlet.api.cpus import CPUListError, parse_cpus
from koordlet.api.crs.topology import NodeResourceTopology
from koordlet.api.encoding.quantity import Quantity
from koordlet.api.encoding.wire import WireError

T = TypeVar("T")

BEST_EFFORT: Final = "BestEffort"
RESTRICTED: Final = "Restricted"
SINGLE_NUMA_NODE: Final = "SingleNUMANode"
POLICIES: Final = (BEST_EFFORT, RESTRICTED, SINGLE_NUMA_NODE)
_REPORTED: Final = {
    "BestEffort": BEST_EFFORT,
    "Restricted": RESTRICTED,
    "SingleNUMANodePodLevel": SINGLE_NUMA_NODE,
}
MAX_ZONES: Final = 8
"""More NUMA zones are refused, as by the kubelet's topology manager: the work doubles with each."""
MAX_ZONE_ID: Final = 1 << 10
MAX_RESOURCES: Final = 32
"""Resources of a zone."""
MAX_LAYOUTS: Final = 256
"""Layouts that are remembered by their text."""
MAX_AMOUNT: Final = 1 << 53
"""Amounts are cut to this, so that sums fit into 64 bits."""
_ZONE_NAME: Final = re.compile(r"node-(0|[1-9][0-9]{0,5})", re.ASCII)


@dataclass(frozen=True)
class NumaZone:
    """A NUMA node. `total`: allocatable amounts without reserved CPUs, cpu in milli-cores."""

    id: int
    total: Mapping[str, int]


@dataclass(frozen=True)
class NumaReport:
    """The topology of a node; empty for a node without NodeResourceTopology."""

    layout: CoreLayout = field(default_factory=CoreLayout)
    zones: tuple[NumaZone, ...] = ()
    """By id."""
    reserved: int = 0
    """Mask of the CPUs that no pod gets from the scheduler."""
    policy: str = ""
    """One of POLICIES; "" for none."""
    kubelet_policy: str = ""
    kubelet_options: Mapping[str, str] = field(default_factory=dict)
    amplified: bool = False
    """The amounts of the zones are amplified already."""
    errors: tuple[str, ...] = ()


def read_report(topology: NodeResourceTopology) -> NumaReport:
    """See the module text. Never raises."""
    return _Reader(topology).report()


class _Reader:
    def __init__(self, topology: NodeResourceTopology) -> None:
        self._object = topology
        self._annotations = topology.metadata.annotations
        self._errors: list[str] = []

    def report(self) -> NumaReport:
        manager = self._part(lambda: KUBELET_CPU_MANAGER.get(self._annotations))
        layout = self._part(lambda: _layout(self._annotations.get(names.ANNOTATION_CPU_TOPOLOGY))) or CoreLayout()
        reserved = self._reserved(manager.reserved_cpus if manager is not None else "")
        reserved &= layout.cpus
        return NumaReport(
            layout,
            self._part(lambda: self._zones(layout, reserved)) or (),
            reserved,
            next((_REPORTED[name] for name in self._object.topology_policies if name in _REPORTED), ""),
            manager.policy if manager is not None else "",
            manager.options if manager is not None else {},
            amplified=bool(self._part(lambda: amplification_ratios(self._annotations))),
            errors=tuple(self._errors),
        )

    def _part(self, read: Callable[[], T]) -> T | None:
        try:
            return read()
        except (WireError, ValueError) as error:
            self._errors.append(str(error))
            return None

    def _reserved(self, kubelet_reserved: str) -> int:
        reserved = self._cpus(names.ANNOTATION_CPU_MANAGER_POLICY, kubelet_reserved)
        for pod in self._part(lambda: POD_CPU_ALLOCS.get(self._annotations)) or ():
            if pod.managed_by_kubelet and pod.uid:
                reserved |= self._cpus(names.ANNOTATION_POD_CPU_ALLOCS, pod.cpuset)
        node = self._part(lambda: RESERVATION.get(self._annotations))
        if node is not None:
            reserved |= self._cpus(names.ANNOTATION_NODE_RESERVATION, node.reserved_cpus)
        system = self._part(lambda: system_qos_resource(self._annotations))
        if system is not None and system.exclusive:
            reserved |= self._cpus(names.ANNOTATION_SYSTEM_QOS_RESOURCE, system.cpuset)
        return reserved

    def _cpus(self, key: str, text: str) -> int:
        try:
            return mask_of(parse_cpus(text))
        except CPUListError as error:
            self._errors.append(f"annotation {key}: {error}")
            return 0

    def _zones(self, layout: CoreLayout, reserved: int) -> tuple[NumaZone, ...]:
        zones: dict[int, NumaZone] = {}
        for zone in self._object.zones:
            match = _ZONE_NAME.fullmatch(zone.name) if zone.type == "Node" else None
            if match is None:
                continue
            number = int(match[1])
            if number >= MAX_ZONE_ID or number in zones or len(zone.resources) > MAX_RESOURCES:
                raise ValueError(
                    f"zones: {zone.name} is repeated, has more than {MAX_RESOURCES} resources, or its number is not "
                    f"below {MAX_ZONE_ID}"
                )
            if len(zones) == MAX_ZONES:
                raise ValueError(f"zones: there are more than {MAX_ZONES} NUMA zones")
            total = {resource.name: _amount(resource.name, resource.allocatable) for resource in zone.resources}
            if total.get("cpu"):
                total["cpu"] = max(0, total["cpu"] - 1000 * (layout.nodes.get(number, 0) & reserved).bit_count())
            zones[number] = NumaZone(number, total)
        return tuple(zone for _, zone in sorted(zones.items()))


@lru_cache(maxsize=MAX_LAYOUTS)
def _layout(text: str | None) -> CoreLayout:
    """Nodes of one model share their layout. Raises WireError."""
    topology = CPU_TOPOLOGY.get({} if text is None else {names.ANNOTATION_CPU_TOPOLOGY: text})
    try:
        return layout_of((cpu.id, cpu.core, cpu.socket, cpu.node) for cpu in topology.detail)
    except LayoutError as error:
        raise WireError(str(error), where=f"annotation {names.ANNOTATION_CPU_TOPOLOGY}") from error


def _amount(resource: str, quantity: Quantity) -> int:
    amount = quantity.milli_value() if resource == "cpu" else quantity.value()
    return min(max(amount, 0), MAX_AMOUNT)
