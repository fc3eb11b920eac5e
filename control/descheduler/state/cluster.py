"""The cluster: nodes with their pods, requested amounts and loads. Informers maintain it; plugins only read it.

    state.nodes["n1"].pods           the records of its pods, by uid
    state.nodes["n1"].requested      the sum of the requests of its non-terminal pods
    state.nodes["n1"].load           its NodeMetric as amounts, or None
    state.pods["default/web-0"]      one pod
    state.ready_nodes(selector)      the nodes of a pass (spec 07 §3.4)

A pass awaits API calls, so the state may change during a pass. Node records are updated in place; pod records are
replaced. `state.current(record)` checks that a pod is still the one that a plugin decided on.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from control.component.amounts import amounts
from control.descheduler.state.loads import ReportedLoad
from control.descheduler.state.pods import PlacementRules, PodRecord
from koordlet.api.annotations.node import RAW_ALLOCATABLE
from koordlet.api.core import Node, Pod
from koordlet.api.encoding.wire import WireError
from koordlet.api.meta import LabelSelector

PODS = "pods"


class NodeRecord:
    """One node; also a name that only pods or a NodeMetric mention yet (`node` is None then)."""

    __slots__ = ("allocatable", "load", "name", "node", "pods", "raw_allocatable", "requested")

    def __init__(self, name: str) -> None:
        self.name = name
        self.node: Node | None = None
        self.pods: dict[str, PodRecord] = {}
        """By uid, terminal ones included."""
        self.requested: dict[str, int] = {}
        """Sum of the requests of its non-terminal pods, by resource."""
        self.allocatable: Mapping[str, int] = {}
        self.raw_allocatable: Mapping[str, int] = {}
        """Allocatable before amplification (annotation `node.koordinator.sh/raw-allocatable`), else allocatable."""
        self.load: ReportedLoad | None = None

    @property
    def labels(self) -> Mapping[str, str]:
        return self.node.metadata.labels if self.node is not None else {}

    @property
    def unschedulable(self) -> bool:
        return self.node is not None and self.node.spec.unschedulable

    @property
    def ready(self) -> bool:
        """Condition Ready is True; a node without this condition is ready (spec 07 §3.4)."""
        if self.node is None:
            return False
        condition = self.node.status.condition("Ready")
        return condition is None or condition.status == "True"

    def active_pods(self) -> list[PodRecord]:
        """Its pods that are not Succeeded or Failed, in order of arrival."""
        return [pod for pod in self.pods.values() if not pod.terminated]

    def free(self, resource: str) -> int:
        """Allocatable minus requested; a resource that the node does not list has 0 allocatable."""
        return self.allocatable.get(resource, 0) - self.requested.get(resource, 0)

    def __repr__(self) -> str:
        return f"NodeRecord({self.name})"


class ClusterState:
    """See the module text."""

    def __init__(self) -> None:
        self.nodes: dict[str, NodeRecord] = {}
        self.pods: dict[str, PodRecord] = {}
        """By `namespace/name`."""
        self.placements = PlacementRules()
        self._by_uid: dict[str, PodRecord] = {}
        self._by_owner: dict[str, dict[str, PodRecord]] = {}
        """uid of an owner -> uid of the pod -> pod."""

    # Reading

    def ready_nodes(self, selector: LabelSelector | None = None) -> list[NodeRecord]:
        """Ready nodes that match the selector, by name; None matches all. Cordoned nodes are included."""
        return sorted(
            (
                node
                for node in self.nodes.values()
                if node.ready and (selector is None or selector.matches(node.labels))
            ),
            key=lambda node: node.name,
        )

    def pod_by_uid(self, uid: str) -> PodRecord | None:
        return self._by_uid.get(uid)

    def current(self, pod: PodRecord) -> PodRecord | None:
        """The newest record of the same pod; None if it is gone or its name belongs to another pod now."""
        return self._by_uid.get(pod.uid)

    def owned_by(self, uid: str) -> Collection[PodRecord]:
        """The pods with an owner reference to `uid`."""
        return self._by_owner.get(uid, {}).values()

    # Events; amounts are updated by differences, so that an event costs the same for any number of pods

    def set_node(self, node: Node) -> None:
        record = self._record(node.metadata.name)
        record.node = node
        record.allocatable = amounts(node.status.allocatable)
        try:
            raw = RAW_ALLOCATABLE.get(node.metadata.annotations)
        except WireError:
            raw = None  # spec 07 §6.3: an invalid annotation counts as missing
        record.raw_allocatable = {**record.allocatable, **amounts(raw)} if raw else record.allocatable

    def remove_node(self, name: str) -> None:
        record = self.nodes.get(name)
        if record is not None:
            record.node = None
            record.allocatable = record.raw_allocatable = {}
            self._forget(record)

    def set_load(self, load: ReportedLoad) -> None:
        self._record(load.metadata.name).load = load

    def remove_load(self, name: str) -> None:
        record = self.nodes.get(name)
        if record is not None:
            record.load = None
            self._forget(record)

    def set_pod(self, pod: Pod) -> None:
        """Add a pod, or apply its new version."""
        record = self.placements.record(pod)
        old = self._by_uid.get(record.uid)
        if old is not None:
            self._discount(old)
        self._by_uid[record.uid] = record
        self.pods[record.key] = record
        for owner in record.pod.metadata.owner_references:
            self._by_owner.setdefault(owner.uid, {})[record.uid] = record
        if record.node:
            node = self._record(record.node)
            node.pods[record.uid] = record
            if not record.terminated:
                _add(node.requested, record.requests.items(), 1)
        if old is not None and old.node and old.node != record.node:
            self._forget(self.nodes[old.node])

    def remove_pod(self, pod: Pod) -> None:
        record = self._by_uid.pop(pod.metadata.uid, None)
        if record is None:
            return
        if self.pods.get(record.key) is record:
            del self.pods[record.key]
        self._discount(record)
        if record.node:
            self._forget(self.nodes[record.node])

    def drop_unused_placements(self) -> None:
        """Called every few minutes: every rollout makes new placements."""
        self.placements.keep({pod.placement.number for pod in self.pods.values()})

    def _record(self, name: str) -> NodeRecord:
        record = self.nodes.get(name)
        if record is None:
            record = self.nodes[name] = NodeRecord(name)
        return record

    def _discount(self, pod: PodRecord) -> None:
        for owner in pod.pod.metadata.owner_references:
            owned = self._by_owner.get(owner.uid, {})
            owned.pop(pod.uid, None)
            if not owned:
                self._by_owner.pop(owner.uid, None)
        node = self.nodes.get(pod.node)
        if node is not None and node.pods.pop(pod.uid, None) is not None and not pod.terminated:
            _add(node.requested, pod.requests.items(), -1)

    def _forget(self, record: NodeRecord) -> None:
        if record.node is None and not record.pods and record.load is None:
            self.nodes.pop(record.name, None)


def _add(sums: dict[str, int], requests: Iterable[tuple[str, int]], sign: int) -> None:
    for name, amount in requests:
        total = sums.get(name, 0) + sign * amount
        if total:
            sums[name] = total
        else:
            sums.pop(name, None)
