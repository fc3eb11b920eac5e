"""One pod against one quota: what it uses, what is left, whether it fits (spec 04 §12.5, §17). Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import msgspec

from control.manager.quota.lists import shown, total
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
"""A quota over none of these is not counted at admission."""


@dataclass(frozen=True)
class Account:
    """What a quota allows and what is used of it."""

    key: str
    limit: ResourceList
    used: ResourceList
    resources: frozenset[str]
    """Those that are counted: the keys of max."""

    @classmethod
    def of(cls, quota: ElasticQuota) -> Account:
        """Raises WireError for annotations that can't be read."""
        notes = quota.metadata.annotations
        return cls(
            key=quota.metadata.key,
            limit=annotation.ADMISSION.get(notes) or quota.spec.max,
            used=annotation.CHILD_REQUEST.get(notes) or {},
            resources=frozenset(quota.spec.max),
        )

    def counted(self, usage: Resources) -> ResourceList:
        """What of a pod's usage this quota counts."""
        if not self.resources & MANAGED:
            return {}
        return {name: amount for name, amount in usage.items() if name in self.resources and amount}

    def refusal(self, usage: Resources) -> str | None:
        """Why (counted) usage does not fit beside what is used; None when it does. What has no limit is unlimited."""
        after = total([self.used, usage])
        over = sorted(name for name in usage if name in self.limit and after[name] > self.limit[name])
        if not over:
            return None
        requested, used, limited = (shown(each, over) for each in (usage, self.used, self.limit))
        return f"exceeded quota: {self.key}, requested: {requested}, used: {used}, limited: {limited}"

    def with_used(self, used: ResourceList) -> Account:
        return Account(self.key, self.limit, used, self.resources)


def pod_usage(pod: Pod, now: float) -> ResourceList:
    """What a pod counts for: its request, and nothing once it has ended or should have."""
    gone = pod.metadata.deletion_timestamp
    grace = pod.metadata.deletion_grace_period_seconds
    if is_terminated(pod) or (gone is not None and grace is not None and gone.timestamp() + grace < now):
        return {}
    return pod_requests(pod)


def transformed(pod: Pod) -> Pod:
    """The pod with resources renamed or dropped as its annotation `replace-resources` says."""
    replaced = replaced_resources(pod.metadata.annotations)
    if not replaced:
        return pod

    def of(container: Container) -> Container:
        given = container.resources
        resources = msgspec.structs.replace(
            given, requests=apply_replaced(given.requests, replaced), limits=apply_replaced(given.limits, replaced)
        )
        return msgspec.structs.replace(container, resources=resources)

    spec = msgspec.structs.replace(
        pod.spec,
        containers=[of(each) for each in pod.spec.containers],
        init_containers=[of(each) for each in pod.spec.init_containers],
        overhead=apply_replaced(pod.spec.overhead, replaced),
    )
    return msgspec.structs.replace(pod, spec=spec)


def budget(changed: int, most: int) -> int:
    """How often a batch of so many pods may be tried again; `most` is at least 3."""
    return 3 if changed <= 1 else min(3 + changed.bit_length() - 1, most)


def masked(amounts: Resources, resources: Collection[str]) -> ResourceList:
    """Only these resources."""
    return {name: amount for name, amount in amounts.items() if name in resources}
