"""Reasons why a pod must not be evicted that need no other object (spec 07 §4.3). Pure."""

from __future__ import annotations

from collections.abc import Collection

from control.descheduler.plugins.defaultevictor.args import (
    DAEMON_SETS,
    FAILED_BARE,
    LOCAL_STORAGE,
    RESOURCE_CLAIMS,
    SYSTEM_CRITICAL,
    WITH_CLAIMS,
)
from control.descheduler.state.pods import SYSTEM_CRITICAL_PRIORITY, PodRecord, is_daemon, is_mirror, is_static


def immovable(pod: PodRecord) -> str | None:
    """Why no configuration allows the eviction of the pod; None if one may."""
    if is_mirror(pod.pod):
        return "pod is a mirror pod"
    if is_static(pod.pod):
        return "pod is a static pod"
    if pod.terminating:
        return "pod is terminating"
    return None


def has_local_storage(pod: PodRecord) -> bool:
    return any(volume.host_path is not None or volume.empty_dir is not None for volume in pod.pod.spec.volumes)


def has_claim(pod: PodRecord) -> bool:
    return any(volume.persistent_volume_claim is not None for volume in pod.pod.spec.volumes)


def protected(pod: PodRecord, protections: Collection[str], priority_threshold: int | None) -> str | None:
    """The first protection that applies to the pod. `priority_threshold` applies with SystemCriticalPods only."""
    owners = pod.pod.metadata.owner_references
    if DAEMON_SETS in protections and is_daemon(pod.pod):
        return "pod belongs to a DaemonSet"
    if not owners:
        if FAILED_BARE in protections:
            return "pod has no owner"
        if pod.pod.status.phase != "Failed":
            return "pod has no owner and has not failed"
    if SYSTEM_CRITICAL in protections:
        priority = pod.pod.spec.priority
        if priority is not None and priority >= SYSTEM_CRITICAL_PRIORITY:
            return "pod is critical for the system"
        if priority_threshold is not None and priority is not None and priority >= priority_threshold:
            return f"priority of the pod is not below {priority_threshold}"
    if LOCAL_STORAGE in protections and has_local_storage(pod):
        return "pod has local storage"
    if WITH_CLAIMS in protections and has_claim(pod):
        return "pod has a PersistentVolumeClaim"
    if RESOURCE_CLAIMS in protections and pod.pod.spec.resource_claims:
        return "pod has a ResourceClaim"
    return None
