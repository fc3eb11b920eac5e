"""Reservation, slow and plain: everything is computed from the objects each time (spec 06 §4).

Amounts are cpu in milli-cores; nodes limit cpu and the number of pods.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from koordlet.api.core import Node, Pod
from koordlet.api.crs.reservation import Reservation

PREFIX = "scheduling.koordinator.sh/"
PENDING, NODE_ONLY = "pending", "node"


def cpu_of_pod(pod: Pod) -> int:
    return sum(container.resources.requests["cpu"].milli_value() for container in pod.spec.containers)


def cpu_of(reservation: Reservation) -> int:
    """What it offers, or what its template requests while it has no node."""
    if reservation.status.node_name:
        return reservation.status.allocatable["cpu"].milli_value()
    return cpu_of_pod(Pod(spec=reservation.spec.template.spec))


def annotation(pod: Pod, name: str) -> Any:
    text = pod.metadata.annotations.get(PREFIX + name)
    return None if text is None else json.loads(text or "{}")


@dataclass(frozen=True)
class Objects:
    """The stored objects."""

    nodes: Sequence[Node]
    reservations: Sequence[Reservation]
    pods: Sequence[Pod]

    def on(self, node: str) -> list[Reservation]:
        return [
            reservation
            for reservation in self.reservations
            if reservation.status.node_name == node and reservation.status.phase == "Available"
        ]

    def pods_on(self, node: str) -> list[Pod]:
        return [pod for pod in self.pods if pod.spec.node_name == node]

    def owners(self, reservation: Reservation) -> list[Pod]:
        """The pods that use the reservation and are on its node."""
        named = ((pod, annotation(pod, "reservation-allocated")) for pod in self.pods_on(reservation.status.node_name))
        return [
            pod for pod, allocated in named if allocated is not None and allocated["uid"] == reservation.metadata.uid
        ]

    def used(self, reservation: Reservation) -> int:
        return sum(map(cpu_of_pod, self.owners(reservation)))

    def booked(self, reservation: Reservation) -> int:
        return max(cpu_of(reservation) - self.used(reservation), 0)

    def requested(self, node: str) -> int:
        """The pods of the node, and what their reservations keep beside them."""
        return sum(map(cpu_of_pod, self.pods_on(node))) + sum(map(self.booked, self.on(node)))

    def inner(self, reservation: Reservation) -> int:
        text = reservation.metadata.annotations.get("node.koordinator.sh/reservation")
        return int(json.loads(text)["resources"]["cpu"]) * 1000 if text else 0

    def remaining(self, reservation: Reservation) -> int:
        return max(cpu_of(reservation) - self.used(reservation) - self.inner(reservation), 0)


def is_owner(pod: Pod, owners: Iterable[Any]) -> bool:
    for owner in owners:
        labels = owner.label_selector.match_labels if owner.label_selector is not None else {}
        name = owner.object.name if owner.object is not None else pod.metadata.name
        if name == pod.metadata.name and labels.items() <= pod.metadata.labels.items():
            return True
    return False


def tolerated(tolerations: Sequence[Mapping[str, str]], key: str) -> bool:
    return any(
        toleration.get("operator") == "Exists" and toleration.get("key", key) == key for toleration in tolerations
    )


def matches(objects: Objects, pod: Pod, reservation: Reservation) -> bool:
    """Whether the pod may use it."""
    if reservation.spec.allocate_once is not False and objects.owners(reservation):
        return False
    if pod.metadata.labels.get(PREFIX + "reservation-ignored") == "true":
        return True
    if not is_owner(pod, reservation.spec.owners):
        return False
    affinity = annotation(pod, "reservation-affinity")
    exact = annotation(pod, "exact-match-reservation") is None or cpu_of(reservation) == cpu_of_pod(pod)
    if affinity is not None and affinity.get("name"):
        return exact and affinity["name"] == reservation.metadata.name
    tolerations = (affinity or {}).get("tolerations", ())
    if reservation.spec.unschedulable and not tolerated(tolerations, "node.kubernetes.io/unschedulable"):
        return False
    if any(not tolerated(tolerations, taint.key) for taint in reservation.spec.taints):
        return False
    selector = (affinity or {}).get("reservationSelector", {})
    return exact and all(reservation.metadata.labels.get(key) == value for key, value in selector.items())


def fits_with(
    objects: Objects, pod: Pod, node: Node, reservation: Reservation | None, matched: Sequence[Reservation]
) -> bool:
    """Whether the pod fits on the node with this reservation, or with none."""
    name, cpu = node.metadata.name, cpu_of_pod(pod)
    slots = len(objects.pods_on(name)) + len(objects.on(name)) - len(matched) + 1
    if slots > node.status.allocatable["pods"].value():
        return False
    left = 0 if reservation is None else objects.remaining(reservation)
    if cpu > 0 and cpu > node.status.allocatable["cpu"].milli_value() - objects.requested(name) + left:
        return False
    if reservation is not None and reservation.spec.allocate_policy == "Restricted" and cpu > 0:
        return cpu <= cpu_of(reservation) - objects.inner(reservation) - objects.used(reservation)
    return True


def score(objects: Objects, pod: Pod, reservation: Reservation) -> int:
    capacity, taken = cpu_of(reservation), cpu_of_pod(pod) + objects.used(reservation)
    return 100 * taken // capacity if capacity and taken <= capacity else 0


def order(reservation: Reservation) -> int:
    return int(reservation.metadata.labels.get(PREFIX + "reservation-order", "0"))


def taken(objects: Objects, pod: Pod, node: Node) -> tuple[bool, Reservation | None]:
    """(whether the pod fits on the node, the reservation that it takes there)."""
    matched = [reservation for reservation in objects.on(node.metadata.name) if matches(objects, pod, reservation)]
    ignores = pod.metadata.labels.get(PREFIX + "reservation-ignored") == "true"
    free = (
        node.status.allocatable["cpu"].milli_value()
        - objects.requested(node.metadata.name)
        + sum(map(objects.booked, matched))
    )
    slots = len(objects.pods_on(node.metadata.name)) + len(objects.on(node.metadata.name)) - len(matched)
    if (cpu_of_pod(pod) > 0 and cpu_of_pod(pod) > free) or slots + 1 > node.status.allocatable["pods"].value():
        return False, None
    if ignores:
        return True, None
    fitting = [reservation for reservation in matched if fits_with(objects, pod, node, reservation, matched)]
    if fitting:
        best = min(
            fitting,
            key=lambda reservation: (
                order(reservation) == 0,
                order(reservation),
                -score(objects, pod, reservation),
                reservation.metadata.name,
            ),
        )
        return True, best
    if annotation(pod, "reservation-affinity") is not None:
        return False, None
    return fits_with(objects, pod, node, None, matched), None


def reserve_pod_fits(objects: Objects, reservation: Reservation, node: Node) -> bool:
    name = node.metadata.name
    default = reservation.spec.allocate_policy == ""
    if any((other.spec.allocate_policy == "") != default for other in objects.on(name)):
        return False
    slots = len(objects.pods_on(name)) + len(objects.on(name)) + 1
    free = node.status.allocatable["cpu"].milli_value() - objects.requested(name)
    return slots <= node.status.allocatable["pods"].value() and (
        cpu_of(reservation) == 0 or cpu_of(reservation) <= free
    )


def node_scores(objects: Objects, pod: Pod, nodes: Sequence[Node]) -> list[int]:
    """0 to 100 per feasible node; the reservation with the smallest order counts 1000 before scaling."""
    rooms = [taken(objects, pod, node)[1] for node in nodes]
    scores = [0 if room is None else score(objects, pod, room) for room in rooms]
    orders = [order(room) for room in rooms if room is not None and order(room)]
    if orders:
        scores = [
            1000 if reservation is not None and order(reservation) == min(orders) else known
            for reservation, known in zip(rooms, scores, strict=True)
        ]
    highest = max(scores, default=0)
    return [score * 100 // highest for score in scores] if highest else scores
