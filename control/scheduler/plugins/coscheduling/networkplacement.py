"""Places gangs by network topology: slots per node, a plan for all members, scores near neighbours (spec 05 §10).

The slots of a node are determined by placing the members there one after another in a trial on the table itself, with
all Filter plugins for each. That is exact and slow (members times nodes). It is done once per round, and only for gangs
with network topology requirements.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from control.scheduler.framework.handle import Handle
from control.scheduler.framework.plugin import CycleState
from control.scheduler.framework.runtime import PluginRuntime
from control.scheduler.plugins.coscheduling.topology import NetworkDomain, build
from control.scheduler.plugins.coscheduling.topologyplanner import (
    GatherRules,
    NoPlan,
    TopologyPlanner,
    neighbours_first,
)
from control.scheduler.state.columns import IntArray, RowArray
from control.scheduler.state.pods import PodInfo, Shape
from koordlet.api import names
from koordlet.api.annotations.gang import NetworkTopologySpec, network_order
from koordlet.api.crs.networktopology import DEFAULT_NAME, ClusterNetworkTopology
from koordlet.kube import Informer


class NetworkPlacement:
    """See the module text. The constructor creates the informer of ClusterNetworkTopology."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._table = handle.table
        self._topologies: Informer[ClusterNetworkTopology] | None = (
            handle.objects.informer(ClusterNetworkTopology) if handle.objects is not None else None
        )
        self._runtime = PluginRuntime()
        self.topology: ClusterNetworkTopology | None = None
        """Used if there is no informer."""
        self._tree: NetworkDomain | None = None
        self._built: tuple[int, ClusterNetworkTopology | None] | None = None

    def connect(self, runtime: PluginRuntime) -> None:
        """See `Plugin.connect`."""
        self._runtime = runtime

    def tree(self) -> NetworkDomain | None:
        """The present network tree; None without a usable ClusterNetworkTopology."""
        topology = self.topology if self._topologies is None else self._topologies.get(DEFAULT_NAME)
        seen = self._built
        if seen is None or seen[0] != self._table.node_log.end or seen[1] is not topology:
            self._built = (self._table.node_log.end, topology)
            self._tree = build(topology, (node for node in self._table.nodes if node is not None))
        return self._tree

    def plan(
        self,
        state: CycleState,
        members: Sequence[PodInfo],
        spec: NetworkTopologySpec,
        rows: RowArray | None,
        cost: Mapping[str, int] | None = None,
    ) -> dict[str, str]:
        """Key -> node for every member. `cost`: cost of preemption by node name. Raises NoPlan."""
        root = self.tree()
        if root is None:
            raise NoPlan("no cluster network topology")
        first = members[0]
        members = sorted(members, key=lambda pod: network_order(pod.name, pod.pod.metadata.annotations))
        state.same_job = frozenset(pod.uid for pod in members)
        table, reasons = self._table, Counter[str]()
        allowed = None if rows is None else set(rows.tolist())
        slots: dict[str, int] = {}
        for leaf in root.leaves():
            row = table.row(leaf.name)
            if row is not None and (allowed is None or row in allowed):
                slots[leaf.name] = self._slots(state, members, row, reasons)
        planner = TopologyPlanner(root, slots, GatherRules.of(spec), self._existing(first.shape), cost)
        try:
            shares = planner.plan(len(members))
        except NoPlan as failure:
            counted = ", ".join(sorted(f"{number} {reason}" for reason, number in reasons.items()))
            text = f"0/{table.nodes_alive} nodes are available: {counted}."
            raise NoPlan(f"{failure}, {text}{planner.constraints()}") from failure
        nodes = [name for name, number in shares for _ in range(number)]
        return {pod.key: node for pod, node in zip(members, nodes, strict=True)}

    def neighbour_positions(self, shape: Shape, rows: RowArray) -> IntArray | None:
        """[len(rows)]: rank of each row, 0 is the best. None: the pod names no neighbours, or there is no tree."""
        root = self.tree() if names.ANNOTATION_NETWORK_TOPOLOGY_SELECTOR in shape.annotations else None
        if root is None:
            return None
        candidates = {self._table.names[row]: at for at, row in enumerate(rows.tolist())}
        positions = np.zeros(len(rows), np.int64)
        for position, name in enumerate(neighbours_first(root, list(candidates), self._existing(shape))):
            positions[candidates[name]] = position
        return positions

    def _slots(self, state: CycleState, members: Sequence[PodInfo], row: int, reasons: Counter[str]) -> int:
        taken = 0
        with self._table.what_if() as trial:
            for pod in members:
                status = self._runtime.fits(state, pod, row)
                if not status.ok:
                    reasons.update(status.reasons)
                    break
                trial.add(pod, row)
                taken += 1
        return taken

    def _existing(self, shape: Shape) -> dict[str, int]:
        """Node -> number of pods with the same selector annotation; empty without one."""
        key = names.ANNOTATION_NETWORK_TOPOLOGY_SELECTOR
        selector = shape.annotations.get(key, "")
        if not selector:
            return {}
        counter = self._handle.counters.counter(
            (key, selector), lambda other: int(other.annotations.get(key) == selector)
        )
        occupied = np.flatnonzero(counter.data[: self._table.size])
        return {self._table.names[row]: int(counter.data[row]) for row in occupied.tolist()}
