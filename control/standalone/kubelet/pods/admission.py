"""Does a pod fit on this node? The last check, after the scheduler's, by the kubelet itself; pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from control.standalone.kubelet.pods.spec import ParsedPod, pod_requests
from control.standalone.kubelet.pods.status import PhaseDecision
from koordlet.api.encoding.quantity import Quantity


def _is_extended(resource: str) -> bool:
    """Extended in Kubernetes' sense: of a domain that is not kubernetes.io (batch-cpu is not)."""
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
    """None when the pod may run, else why not. `others`: admitted pods that are not over.

    A resource that no node offers is ignored when it is an extended one (a device plugin may yet come) and
    refused otherwise, as a kubelet does; amounts in messages are milli-cores, bytes or pieces.
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
        wanted = _amount(resource, quantity)
        if wanted == 0 or (resource not in allocatable and _is_extended(resource)):
            continue
        have = _amount(resource, allocatable[resource]) if resource in allocatable else 0
        if used.get(resource, 0) + wanted > have:
            return _out_of(resource, wanted, used.get(resource, 0), have)
    return None


def _out_of(resource: str, wanted: int, used: int, have: int) -> PhaseDecision:
    return PhaseDecision(
        f"OutOf{resource}",
        f"Pod was rejected: Node didn't have enough resource: {resource}, "
        f"requested: {wanted}, used: {used}, capacity: {have}",
    )
