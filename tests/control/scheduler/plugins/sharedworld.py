"""A scheduler with Reservation and NodeNUMAResource over nodes with NUMA zones, bindings and restarts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from control.numa.masks import mask_of
from control.scheduler.cycle.placement import Placement
from control.scheduler.framework.plugin import Plugin
from control.scheduler.plugins.nodenumaresource import NodeNUMAResource
from koordlet.api import names
from koordlet.api.core import Node, Pod
from koordlet.api.cpus import parse_cpus
from koordlet.api.crs.reservation import Reservation
from koordlet.api.crs.topology import NodeResourceTopology
from tests.control.reservation.reservationbuild import reservation
from tests.control.scheduler.build import node
from tests.control.scheduler.plugins import reservationworld
from tests.control.scheduler.plugins.numaworld import topology
from tests.control.scheduler.plugins.reservationworld import ReservationWorld

NUMA = "NodeNUMAResource"
STATUS = names.ANNOTATION_RESOURCE_STATUS
POINTS: Mapping[str, Sequence[str]] = {
    point: (NUMA, *plugins) if point in ("preFilter", "filter", "score", "reserve", "preBind") else plugins
    for point, plugins in reservationworld.POINTS.items()
}
PLUGINS: Mapping[str, type[Plugin]] = {**reservationworld.PLUGINS, NUMA: NodeNUMAResource}


class SharedWorld(ReservationWorld):
    """One node `n0` with this CPU layout; `labels` are the node's."""

    def __init__(self, shape: tuple[int, int, int, int], labels: Mapping[str, str] | None = None) -> None:
        self._shape = shape
        self._labels = labels
        super().__init__(shape[0] * shape[1] * shape[2] * shape[3], points=POINTS, plugins=PLUGINS)

    def restart(self, order: Sequence[type[Any]] = (Node, Reservation, Pod)) -> None:
        cpus = self._shape[0] * self._shape[1] * self._shape[2] * self._shape[3]
        self.stored[Node]["n0"] = node("n0", cpu=str(cpus), memory="64Gi", labels=self._labels)
        super().restart(order)
        self.objects.informer(NodeResourceTopology).put(topology("n0", self._shape))
        numa = self.cycle.framework.plugins[NUMA]
        assert isinstance(numa, NodeNUMAResource)
        self.numa = numa

    def prepared(self, placement: Placement) -> Pod:
        changed = super().prepared(placement)
        assert asyncio.run(self.numa.pre_bind(placement.state, placement.pod, placement.row, changed)).ok
        return changed

    def patched(self, live: Reservation, prepared: Pod) -> Reservation:
        annotations = {key: text for key, text in live.metadata.annotations.items() if key != STATUS}
        if STATUS in prepared.metadata.annotations:
            annotations[STATUS] = prepared.metadata.annotations[STATUS]
        return msgspec.structs.replace(live, metadata=msgspec.structs.replace(live.metadata, annotations=annotations))

    def cpus(self, name: str) -> int:
        """Mask of the CPUs of a bound pod or an available reservation."""
        held = self.stored[Reservation].get(name) or self.pod(name)
        text = held.metadata.annotations.get(STATUS, "{}")
        return mask_of(parse_cpus(json.loads(text).get("cpuset", "")))

    def zones(self, name: str) -> list[int]:
        held = self.stored[Reservation].get(name) or self.pod(name)
        status = json.loads(held.metadata.annotations.get(STATUS, "{}"))
        return [zone["node"] for zone in status.get("numaNodeResources", [])]

    def numa_page(self) -> dict[str, Any]:
        return self.numa.node_page("n0")


def bound_cpus(name: str, cpu: int, numa: str = "", **more: Any) -> Reservation:
    """A Reservation whose template is of class LSR."""
    annotations = {names.ANNOTATION_NUMA_TOPOLOGY_SPEC: json.dumps({"numaTopologyPolicy": numa})} if numa else {}
    template = {
        "metadata": {"labels": {names.LABEL_QOS_CLASS: "LSR"}, "annotations": annotations},
        "spec": {
            "schedulerName": "koord-scheduler",
            "priority": 9000,
            "containers": [{"name": "c", "resources": {"requests": {"cpu": str(cpu)}}}],
        },
    }
    return reservation(name, template=template, **more)
