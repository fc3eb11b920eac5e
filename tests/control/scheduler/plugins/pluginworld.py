"""A cycle over nodes with the pods that the API server has, and restarts of the scheduler."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import msgspec
from hypothesis import strategies as st

from control.scheduler.cycle.cycle import Cycle
from control.scheduler.cycle.placement import Placement
from control.scheduler.framework.plugin import Plugin
from control.scheduler.state.pods import PodInfo
from koordlet.api.core import Node, Pod
from koordlet.api.encoding import wire
from koordlet.app.gates import FeatureGates
from tests.control.scheduler.build import Cluster
from tests.control.scheduler.plugins.quotaworld import HeldObjects
from tests.control.scheduler.toys import cycle_of

STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ("place", "place", "place", "place", "designate", "short", "delete", "restart", "kill before bind", "kill")
        ),
        st.integers(0, 7),
    ),
    min_size=4,
    max_size=14,
)
"""(what happens, to which of the nodes or pods) of a random history."""


class PluginWorld:
    """Also the cycle's `VictimEvictor`. Subclasses name the plugins and report what nodes have."""

    points: ClassVar[Mapping[str, tuple[str, ...]]]
    """Extension point -> plugins."""
    registry: ClassVar[Mapping[str, type[Plugin]]]

    def __init__(self, nodes: Sequence[Node], args: Mapping[str, Any], gates: FeatureGates | None = None) -> None:
        self.nodes, self.args, self.gates = nodes, args, gates
        self.pods: dict[str, Pod] = {}
        """By uid: bound pods."""
        self.evicted: list[str] = []
        """Names of pods."""
        self.start()

    def start(self) -> None:
        """A new process: all that it knows comes from the API server."""
        self.objects = HeldObjects()
        self.cluster = Cluster(*self.nodes)
        self.cluster.use(objects=self.objects, evictor=self, gates=self.gates)
        self.cycle: Cycle = cycle_of(self.cluster, self.points, self.registry, args=self.args)
        for stored in self.pods.values():
            self.cycle.cache.set_pod(stored)

    def evict(self, victims: Sequence[PodInfo], *, by: PodInfo, message: str) -> None:
        self.evicted += [victim.name for victim in victims]

    def clear_nominations(self, pods: Sequence[PodInfo]) -> None:
        assert not pods

    def evicting_for(self, uid: str) -> bool:
        return False

    def place(self, pod: Pod) -> Placement:
        return self.cycle.place(self.cluster.info(pod))

    def prepared(self, placement: Placement) -> Pod:
        """The pod as PreBind leaves it, without a node."""
        copied: Pod = wire.convert(wire.to_builtins(placement.pod.pod), Pod)
        for plugin in self.cycle.framework.plugins.values():
            if plugin.name in self.points["preBind"]:
                status = asyncio.run(plugin.pre_bind(placement.state, placement.pod, placement.row, copied))
                assert status.ok
        return copied

    def bind(self, placement: Placement) -> Pod:
        """PreBind and the binding succeed, and the API server's version comes back."""
        copied = self.prepared(placement)
        bound = msgspec.structs.replace(copied, spec=msgspec.structs.replace(copied.spec, node_name=placement.node))
        self.add(bound)
        return bound

    def add(self, bound: Pod) -> PodInfo | None:
        self.pods[bound.metadata.uid] = bound
        return self.cycle.cache.set_pod(bound)

    def remove(self, uid: str) -> None:
        del self.pods[uid]
        self.cycle.cache.remove_pod(uid)

    def remove_one(self, number: int) -> str:
        """Remove a pod, which `number` chooses; its uid, "" if there is none."""
        if not self.pods:
            return ""
        uid = sorted(self.pods)[number % len(self.pods)]
        self.remove(uid)
        return uid
