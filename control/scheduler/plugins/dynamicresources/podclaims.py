"""The resource claims of a pod, by its spec and, for claims made from a template, its status. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from control.scheduler.state.pods import PodInfo
from koordlet.api.core import Pod
from koordlet.api.core.claims import ResourceClaim, ResourceClaimConsumer

MAX_CONSUMERS: Final = 256
"""Kubernetes' limit of pods that use one claim."""


class ClaimProblem(Exception):
    """The pod has to wait for a claim; the text is the reason."""


def claim_names(pod: Pod) -> Iterator[str]:
    """The names of the pod's claims. Raises ClaimProblem."""
    claim_names = {status.name: status.resource_claim_name for status in pod.status.resource_claim_statuses}
    for claim in pod.spec.resource_claims:
        if claim.resource_claim_name:
            yield claim.resource_claim_name
        elif claim.name not in claim_names:
            raise ClaimProblem(
                f'waiting for the ResourceClaim "{claim.name}" to be created from template '
                f'"{claim.resource_claim_template_name}"'
            )
        elif claim_names[claim.name]:
            yield claim_names[claim.name]


def claims_of(pod: PodInfo, get: Callable[[str], ResourceClaim | None]) -> list[ResourceClaim]:
    """The pod's claims, each once. `get(namespace/name)`. Raises ClaimProblem."""
    templated = {status.resource_claim_name for status in pod.pod.status.resource_claim_statuses}
    claims = []
    for name in dict.fromkeys(claim_names(pod.pod)):
        claim = get(f"{pod.pod.metadata.namespace}/{name}")
        if claim is None:
            raise ClaimProblem(f'resourceclaim "{name}" not found')
        meta = claim.metadata
        if meta.deletion_timestamp is not None:
            raise ClaimProblem(f'resourceclaim "{name}" is being deleted')
        if name in templated and not any(ref.controller and ref.uid == pod.uid for ref in meta.owner_references):
            raise ClaimProblem(f"ResourceClaim {meta.key} was not created for pod {pod.key} (pod is not owner)")
        if len(claim.status.reserved_for) >= MAX_CONSUMERS and not reserved_for(claim, pod.uid):
            raise ClaimProblem(f'resourceclaim "{name}" is used by {MAX_CONSUMERS} pods, the limit')
        claims.append(claim)
    return claims


def reserved_for(claim: ResourceClaim, uid: str) -> bool:
    """Whether the pod may use the claim already."""
    return any(each.uid == uid for each in claim.status.reserved_for)


def consumer(pod: PodInfo) -> ResourceClaimConsumer:
    """The entry of the pod in `reservedFor`."""
    return ResourceClaimConsumer(resource="pods", name=pod.pod.metadata.name, uid=pod.uid)
