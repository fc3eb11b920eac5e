"""The effect of a DELETE on one object: removed now, or marked with a deletionTimestamp.

Pure. Follows Kubernetes' rules: an object with finalizers stays, with a deletionTimestamp; a propagation policy is a
finalizer for the garbage collector; a bound, running pod stays until its kubelet deletes it with a grace period of 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from control.standalone.kinds import CRD, NAMESPACE, POD, ResourceKind
from control.standalone.objectmeta import parse_timestamp, timestamp

Json = dict[str, Any]
ORPHAN = "orphan"
FOREGROUND = "foregroundDeletion"


@dataclass(frozen=True, slots=True)
class DeletionOptions:
    """metav1.DeleteOptions, parsed."""

    grace_period_seconds: int | None = None
    propagation_policy: str | None = None  # Orphan, Background, Foreground
    uid: str | None = None
    resource_version: str | None = None
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class DeletionDecision:
    """`remove`: remove the object from the store now. Otherwise store `obj` if `changed`."""

    obj: Json
    remove: bool
    changed: bool


_UNTIMED = (NAMESPACE, CRD)
"""Kinds whose deletion has no grace period and counts as no change of their generation."""


def decide(kind: ResourceKind, obj: Json, options: DeletionOptions, now: float) -> DeletionDecision:
    """The decision about `obj`, a private copy, which is changed in place."""
    before = dict(obj["metadata"])
    meta = obj["metadata"]
    policy = options.propagation_policy
    if policy is None and kind.orphans_by_default and meta.get("deletionTimestamp") is None:
        policy = "Orphan"
    _propagate(meta, policy)
    grace = pod_grace(obj, options.grace_period_seconds) if kind.key == POD else 0
    deleting = meta.get("deletionTimestamp")
    if deleting is None and kind.key not in (POD, NAMESPACE) and not meta.get("finalizers"):
        return DeletionDecision(obj, True, True)  # removed as it is: only a deletion that takes time is marked
    if deleting is None:
        _mark(meta, now, None if kind.key in _UNTIMED else grace)
    elif grace < (meta.get("deletionGracePeriodSeconds") or 0) and (
        options.grace_period_seconds is not None or kind.key != POD or grace == 0
    ):
        start = parse_timestamp(deleting) - (meta.get("deletionGracePeriodSeconds") or 0)
        meta["deletionTimestamp"] = timestamp(start + grace)
        meta["deletionGracePeriodSeconds"] = grace
    if kind.key == NAMESPACE:
        obj.setdefault("status", {})["phase"] = "Terminating"
    remove = removable(kind, obj)
    changed = meta != before
    if changed and kind.generation and kind.key not in _UNTIMED:
        meta["generation"] = (meta.get("generation") or 0) + 1
    return DeletionDecision(obj, remove, changed)


def removable(kind: ResourceKind, obj: Json) -> bool:
    """True for an object marked for deletion without a finalizer or a grace period left."""
    meta = obj["metadata"]
    if meta.get("deletionTimestamp") is None or meta.get("finalizers"):
        return False
    if meta.get("deletionGracePeriodSeconds"):
        return False
    return not (kind.key == NAMESPACE and (obj.get("spec") or {}).get("finalizers"))


def pod_grace(pod: Mapping[str, Any], requested: int | None) -> int:
    """Grace period in seconds; 0 for pods that no kubelet runs (unbound or finished)."""
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    if not spec.get("nodeName") or status.get("phase") in ("Succeeded", "Failed"):
        return 0
    grace = requested
    if grace is None:
        grace = spec.get("terminationGracePeriodSeconds")
    if grace is None:
        grace = 30
    return 1 if grace < 0 else int(grace)


def _mark(meta: Json, now: float, grace: int | None) -> None:
    meta["deletionTimestamp"] = timestamp(now + (grace or 0))
    if grace is not None:
        meta["deletionGracePeriodSeconds"] = grace


def _propagate(meta: Json, policy: str | None) -> None:
    if policy is None:
        return
    finalizers = [f for f in meta.get("finalizers") or [] if f not in (ORPHAN, FOREGROUND)]
    if policy == "Orphan":
        finalizers.append(ORPHAN)
    elif policy == "Foreground":
        finalizers.append(FOREGROUND)
    if finalizers:
        meta["finalizers"] = finalizers
    else:
        meta.pop("finalizers", None)
