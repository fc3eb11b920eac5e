"""Writes allocations and consumers into the status of claims.

Every write names the version that was read: two schedulers, or two pods of one claim, do not overwrite each other. The
finalizer keeps an allocated claim until it is deallocated.
"""

from __future__ import annotations

from typing import Any, Final

from control.scheduler.plugins.dynamicresources.podclaims import MAX_CONSUMERS, consumer, reserved_for
from control.scheduler.state.pods import PodInfo
from koordlet.api.core.claims import AllocationResult, ResourceClaim
from koordlet.api.encoding import wire
from koordlet.kube import Client, Conflict, KubeError

FINALIZER: Final = "resource.kubernetes.io/delete-protection"
ATTEMPTS: Final = 5


async def bind_claim(client: Client, claim: ResourceClaim, pod: PodInfo, allocation: AllocationResult | None) -> None:
    """Reserve the claim for the pod, and write the allocation if it has none. `claim`: as it was when a node was chosen
    for the pod. Raises KubeError, also if another allocation was written meanwhile: it may be for another node."""
    name, namespace, uid = claim.metadata.name, claim.metadata.namespace, claim.metadata.uid
    expected = allocation if allocation is not None else claim.status.allocation
    for attempt in range(ATTEMPTS):
        current = await client.get(ResourceClaim, name, namespace)
        if current.metadata.uid != uid or current.metadata.deletion_timestamp is not None:
            raise KubeError(f"claim {name} was deleted")
        if current.status.allocation not in (None, expected):
            raise KubeError(f"claim {name} was allocated to other devices meanwhile")
        try:
            await _write(client, current, pod, allocation)
            return
        except Conflict:
            if attempt == ATTEMPTS - 1:
                raise


async def _write(client: Client, claim: ResourceClaim, pod: PodInfo, allocation: AllocationResult | None) -> None:
    meta, status = claim.metadata, claim.status
    name, namespace = meta.name, meta.namespace
    change: dict[str, Any] = {}
    if status.allocation is None:
        if allocation is None:
            raise KubeError(f"claim {name} was deallocated")
        change["allocation"] = wire.to_builtins(allocation)
        if FINALIZER not in meta.finalizers:
            finalizers = [*meta.finalizers, FINALIZER]
            body = {"metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version, "finalizers": finalizers}}
            meta = (await client.patch(ResourceClaim, name, namespace, body=body)).metadata
    if not reserved_for(claim, pod.uid):
        if len(status.reserved_for) >= MAX_CONSUMERS:
            raise KubeError(f"claim {name} is used by {MAX_CONSUMERS} pods, the limit")
        change["reservedFor"] = wire.to_builtins([*status.reserved_for, consumer(pod)])
    if change:
        body = {"metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version}, "status": change}
        await client.patch(ResourceClaim, name, namespace, body=body, subresource="status")


async def deallocate(client: Client, claim: ResourceClaim) -> None:
    """Free the devices of a claim that no other pod uses. Raises KubeError."""
    meta = claim.metadata
    version = {"uid": meta.uid, "resourceVersion": meta.resource_version}
    body = {"metadata": version, "status": {"allocation": None, "reservedFor": None}}
    await client.patch(ResourceClaim, meta.name, meta.namespace, body=body, subresource="status")
