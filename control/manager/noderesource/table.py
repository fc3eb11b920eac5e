"""The calculation's data about the cluster: facts per node, and sums over pods that are cached until something changes.

The informers' handlers write it, `calculate` reads it. No I/O, no clock. Memory: one `PodFacts` per pod, one
`NodeReport` and one `Row` per node."""

from __future__ import annotations

from typing import Final

from control.manager.noderesource.fold import Row, charges, node_row, zone_rows
from control.manager.noderesource.pods import PodFacts, pod_facts
from control.manager.noderesource.report import NodeReport, read_report
from control.manager.noderesource.reserved import NodeFacts, node_facts
from control.manager.noderesource.units import Amounts
from control.manager.noderesource.zones import zone_capacities
from koordlet.api.core import Node, Pod
from koordlet.api.crs.device import Device
from koordlet.api.crs.nodemetric import NodeMetric
from koordlet.api.crs.topology import NodeResourceTopology

NO_PODS: Final[dict[str, PodFacts]] = {}


class OvercommitTable:
    """Facts by node name, and `dirty`: the names of the nodes that must be recalculated."""

    def __init__(self, *, strict: bool = False) -> None:
        self.nodes: dict[str, Node] = {}
        self.node_facts: dict[str, NodeFacts] = {}
        self.pods: dict[str, dict[str, PodFacts]] = {}
        self.reports: dict[str, NodeReport] = {}
        self.topologies: dict[str, NodeResourceTopology] = {}
        self.devices: dict[str, Device] = {}
        self.zones: dict[str, list[tuple[int, Amounts]]] = {}
        self.dirty: set[str] = set()
        self._rows: dict[str, Row] = {}
        self._zone_rows: dict[str, list[Row]] = {}
        self._strict = strict

    def put_node(self, node: Node) -> None:
        name = node.metadata.name
        facts = node_facts(node)
        if self.node_facts.get(name) != facts:
            self._forget_rows(name)
        self.nodes[name] = node
        self.node_facts[name] = facts
        self.dirty.add(name)

    def drop_node(self, node: Node) -> None:
        name = node.metadata.name
        self.nodes.pop(name, None)
        self.node_facts.pop(name, None)
        self._forget_rows(name)
        self.dirty.discard(name)

    def put_pod(self, pod: Pod, old: Pod | None = None) -> None:
        if old is not None and old.spec.node_name != pod.spec.node_name:
            self.drop_pod(old)
        name, facts = pod.spec.node_name, pod_facts(pod)
        if not name:
            return
        if facts is None:
            self.drop_pod(pod)
            return
        pods = self.pods.setdefault(name, {})
        if pods.get(facts.key) != facts:
            pods[facts.key] = facts
            self._changed(name)

    def drop_pod(self, pod: Pod) -> None:
        name = pod.spec.node_name
        pods = self.pods.get(name)
        if pods is None or pods.pop(pod.metadata.key, None) is None:
            return
        if not pods:
            del self.pods[name]
        self._changed(name)

    def put_metric(self, metric: NodeMetric) -> None:
        name, report = metric.metadata.name, read_report(metric)
        if report is None:
            self.reports.pop(name, None)
        else:
            self.reports[name] = report
        self._changed(name)

    def drop_metric(self, metric: NodeMetric) -> None:
        self.reports.pop(metric.metadata.name, None)
        self._changed(metric.metadata.name)

    def put_topology(self, topology: NodeResourceTopology) -> None:
        name = topology.metadata.name
        self.topologies[name] = topology
        zones = zone_capacities(topology)
        if zones != self.zones.get(name, []):
            self.zones[name] = zones
            self._zone_rows.pop(name, None)
        self.dirty.add(name)

    def drop_topology(self, topology: NodeResourceTopology) -> None:
        name = topology.metadata.name
        self.topologies.pop(name, None)
        self.zones.pop(name, None)
        self._zone_rows.pop(name, None)
        self.dirty.add(name)

    def put_device(self, device: Device) -> None:
        self.devices[device.metadata.name] = device
        self.dirty.add(device.metadata.name)

    def drop_device(self, device: Device) -> None:
        self.devices.pop(device.metadata.name, None)
        self.dirty.add(device.metadata.name)

    def _changed(self, name: str) -> None:
        self._forget_rows(name)
        self.dirty.add(name)

    def _forget_rows(self, name: str) -> None:
        self._rows.pop(name, None)
        self._zone_rows.pop(name, None)

    def row(self, name: str) -> Row:
        """The sums of a node that has a report; cached until something changes."""
        row = self._rows.get(name)
        if row is None:
            self._fold(name)
            row = self._rows[name]
        return row

    def zone_rows(self, name: str) -> list[Row]:
        """The sums of the node's NUMA zones; empty without a topology."""
        rows = self._zone_rows.get(name)
        if rows is None:
            self._fold(name)
            rows = self._zone_rows[name]
        return rows

    def _fold(self, name: str) -> None:
        """Compute the row and the zone rows with one loop over the pods."""
        own, report, zones = self.node_facts[name], self.reports[name], self.zones.get(name, [])
        pods = self.pods.get(name, NO_PODS).values()
        taken = list(charges(pods, report))
        self._zone_rows[name] = zone_rows(own, zones, report, taken) if zones else []
        strict = charges(pods, report, strict=True) if self._strict else taken
        self._rows[name] = node_row(own, pods, report, strict)

    def is_overcommitted(self, key: str, name: str) -> bool:
        """Whether a pod (`namespace/name`) of the node runs on overcommitted resources: class batch, free or mid."""
        facts = self.pods.get(name, NO_PODS).get(key)
        return facts is not None and not facts.prod
