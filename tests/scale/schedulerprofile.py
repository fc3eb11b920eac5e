"""A cluster and a cycle with the shipped profile, for the scheduler's benchmark."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from control.scheduler.cycle.cycle import Cycle
from control.scheduler.framework.profile import Framework
from control.scheduler.framework.waitingpods import WaitingPods
from control.scheduler.plugins.registry import PLUGINS
from control.scheduler.state.cache import Cache
from koordlet.app.clock import SYSTEM_CLOCK
from tests.control.scheduler.build import Cluster, node

DEFAULTS = {
    "TaintToleration": 3,
    "NodeAffinity": 2,
    "NodeResourcesFit": 1,
    "PodTopologySpread": 2,
    "InterPodAffinity": 2,
    "NodeResourcesBalancedAllocation": 1,
    "ImageLocality": 1,
    "LoadAwareScheduling": 1,
    "Reservation": 5000,
}


class Reports:
    """Fake informers: they hold only objects of `put` and `tell`."""

    def __init__(self) -> None:
        self._objects: dict[type, dict[str, Any]] = defaultdict(dict)
        self._handlers: dict[type, list[Callable[[Any], object]]] = defaultdict(list)

    def informer(self, kind: type) -> Any:
        def add_handler(on_add: Any = None, on_update: Any = None, on_delete: Any = None) -> None:
            if on_add is not None:
                self._handlers[kind].append(on_add)

        stored = self._objects[kind]
        return SimpleNamespace(add_handler=add_handler, list=lambda: list(stored.values()), get=stored.get)

    def put(self, *objects: Any) -> None:
        """Add to the stores without notifying handlers."""
        for obj in objects:
            self._objects[type(obj)][obj.metadata.key] = obj

    def tell(self, obj: object) -> None:
        for handler in self._handlers[type(obj)]:
            handler(obj)


@dataclass
class Bench:
    """The environment of a scenario."""

    cluster: Cluster
    cycle: Cycle
    nodes: int
    random: random.Random
    reports: Reports
    plugins: list[str]
    weights: dict[str, int]


def open_bench(nodes: int, rng: random.Random, *extra: str) -> Bench:
    """`extra`: further plugins."""
    cluster = Cluster()
    for i in range(nodes):
        labels = {"topology.kubernetes.io/zone": f"zone-{i % 5}", "pool": f"p{i % 4}"}
        cluster.table.set_node(node(f"node-{i}", cpu="32", memory="256Gi", pods=256, labels=labels))
    cluster.use(rng=rng)
    reports = Reports()
    cluster.use(objects=reports)
    cluster.use(waiting=WaitingPods(SYSTEM_CLOCK))
    order = [
        "NodeUnschedulable", "NodeName", "TaintToleration", "NodeAffinity", "NodePorts", "NodeResourcesFit",
        "VolumeRestrictions", "NodeVolumeLimits", "VolumeBinding", "VolumeZone", "PodTopologySpread",
        "InterPodAffinity", "NodeResourcesBalancedAllocation", "ImageLocality", "LoadAwareScheduling",
    ]  # fmt: skip
    known = [name for name in (*order, *extra) if name in PLUGINS]
    points = dict.fromkeys(("preFilter", "filter", "preScore", "score", "reserve", "permit"), known)
    framework = Framework(cluster.handle, narrowed(points), PLUGINS, weights=DEFAULTS)
    cache, waiting = Cache(cluster.table, cluster.shapes), cluster.handle.waiting
    cycle = Cycle(framework, cache, waiting)  # type: ignore[arg-type]
    return Bench(cluster, cycle, nodes, rng, reports, known, DEFAULTS)


def narrowed(points: dict[str, list[str]]) -> dict[str, list[str]]:
    """Only plugins that implement an extension point."""
    from control.scheduler.framework.plugin import Plugin
    from control.scheduler.framework.profile import POINTS

    def works(name: str, point: str) -> bool:
        return any(getattr(PLUGINS[name], method) is not getattr(Plugin, method) for method in POINTS[point])

    return {point: [name for name in names if works(name, point)] for point, names in points.items()}
