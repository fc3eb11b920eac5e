"""Which pods consume which Reservation, as the API server states it (spec 06 §4.3)."""

from __future__ import annotations

from collections.abc import Callable

from control.reservation.amounts import bounded
from control.scheduler.reservationcontrol.lifecycle import ConsumingPod
from koordlet.api.annotations.reservation import ALLOCATED, ReservationAllocated
from koordlet.api.core import Pod
from koordlet.api.core.podresources import is_terminated, pod_requests
from koordlet.api.encoding.wire import WireError

Reference = tuple[str, str]
"""(name, uid) of a Reservation."""


class ReservationOwners:
    """Follows the pods. A pod counts while it has a node, has not terminated, and names the Reservation in its
    annotation `reservation-allocated`. A malformed annotation names none."""

    def __init__(self, changed: Callable[[Reference], object]) -> None:
        self._changed = changed
        self._pods: dict[str, dict[str, Pod]] = {}
        """By uid of the Reservation, then by uid of the pod."""
        self._references: dict[str, Reference] = {}
        """By uid of the pod."""

    def pod_seen(self, pod: Pod) -> None:
        uid = pod.metadata.uid
        named = None if is_terminated(pod) or not pod.spec.node_name else _allocated(pod)
        reference = (named.name, named.uid) if named is not None and named.uid else None
        if self._references.get(uid) != reference:
            self.pod_gone(pod)
        if reference is not None:
            self._references[uid] = reference
            self._pods.setdefault(reference[1], {})[uid] = pod
            self._changed(reference)

    def pod_gone(self, pod: Pod) -> None:
        reference = self._references.pop(pod.metadata.uid, None)
        if reference is None:
            return
        pods = self._pods[reference[1]]
        del pods[pod.metadata.uid]
        if not pods:
            del self._pods[reference[1]]
        self._changed(reference)

    def pods(self, uid: str) -> list[Pod]:
        """The pods that name the Reservation."""
        return list(self._pods.get(uid, {}).values())

    def on(self, uid: str, node: str) -> list[ConsumingPod]:
        """The owners on its node."""
        return [
            ConsumingPod(pod.metadata.namespace, pod.metadata.name, pod.metadata.uid, bounded(pod_requests(pod)))
            for pod in self._pods.get(uid, {}).values()
            if pod.spec.node_name == node
        ]


def _allocated(pod: Pod) -> ReservationAllocated | None:
    try:
        return ALLOCATED.get(pod.metadata.annotations)
    except WireError:
        return None
