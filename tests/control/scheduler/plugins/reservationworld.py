"""A scheduler with Reservation over a small cluster: objects as the API server has them, cycles, bindings, restarts."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from control.quota.amounts import to_list
from control.reservation.model import template_requests
from control.scheduler.config.args import ReservationArgs
from control.scheduler.cycle.cycle import Cycle
from control.scheduler.cycle.failures import FitError
from control.scheduler.cycle.placement import CycleFailed, Placement
from control.scheduler.framework.plugin import Plugin
from control.scheduler.plugins.defaultpreemption import DefaultPreemption
from control.scheduler.plugins.interpodaffinity import InterPodAffinity
from control.scheduler.plugins.nodeports import NodePorts
from control.scheduler.plugins.noderesourcesfit import NodeResourcesFit
from control.scheduler.plugins.prioritysort import PrioritySort
from control.scheduler.plugins.reservation import ReservationPlugin
from control.scheduler.queue import SchedulingQueue
from control.scheduler.state.cache import Cache
from control.scheduler.state.eventhandlers import ClusterEventHandlers
from control.scheduler.state.pods import PodInfo
from control.scheduler.state.subjects import Subjects
from koordlet.api.core import Node, Pod
from koordlet.api.core.workloads import PodDisruptionBudget
from koordlet.api.crs.reservation import AVAILABLE, Reservation
from koordlet.app.gates import FeatureGates
from tests.control.scheduler.build import Cluster, node
from tests.control.scheduler.plugins.quotaworld import HeldInformer
from tests.control.scheduler.toys import cycle_over, framework_of, queue_of

PLUGINS: Mapping[str, type[Plugin]] = {
    plugin.name: plugin
    for plugin in (DefaultPreemption, InterPodAffinity, NodePorts, NodeResourcesFit, PrioritySort, ReservationPlugin)
}
POINTS: Mapping[str, Sequence[str]] = {
    "queueSort": ("PrioritySort",),
    "preFilter": ("NodePorts", "InterPodAffinity", "Reservation"),
    "filter": ("NodePorts", "NodeResourcesFit", "InterPodAffinity", "Reservation"),
    "postFilter": ("Reservation", "DefaultPreemption"),
    "score": ("NodeResourcesFit", "Reservation"),
    "reserve": ("Reservation",),
    "preBind": ("Reservation",),
    "bind": ("Reservation",),
}
WEIGHTS = {"Reservation": 5000}


class WorldObjects:
    """`ClusterObjects` whose objects a test sets."""

    def __init__(self) -> None:
        self.informers: dict[type[Any], HeldInformer] = {}

    def informer(self, kind: type[Any]) -> Any:
        return self.informers.setdefault(kind, HeldInformer())

    def __iter__(self) -> Any:
        return iter(self.informers.items())


class ReservationWorld:
    """One node per entry of `cpus`: `n0`, `n1` …; every cycle is confirmed at once unless the test does it."""

    def __init__(
        self,
        *cpus: int | str,
        args: ReservationArgs | None = None,
        gates: FeatureGates | None = None,
        points: Mapping[str, Sequence[str]] = POINTS,
        plugins: Mapping[str, type[Plugin]] = PLUGINS,
        pods_per_node: int = 110,
        **services: Any,
    ) -> None:
        self._build = (args, gates, points, plugins, services)
        self.stored: dict[type[Any], dict[str, Any]] = {Pod: {}, Reservation: {}, Node: {}}
        for at, cpu in enumerate(cpus or ("32",)):
            self.stored[Node][f"n{at}"] = node(f"n{at}", cpu=str(cpu), memory="64Gi", pods=pods_per_node)
        self.restart()

    def restart(self, order: Sequence[type[Any]] = (Node, Reservation, Pod)) -> None:
        """A new scheduler that knows the stored objects only, which arrive in this order."""
        args, gates, points, plugins, services = self._build
        self.cluster = cluster = Cluster()
        self.objects = objects = WorldObjects()
        self.cache = Cache(cluster.table, cluster.shapes)
        for kind in (Pod, Node, PodDisruptionBudget):
            objects.informer(kind)
        kept: Any = objects
        handlers = ClusterEventHandlers(kept, self.cache)
        cluster.use(objects=objects, gates=gates, subjects=Subjects(), follow=handlers.follow, **services)
        framework = framework_of(
            cluster, points, plugins, args={"Reservation": args or ReservationArgs()}, weights=WEIGHTS
        )
        plugin = framework.plugins["Reservation"]
        assert isinstance(plugin, ReservationPlugin)
        self.plugin = plugin
        self.book = plugin.book
        self.queue: SchedulingQueue = queue_of(framework)
        self.cycle: Cycle = cycle_over(cluster, framework, queue=self.queue)
        self.cycle.cache = self.cache
        handlers.route(self.queue, {"koord-scheduler": framework}, lambda uid: None)
        for kind in order:
            for stored in self.stored[kind].values():
                objects.informer(kind).put(stored)

    # The API server

    def put(self, *objects: Any) -> None:
        for added in objects:
            kind = next(kind for kind in (Pod, Reservation, Node) if isinstance(added, kind))
            self.stored[kind][added.metadata.key] = added
            self.objects.informer(kind).put(added)

    def delete(self, removed: Any) -> None:
        kind = next(kind for kind in (Pod, Reservation, Node) if isinstance(removed, kind))
        known = self.stored[kind].pop(removed.metadata.key)
        self.objects.informer(kind).remove(known)

    def reservation(self, name: str) -> Reservation:
        stored: Reservation = self.stored[Reservation][name]
        return stored

    def pod(self, name: str) -> Pod:
        stored: Pod = self.stored[Pod][f"default/{name}"]
        return stored

    # Scheduling

    def place(self, subject: Pod | Reservation) -> Placement:
        """One cycle for a stored, pending object. Raises FitError, CycleFailed."""
        info = self.waiting(subject)
        assert info is not None, "it is not in the queue"
        return self.cycle.place(info)

    def waiting(self, subject: Pod | Reservation) -> PodInfo | None:
        record = self.queue.record(subject.metadata.uid)
        return None if record is None else record.pod

    def confirm(self, placement: Placement) -> None:
        """What PreBind and Bind send to the API server, and the event that follows."""
        info = placement.pod
        live = self.plugin.subject.object(info) if info.subject == "Reservation" else None
        changed = self.prepared(placement)
        if live is not None:
            self.put(available(self.patched(live, changed), placement.node))
            return
        status = asyncio.run(self.plugin.pre_bind(placement.state, info, placement.row, changed))
        if not status.ok:
            self.cycle.release(placement)
            raise CycleFailed(status)
        self.put(msgspec.structs.replace(changed, spec=msgspec.structs.replace(changed.spec, node_name=placement.node)))

    def prepared(self, placement: Placement) -> Pod:
        """The pod as the other plugins' PreBind leaves it."""
        meta = placement.pod.pod.metadata
        copied = msgspec.structs.replace(meta, annotations=dict(meta.annotations))
        return msgspec.structs.replace(placement.pod.pod, metadata=copied)

    def patched(self, live: Reservation, prepared: Pod) -> Reservation:
        """The Reservation after the patch of PreBind."""
        return live

    def schedule(self, subject: Pod | Reservation) -> str:
        """Store it, run its cycle and bind it: the node, or why there is none."""
        self.put(subject)
        return self.retry(subject)

    def retry(self, subject: Pod | Reservation) -> str:
        try:
            placement = self.place(subject)
            self.confirm(placement)
        except FitError as failure:
            return failure.text()
        except CycleFailed as failure:
            return failure.status.message
        return placement.node

    # Results

    def owner_of(self, name: str) -> str:
        """The reservation that a bound pod uses, by its annotation."""
        text = self.pod(name).metadata.annotations.get("scheduling.koordinator.sh/reservation-allocated", "{}")
        return str(msgspec.json.decode(text).get("name", ""))

    def requested(self, node_name: str = "n0", resource: str = "cpu") -> int:
        table = self.cluster.table
        return int(table.requested[table.resource(resource), table.rows[node_name]])

    def used(self, name: str) -> dict[str, int]:
        return {key: n for key, n in self.book.rooms[self.reservation(name).metadata.uid].used.items() if n}

    def page(self, node_name: str = "n0") -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = self.plugin.routes()["nodeReservations/{node}"](node=node_name)["items"]
        return items


def available(room: Reservation, node_name: str, **status: Any) -> Reservation:
    """The Reservation after its binding, as `ReservationSubject.bind` writes it."""
    bound = msgspec.structs.replace(
        room.status, phase=AVAILABLE, node_name=node_name, allocatable=to_list(template_requests(room)), **status
    )
    return msgspec.structs.replace(room, status=bound)
