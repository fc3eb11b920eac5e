"""Whole decisions of the default profile on clusters that fit on a page: who accepts the pod, and who wins.

The clusters are those that Kubernetes' documentation draws; names of nodes and zones are kept so that the two can be
read side by side.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from control.scheduler.cycle.cycle import Cycle
from control.scheduler.cycle.failures import FitError
from control.scheduler.explain.podreport import explain
from control.scheduler.plugins.registry import PLUGINS
from koordlet.api.core import Namespace, Node, Pod
from koordlet.api.encoding import wire
from tests.control.scheduler.build import Cluster, node, pod
from tests.control.scheduler.plugins.informers import FakeObjects
from tests.control.scheduler.toys import cycle_of

FILTERS = ("NodeUnschedulable", "NodeName", "TaintToleration", "NodeAffinity", "NodePorts", "NodeResourcesFit",
           "PodTopologySpread", "InterPodAffinity")  # fmt: skip
WEIGHTS = {"TaintToleration": 3, "NodeAffinity": 2, "NodeResourcesFit": 1, "PodTopologySpread": 2,
           "InterPodAffinity": 2, "NodeResourcesBalancedAllocation": 1, "ImageLocality": 1}  # fmt: skip
POINTS = {
    "preFilter": (*FILTERS, "NodeResourcesBalancedAllocation"),
    "filter": FILTERS,
    "score": tuple(WEIGHTS),
}
HOST = "kubernetes.io/hostname"


@dataclass(frozen=True)
class Decision:
    """`fits`: nodes that accept the pod; `best`: those with the highest total; `message`: why there is none."""

    fits: str
    best: str
    message: str


class Board:
    """A cluster and the cycle that decides on it. Names are joined with blanks wherever several are told."""

    def __init__(
        self,
        nodes: Sequence[Node],
        pods: Iterable[Pod] = (),
        *,
        args: Mapping[str, Any] | None = None,
        namespaces: Mapping[str, Mapping[str, str]] | None = None,
        objects: Iterable[Any] = (),
    ) -> None:
        """`namespaces`: their labels, by name; `objects`: services and the like."""
        self.cluster = Cluster(*nodes)
        fake_objects = FakeObjects()
        self.cluster.use(objects=fake_objects)
        self.cycle: Cycle = cycle_of(self.cluster, POINTS, PLUGINS, weights=WEIGHTS, args=args or {})
        for name, labels in (namespaces or {}).items():
            fake_objects.emit("add", wire.convert({"metadata": {"name": name, "labels": dict(labels)}}, Namespace))
        for obj in objects:
            fake_objects.emit("add", obj)
        self.cluster.put(*pods)

    def decide(self, pod: Pod) -> Decision:
        """Judge, then place: the cycle must choose one of the best."""
        info = self.cluster.info(pod)
        explanation = explain(self.cycle.framework, info, "asked")
        fits = sorted(scored.node for scored in explanation.scored)
        assert len(fits) == explanation.feasible
        top = max((scored.total for scored in explanation.scored), default=0)
        best = [scored.node for scored in explanation.scored if scored.total == top]
        try:
            placed = self.cycle.place(info).node
        except FitError as failure:
            assert not fits
            return Decision("", "", failure.text())
        assert placed in best
        return Decision(" ".join(fits), " ".join(sorted(best)), "")

    def scores(self, pod: Pod, plugin: str) -> dict[str, int]:
        """Node -> what the plugin gives it, weighted."""
        explanation = explain(self.cycle.framework, self.cluster.info(pod), "asked")
        return {scored.node: scored.scores.get(plugin, 0) for scored in explanation.scored}

    def place(self, *pods: Pod) -> list[str]:
        """One after the other; "" for a pod without a node."""
        places = []
        for pending in pods:
            try:
                places.append(self.cycle.place(self.cluster.info(pending)).node)
            except FitError:
                places.append("")
        return places


def light(name: str = "", *, labels: Mapping[str, str] | None = None, on: str = "", **spec: Any) -> Pod:
    """A pod that asks for nothing, so that resources decide as little as they can."""
    namespace = spec.pop("namespace", "default")
    return pod(name, None, None, labels=labels, on=on, namespace=namespace, spec=spec)


def zoned(zones: Mapping[str, Iterable[str]], key: str = "zone", **more: Any) -> list[Node]:
    """Zone -> its nodes, which also have the label `node`; those of zone "" have no zone."""
    return [
        node(name, labels={"node": name, **({key: zone} if zone else {})}, **more)
        for zone, names in zones.items()
        for name in names
    ]
