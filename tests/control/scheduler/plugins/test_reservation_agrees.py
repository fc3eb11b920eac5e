"""Random histories of reservations and pods agree with the plain rules, and nothing is lost or counted twice."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from control.scheduler.cycle.evaluation import evaluate
from control.scheduler.framework.plugin import CycleState
from koordlet.api import names
from koordlet.api.core import Node, Pod
from koordlet.api.crs.reservation import AVAILABLE, Reservation
from koordlet.api.encoding.quantity import Quantity
from tests.control.reservation.reservationbuild import pod, reservation
from tests.control.scheduler.plain import reservations as plain
from tests.control.scheduler.plain.reservations import Objects
from tests.control.scheduler.plugins.reservationworld import ReservationWorld

POINTS = {
    "queueSort": ("PrioritySort",),
    "preFilter": ("Reservation",),
    "filter": ("NodeResourcesFit", "Reservation"),
    "postFilter": ("Reservation",),
    "score": ("Reservation",),
    "reserve": ("Reservation",),
    "preBind": ("Reservation",),
    "bind": ("Reservation",),
}
OWNERS = st.sampled_from(
    (
        [{}],
        [{"labelSelector": {"matchLabels": {"app": "a"}}}],
        [{"labelSelector": {"matchLabels": {"app": "b"}}}, {"object": {"name": "p1"}}],
        [{"object": {"name": "p2"}}],
        [{"object": {"name": "nobody"}}],
    )
)
TAINT = {"key": "team", "value": "x", "effect": "NoSchedule"}
ORDER = names.LABEL_RESERVATION_ORDER
RESERVATIONS = st.fixed_dictionaries(
    {
        "cpu": st.sampled_from((0, 1, 2, 3, 5, 8, 40)),
        "owners": OWNERS,
        "allocateOnce": st.booleans(),
        "allocatePolicy": st.sampled_from(("", "Aligned", "Restricted", "Restricted")),
        "unschedulable": st.sampled_from((False, False, True)),
        "taints": st.sampled_from(([], [], [TAINT])),
        "labels": st.sampled_from(({}, {"zone": "a"}, {ORDER: "3"}, {ORDER: "-2"})),
        "annotations": st.sampled_from(({}, {}, {names.ANNOTATION_NODE_RESERVATION: '{"resources": {"cpu": "2"}}'})),
    }
)
AFFINITIES = st.sampled_from(
    (
        None,
        None,
        {},
        {"name": "r1"},
        {"reservationSelector": {"zone": "a"}},
        {"tolerations": [{"key": "team", "operator": "Exists"}]},
        {"tolerations": [{"operator": "Exists"}]},
    )
)
PODS = st.fixed_dictionaries(
    {
        "cpu": st.integers(0, 9),
        "app": st.sampled_from(("a", "b", "c")),
        "affinity": AFFINITIES,
        "exact": st.sampled_from((False, False, False, True)),
        "ignores": st.sampled_from((False, False, False, True)),
    }
)


class Histories(RuleBasedStateMachine):
    """Three nodes; at most a few objects, so that they meet."""

    world: ReservationWorld

    @initialize(slots=st.sampled_from((3, 110)))
    def begin(self, slots: int) -> None:
        self.world = ReservationWorld(6, 10, 16, points=POINTS, pods_per_node=slots)
        self.pods = self.reservations = 0

    @property
    def objects(self) -> Objects:
        stored = self.world.stored
        return Objects([*stored[Node].values()], [*stored[Reservation].values()], [*stored[Pod].values()])

    def all(self, kind: type[Any]) -> Sequence[Any]:
        return [*self.world.stored[kind].values()]

    # Pods

    @rule(of=PODS, number=st.integers(1, 4))
    def schedule_a_pod(self, of: dict[str, Any], number: int) -> None:
        annotations = {}
        if of["affinity"] is not None:
            annotations[names.ANNOTATION_RESERVATION_AFFINITY] = json.dumps(of["affinity"])
        if of["exact"]:
            annotations[names.ANNOTATION_EXACT_MATCH_RESERVATION] = '{"resourceNames": ["cpu"]}'
        labels = {"app": of["app"], **({names.LABEL_RESERVATION_IGNORED: "true"} if of["ignores"] else {})}
        name = f"p{number}" if f"default/p{number}" not in self.world.stored[Pod] else f"q{self.pods}"
        self.pods += 1
        subject = pod(name, cpu=of["cpu"], labels=labels, annotations=annotations)
        subject.metadata.uid = f"uid-{self.pods}"
        objects = self.objects
        plainly = {node.metadata.name: plain.taken(objects, subject, node) for node in objects.nodes}
        feasible = [node for node in objects.nodes if plainly[node.metadata.name][0]]
        self.world.put(subject)
        self._agree(subject, plainly, objects, feasible)
        chosen = self.world.retry(subject)
        if feasible:
            assert chosen in [node.metadata.name for node in feasible]
            room = plainly[chosen][1]
            assert self.world.owner_of(name) == ("" if room is None else room.metadata.name)
        else:
            assert chosen.startswith("0/3 nodes are available")
            self.world.delete(subject)

    def _agree(
        self, pod: Pod, plainly: dict[str, tuple[bool, Reservation | None]], objects: Objects, feasible: list[Node]
    ) -> None:
        """The feasible nodes, the reservation on each, and the scores."""
        world, state = self.world, CycleState()
        info = world.waiting(pod)
        assert info is not None
        try:
            _, rows = evaluate(world.cycle.framework, state, info)
            table = world.cluster.table
            rows = np.array(sorted(rows.tolist(), key=table.names.__getitem__), np.intp)
            assert [table.names[row] for row in rows] == [node.metadata.name for node in feasible]
            match = world.plugin._match(state, info)
            for row in rows.tolist():
                best, expected = world.plugin._offering.best(state, match, row), plainly[table.names[row]][1]
                named = best[0].model.name if best is not None and best[0].model is not None else ""
                assert named == ("" if expected is None else expected.metadata.name)
            if len(rows) and world.plugin.pre_score(state, info, rows).ok:
                scores = world.plugin.normalize(state, info, rows, world.plugin.score(state, info, rows))
                assert scores.tolist() == plain.node_scores(objects, pod, feasible)
                assert (
                    world.plugin.score(state, info, table.all)[rows].tolist()
                    == world.plugin.score(state, info, rows).tolist()
                )
            whole = world.plugin.filter(state, info, table.all)
            alone = [int(world.plugin.filter(state, info, np.array([row]))[0]) for row in range(table.size)]
            assert whole.tolist() == alone
        finally:
            state.run_undo()

    @precondition(lambda self: self.all(Pod))
    @rule(data=st.data())
    def delete_a_pod(self, data: st.DataObject) -> None:
        self.world.delete(data.draw(st.sampled_from(self.all(Pod))))

    # Reservations

    @rule(of=RESERVATIONS)
    def schedule_a_reservation(self, of: dict[str, Any]) -> None:
        self.reservations += 1
        name = "r1" if "r1" not in self.world.stored[Reservation] else f"r{self.reservations + 1}"
        room = reservation(name, uid=f"rsv-{self.reservations}", **of)
        objects = self.objects
        fits = [node.metadata.name for node in objects.nodes if plain.reserve_pod_fits(objects, room, node)]
        chosen = self.world.schedule(room)
        assert chosen in fits if fits else chosen.startswith("0/3 nodes are available")
        if not fits:
            self.world.delete(room)

    @precondition(lambda self: self.all(Reservation))
    @rule(data=st.data(), cpu=st.integers(0, 12))
    def resize_a_reservation(self, data: st.DataObject, cpu: int) -> None:
        room = data.draw(st.sampled_from(self.all(Reservation)))
        self._restate(room, allocatable={"cpu": Quantity.of(cpu)})

    @precondition(lambda self: self.all(Reservation))
    @rule(data=st.data(), phase=st.sampled_from(("Failed", "Succeeded")))
    def end_a_reservation(self, data: st.DataObject, phase: str) -> None:
        self._restate(data.draw(st.sampled_from(self.all(Reservation))), phase=phase)

    @precondition(lambda self: self.all(Reservation))
    @rule(data=st.data())
    def delete_a_reservation(self, data: st.DataObject) -> None:
        self.world.delete(data.draw(st.sampled_from(self.all(Reservation))))

    @precondition(lambda self: self.all(Reservation))
    @rule(data=st.data(), unschedulable=st.booleans(), owners=OWNERS)
    def change_a_reservation(self, data: st.DataObject, unschedulable: bool, owners: list[Any]) -> None:
        room = data.draw(st.sampled_from(self.all(Reservation)))
        known = reservation(owners=owners).spec.owners
        self.world.put(
            msgspec.structs.replace(
                room, spec=msgspec.structs.replace(room.spec, unschedulable=unschedulable, owners=known)
            )
        )

    def _restate(self, room: Reservation, **status: Any) -> None:
        if room.status.phase == AVAILABLE:
            self.world.put(msgspec.structs.replace(room, status=msgspec.structs.replace(room.status, **status)))

    # Process

    @rule(order=st.permutations((Node, Reservation, Pod)))
    def restart(self, order: list[type[Any]]) -> None:
        before = self.figures()
        self.world.restart(order)
        assert self.figures() == before

    def figures(self) -> list[Any]:
        return [(name, self.world.requested(name), self.world.page(name)) for name in ("n0", "n1", "n2")]

    @invariant()
    def everything_is_counted_once(self) -> None:
        if not hasattr(self, "world"):
            return
        objects, world = self.objects, self.world
        for node in objects.nodes:
            name = node.metadata.name
            assert world.requested(name) == objects.requested(name)
            used = sum(plain.cpu_of_pod(pod) for pod in objects.pods_on(name))
            assert used <= node.status.allocatable["cpu"].milli_value()
            for room_object in objects.on(name):
                room = world.book.rooms[room_object.metadata.uid]
                assert room.used.get("cpu", 0) == objects.used(room_object)
        known = {reservation.metadata.uid for reservation in objects.reservations}
        assert all(room.uid in known or room.owners for room in world.book.rooms.values())
        assert not any(room.lifted for room in world.book.rooms.values())
        counted = sum(map(len, world.cluster.table.pods))
        available = sum(len(objects.on(node.metadata.name)) for node in objects.nodes)
        assert counted == available + sum(bool(pod.spec.node_name) for pod in objects.pods)
        assert len(world.cluster.table._adjustments) <= available


Histories.TestCase.settings = settings(
    max_examples=40, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
TestHistories = Histories.TestCase
