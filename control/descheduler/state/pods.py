"""Pods in the descheduler: a `PodRecord` per pod, and what equal pods share.

A record is never changed: an update of the pod makes a new record. Records may be kept during a pass, across awaits.
Requests are integers: cpu in milli-cores, other resources in whole units.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from control.component.amounts import amounts
from koordlet.api import priority, qos
from koordlet.api.annotations.scheduling import eviction_cost
from koordlet.api.core import Pod, is_terminated, pod_qos_class
from koordlet.api.core.podresources import pod_requests
from koordlet.api.core.selectors import NodeSelectorTerm, Toleration
from koordlet.api.encoding import wire
from koordlet.api.encoding.wire import WireError
from koordlet.api.meta import OwnerReference

DELETION_COST: Final = "controller.kubernetes.io/pod-deletion-cost"
SYSTEM_CRITICAL_PRIORITY: Final = 2_000_000_000
"""The priority of system-cluster-critical."""
MIRROR: Final = "kubernetes.io/config.mirror"
_SOURCE: Final = "kubernetes.io/config.source"
_INT32: Final = range(-(2**31), 2**31)

_CLASS_RANKS: Final = {priority.FREE: 1, priority.BATCH: 2, priority.MID: 3, priority.PROD: 4}
_KUBE_RANKS: Final = {"BestEffort": 0, "Burstable": 1, "Guaranteed": 2}
_QOS_RANKS: Final = {qos.BE: 1, qos.LS: 2, qos.LSR: 3, qos.LSE: 4, qos.SYSTEM: 4}
_NO_RANK: Final = 5

_encode = msgspec.json.Encoder(order="deterministic", enc_hook=wire.enc_hook).encode


class EvictionOrder(NamedTuple):
    """The part of spec 07 §5.1 that does not depend on usage; the smallest is evicted first."""

    priority_class: int
    priority: int
    kube_qos: int
    qos: int
    deletion_cost: int
    eviction_cost: int


class PlacementRule:
    """Where equal pods may run: node selector, required node affinity, tolerations, requests. Compared by identity."""

    __slots__ = ("node_selector", "number", "requests", "terms", "tolerations")

    def __init__(self, number: int, pod: Pod) -> None:
        self.number = number
        self.node_selector: Mapping[str, str] = pod.spec.node_selector
        self.terms: list[NodeSelectorTerm] | None = required_terms(pod)
        """None: no required affinity. An empty list matches no node."""
        self.tolerations: list[Toleration] = pod.spec.tolerations
        self.requests: Mapping[str, int] = {
            name: amount for name, amount in amounts(pod_requests(pod)).items() if amount
        }


class PodRecord:
    """One pod, bound or not. See the module text."""

    __slots__ = (
        "created",
        "key",
        "name",
        "namespace",
        "node",
        "order",
        "placement",
        "pod",
        "priority_class",
        "terminated",
        "uid",
    )

    def __init__(self, pod: Pod, placement: PlacementRule) -> None:
        meta = pod.metadata
        self.pod = pod
        self.key: str = meta.key
        self.uid: str = meta.uid
        self.namespace: str = meta.namespace
        self.name: str = meta.name
        self.node: str = pod.spec.node_name
        """Name of its node; "" if it is not bound."""
        self.placement = placement
        self.terminated: bool = is_terminated(pod)
        """Whether its phase is Succeeded or Failed."""
        self.created: float = meta.creation_timestamp.timestamp() if meta.creation_timestamp else 0.0
        self.priority_class: str = priority.priority_class(pod)
        """Koordinator's class, "" for none (spec 07 §5.1)."""
        self.order = EvictionOrder(
            _CLASS_RANKS.get(self.priority_class, _NO_RANK),
            pod.spec.priority or 0,
            _KUBE_RANKS.get(pod_qos_class(pod), 1),
            _QOS_RANKS.get(qos.qos_class(pod), _NO_RANK),
            deletion_cost(pod),
            cost_of_eviction(pod),
        )

    @property
    def requests(self) -> Mapping[str, int]:
        """Effective requests without zeros: cpu in milli-cores, other resources in whole units."""
        return self.placement.requests

    @property
    def is_prod(self) -> bool:
        return self.priority_class == priority.PROD

    @property
    def terminating(self) -> bool:
        """Whether it is being deleted."""
        return self.pod.metadata.deletion_timestamp is not None

    @property
    def controller(self) -> OwnerReference | None:
        """The owner reference of its controller."""
        return next((owner for owner in self.pod.metadata.owner_references if owner.controller), None)

    def __repr__(self) -> str:
        return f"PodRecord({self.key})"


class PlacementRules:
    """Interns placements, so that equal pods share one."""

    def __init__(self) -> None:
        self._by_key: dict[bytes, PlacementRule] = {}
        self._next = 0

    def __len__(self) -> int:
        return len(self._by_key)

    def record(self, pod: Pod) -> PodRecord:
        return PodRecord(pod, self.placement(pod))

    def placement(self, pod: Pod) -> PlacementRule:
        spec = pod.spec
        affinity = spec.affinity.node_affinity if spec.affinity is not None else None
        required = affinity.required_during_scheduling_ignored_during_execution if affinity is not None else None
        containers = (
            [[c.resources, c.restart_policy] for c in spec.init_containers],
            [c.resources for c in spec.containers],
        )
        key = _encode((spec.node_selector, required, spec.tolerations, spec.overhead, spec.resources, containers))
        placement = self._by_key.get(key)
        if placement is None:
            placement = self._by_key[key] = PlacementRule(self._next, pod)
            self._next += 1
        return placement

    def keep(self, used: set[int]) -> None:
        """Drop placements whose numbers are not in `used`: no pod has them any more."""
        self._by_key = {key: placement for key, placement in self._by_key.items() if placement.number in used}


def required_terms(pod: Pod) -> list[NodeSelectorTerm] | None:
    """The terms of the required node affinity; None without one."""
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity is not None else None
    required = affinity.required_during_scheduling_ignored_during_execution if affinity is not None else None
    return None if required is None else required.node_selector_terms


def deletion_cost(pod: Pod) -> int:
    """`controller.kubernetes.io/pod-deletion-cost`; 0 if it is missing, not an int32, or has a leading zero."""
    text = pod.metadata.annotations.get(DELETION_COST, "")
    digits = text.removeprefix("-")
    if not (digits.isdecimal() and digits.isascii()) or len(digits) > 10 or (text[0] == "0" and text != "0"):
        return 0
    cost = int(text)
    return cost if cost in _INT32 else 0


def cost_of_eviction(pod: Pod) -> int:
    """`scheduling.koordinator.sh/eviction-cost`; 0 if it is missing or malformed (spec 07 §4.2)."""
    try:
        return eviction_cost(pod.metadata.annotations)
    except WireError:
        return 0


def is_mirror(pod: Pod) -> bool:
    """Whether it is the API object of a static pod."""
    return MIRROR in pod.metadata.annotations


def is_static(pod: Pod) -> bool:
    """Whether its source is not the API server."""
    return pod.metadata.annotations.get(_SOURCE, "api") != "api"


def is_daemon(pod: Pod) -> bool:
    """Whether a DaemonSet owns it."""
    return any(owner.kind == "DaemonSet" for owner in pod.metadata.owner_references)
