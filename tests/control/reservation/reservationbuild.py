"""Short ways to write Reservations and pods that use them."""

from __future__ import annotations

from typing import Any

from koordlet.api.core import Pod
from koordlet.api.crs.reservation import Reservation
from koordlet.api.encoding import wire


def reservation(
    name: str = "r1",
    *,
    cpu: str | int = 8,
    memory: str | None = None,
    extra: dict[str, str] | None = None,
    owners: Any = None,
    node: str = "",
    phase: str = "",
    policy: str = "",
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    template: dict[str, Any] | None = None,
    allocatable: dict[str, Any] | None = None,
    uid: str = "",
    scheduler: str = "koord-scheduler",
    **spec: Any,
) -> Reservation:
    """`node` makes it Available there. `owners`: default every pod. `spec`: further fields with their JSON names."""
    requests = {"cpu": str(cpu), **({"memory": memory} if memory else {}), **(extra or {})}
    pod_template = template or {
        "spec": {"schedulerName": scheduler, "containers": [{"name": "c", "resources": {"requests": requests}}]}
    }
    status: dict[str, Any] = {"phase": phase or ("Available" if node else "Pending")}
    if node:
        status |= {"nodeName": node, "allocatable": requests if allocatable is None else allocatable}
    document = {
        "apiVersion": "scheduling.koordinator.sh/v1alpha1",
        "kind": "Reservation",
        "metadata": {
            "name": name,
            "uid": uid or f"uid-{name}",
            "labels": labels or {},
            "annotations": annotations or {},
            "resourceVersion": "1",
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": {
            "template": pod_template,
            "owners": [{}] if owners is None else owners,
            "ttl": "24h",
            **spec,
        },
        "status": status,
    }
    return wire.convert(document, Reservation)


def pod(
    name: str = "p",
    *,
    cpu: str | int = 4,
    memory: str | None = None,
    extra: dict[str, str] | None = None,
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    namespace: str = "default",
    owner_references: list[dict[str, Any]] | None = None,
    node: str = "",
) -> Pod:
    """A pod of koord-scheduler."""
    requests = {"cpu": str(cpu), **({"memory": memory} if memory else {}), **(extra or {})}
    document = {
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"uid-{name}",
            "labels": labels or {},
            "annotations": annotations or {},
            "ownerReferences": owner_references or [],
            "resourceVersion": "1",
        },
        "spec": {
            "schedulerName": "koord-scheduler",
            "nodeName": node,
            "containers": [{"name": "c", "image": "x", "resources": {"requests": requests}}],
        },
    }
    return wire.convert(document, Pod)
