"""Predicates on pods that several parts of the migration share. Pure."""

from __future__ import annotations

from koordlet.api.core import Pod
from koordlet.api.meta import ObjectMeta, OwnerReference

TERMINAL_PHASES = ("Succeeded", "Failed")


def controller_of(meta: ObjectMeta) -> OwnerReference | None:
    """The reference to the managing controller, or None."""
    return next((owner for owner in meta.owner_references if owner.controller), None)


def controller_uid(pod: Pod) -> str:
    """The UID of the pod's controller; empty without one."""
    owner = controller_of(pod.metadata)
    return owner.uid if owner is not None else ""


def is_active(pod: Pod) -> bool:
    """Whether the pod is neither terminal nor terminating."""
    return pod.status.phase not in TERMINAL_PHASES and pod.metadata.deletion_timestamp is None


def is_ready(pod: Pod) -> bool:
    """Whether condition Ready is True."""
    condition = pod.status.condition("Ready")
    return condition is not None and condition.status == "True"


def is_serving(pod: Pod) -> bool:
    """Whether the pod counts as available: active and ready."""
    return is_active(pod) and is_ready(pod)


def quoted_key(namespace: str, name: str) -> str:
    """`"namespace/name"` in quotes, as messages of jobs show pods."""
    return f'"{namespace}/{name}"'
