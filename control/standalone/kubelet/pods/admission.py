"""Admission of a pod by the kubelet: whether it fits on this node, after the scheduler's decision; pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from control.standalone.kubelet.pods.spec import ParsedPod, pod_requests
from control.standalone.kubelet.pods.status import PhaseDecision
from koordlet.api.encoding.quantity import Quantity


def _is_extended(resource: str) -> bool:
    """An extended resource has a domain other than kubernetes.io (kubernetes.io/batch-cpu is not extended)."""
    return "/" in resource and "kubernetes.io/" not in resource


def _amount(resource: str, quantity: Quantity) -> int:
    return quantity.milli_value() if resource == "cpu" else quantity.value()


def admit(
    raw: Mapping[str, Any],
    pod: ParsedPod,
    others: Iterable[ParsedPod],
    allocatable: Mapping[str, Quantity],
    node_labels: Mapping[str, str],
) -> PhaseDecision | None:
    """None when the pod may run, else the reason of the rejection. `others`: admitted pods that are not finished.

    As in kubelet, a requested resource that the node does not have is ignored when it is extended (a device plugin may
    register it later) and is a reason for rejection otherwise. Amounts in messages are milli-cores, bytes or counts.
    """
    selector = (raw.get("spec") or {}).get("nodeSelector") or {}
    if any(node_labels.get(key) != value for key, value in selector.items()):
        return PhaseDecision("NodeAffinity", "Pod was rejected: Predicate NodeAffinity failed: node(s) didn't match")
    used: dict[str, int] = {}
    count = 0
    for other in others:
        count += 1
        for resource, quantity in pod_requests(other).items():
            used[resource] = used.get(resource, 0) + _amount(resource, quantity)
    limit = allocatable["pods"].value()
    if count + 1 > limit:
        return _out_of("pods", 1, count, limit)
    for resource, quantity in sorted(pod_requests(pod).items()):
        requested = _amount(resource, quantity)
        if requested == 0 or (resource not in allocatable and _is_extended(resource)):
            continue
        capacity = _amount(resource, allocatable[resource]) if resource in allocatable else 0
        if used.get(resource, 0) + requested > capacity:
            return _out_of(resource, requested, used.get(resource, 0), capacity)
    return None


def _out_of(resource: str, requested: int, used: int, capacity: int) -> PhaseDecision:
    return PhaseDecision(
        f"OutOf{resource}",
        f"Pod was rejected: Node didn't have enough resource: {resource}, "
        f"requested: {requested}, used: {used}, capacity: {capacity}",
    )
