"""One pod against one quota: its usage, and whether it fits (spec 04 §12.5, §17). Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import msgspec

from control.quota.lists import shown, total
from koordlet.api import names
from koordlet.api.annotations import quota as annotation
from koordlet.api.annotations.pod import apply_replaced, replaced_resources
from koordlet.api.core import Container, Pod, is_terminated, pod_requests
from koordlet.api.crs.quota import ElasticQuota
from koordlet.api.resources import ResourceList, Resources

MANAGED = frozenset(
    {
        "cpu",
        "memory",
        "ephemeral-storage",
        "requests.cpu",
        "requests.memory",
        "requests.ephemeral-storage",
        names.RESOURCE_BATCH_CPU,
        names.RESOURCE_BATCH_MEMORY,
        names.RESOURCE_MID_CPU,
        names.RESOURCE_MID_MEMORY,
        names.RESOURCE_GPU,
        names.RESOURCE_NVIDIA_GPU,
        names.RESOURCE_GPU_SHARED,
        names.RESOURCE_GPU_MEMORY_RATIO,
    }
)
"""A quota that limits none of these resources is not evaluated at admission."""


@dataclass(frozen=True)
class Account:
    """The limit and the used amount of a quota."""

    key: str
    limit: ResourceList
    used: ResourceList
    resources: frozenset[str]
    """the counted resources: the keys of max"""

    @classmethod
    def of(cls, quota: ElasticQuota) -> Account:
        """From the object. Raises WireError for malformed annotations."""
        annotations = quota.metadata.annotations
        return cls(
            key=quota.metadata.key,
            limit=annotation.ADMISSION.get(annotations) or quota.spec.max,
            used=annotation.CHILD_REQUEST.get(annotations) or {},
            resources=frozenset(quota.spec.max),
        )

    def counted(self, usage: Resources) -> ResourceList:
        """The part of a pod's usage that this quota counts."""
        if not self.resources & MANAGED:
            return {}
        return {name: amount for name, amount in usage.items() if name in self.resources and amount}

    def refusal(self, usage: Resources) -> str | None:
        """The reason why (counted) usage does not fit; None when it fits. A resource without limit is unlimited."""
        after = total([self.used, usage])
        over = sorted(name for name in usage if name in self.limit and after[name] > self.limit[name])
        if not over:
            return None
        requested, used, limited = (shown(resources, over) for resources in (usage, self.used, self.limit))
        return f"exceeded quota: {self.key}, requested: {requested}, used: {used}, limited: {limited}"

    def with_used(self, used: ResourceList) -> Account:
        return Account(self.key, self.limit, used, self.resources)


def pod_usage(pod: Pod, now: float) -> ResourceList:
    """The usage of a pod: its requests, or nothing if it has terminated or its grace period has passed."""
    deleted = pod.metadata.deletion_timestamp
    grace = pod.metadata.deletion_grace_period_seconds
    if is_terminated(pod) or (deleted is not None and grace is not None and deleted.timestamp() + grace < now):
        return {}
    return pod_requests(pod)


def transformed(pod: Pod) -> Pod:
    """The pod with resources renamed or removed as configured by its annotation `replace-resources`."""
    replaced = replaced_resources(pod.metadata.annotations)
    if not replaced:
        return pod

    def transform(container: Container) -> Container:
        old = container.resources
        resources = msgspec.structs.replace(
            old, requests=apply_replaced(old.requests, replaced), limits=apply_replaced(old.limits, replaced)
        )
        return msgspec.structs.replace(container, resources=resources)

    spec = msgspec.structs.replace(
        pod.spec,
        containers=[transform(container) for container in pod.spec.containers],
        init_containers=[transform(container) for container in pod.spec.init_containers],
        overhead=apply_replaced(pod.spec.overhead, replaced),
    )
    return msgspec.structs.replace(pod, spec=spec)


def max_retries(pods: int, limit: int) -> int:
    """Number of retries for a batch of N pods: 3 + log2(N), at most `limit`, which is at least 3."""
    return 3 if pods <= 1 else min(3 + pods.bit_length() - 1, limit)


def masked(amounts: Resources, resources: Collection[str]) -> ResourceList:
    """The amounts of these resources only."""
    return {name: amount for name, amount in amounts.items() if name in resources}
