"""What is written into a Recommendation's status, and when (spec 04 §9.3). Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from control.manager.recommender.estimate import Estimate, moved
from control.manager.recommender.settings import Settings
from koordlet.api.crs.analysis import ContainerCheckpoint, RecommendationStatus, RecommendedPodStatus
from koordlet.api.encoding.wire import Time
from koordlet.api.meta import Condition

LOW_CONFIDENCE = "LowConfidence"
NO_OBJECTS = "NoObjectsMatched"
UNSUPPORTED = "ConfigUnsupported"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one look at a Recommendation brought."""

    unsupported: str = ""
    """why its target or its mode can't be used; empty: they can"""
    pods: int = 0
    """how many there are"""
    apart: bool = True
    """whether there is a pod whose usage is that of one container"""
    estimates: Sequence[Estimate] = ()
    checkpoint: Sequence[ContainerCheckpoint] = ()


def confident(status: RecommendationStatus) -> bool:
    """Whether there is something to go by: a recommendation, and history enough."""
    told = status.pod_status is not None and bool(status.pod_status.container_statuses)
    return told and any(each.type == LOW_CONFIDENCE and each.status == "False" for each in status.conditions)


def compose(
    old: RecommendationStatus, found: Finding, settings: Settings, now: float, *, generation: int = 0
) -> RecommendationStatus:
    """The status as it should be. Without pods or estimates the last recommendation stays."""
    at = Time.from_unix(now)
    conditions = {each.type: each for each in old.conditions}
    for type_, (true, reason, message) in _conditions(found, settings).items():
        status, before = "True" if true else "False", conditions.get(type_)
        conditions[type_] = Condition(
            type=type_,
            status=status,
            observed_generation=generation,
            last_transition_time=before.last_transition_time if before and before.status == status else at,
            reason=reason,
            message=message,
        )
    new = msgspec.structs.replace(old, update_time=at, conditions=[conditions[type_] for type_ in sorted(conditions)])
    if found.estimates and found.pods:
        ordered = sorted(found.estimates, key=lambda estimate: estimate.container)
        new.pod_status = RecommendedPodStatus(container_statuses=[estimate.status() for estimate in ordered])
        new.explain = [estimate.explanation() for estimate in ordered]
    if found.checkpoint:
        new.checkpoint = list(found.checkpoint)
    return new


def due(old: RecommendationStatus, new: RecommendationStatus, settings: Settings, now: float) -> bool:
    """Whether it is worth a write: an amount moved by more than 5 %, a condition changed, or time has passed."""
    if old.update_time is None or now - old.update_time.unix >= settings.status_interval:
        return True
    if [(c.type, c.status, c.reason) for c in old.conditions] != [(c.type, c.status, c.reason) for c in new.conditions]:
        return True
    before = {each.container_name: each for each in (old.pod_status or RecommendedPodStatus()).container_statuses}
    after = {each.container_name: each for each in (new.pod_status or RecommendedPodStatus()).container_statuses}
    return before.keys() != after.keys() or any(moved(before[name], after[name]) for name in after)


def _conditions(found: Finding, settings: Settings) -> dict[str, tuple[bool, str, str]]:
    least = min((estimate.confidence for estimate in found.estimates), default=0.0)
    wanted = f"{settings.minimum_history / 3600:g} h"
    if not found.estimates:
        low = (True, "NoSamples", "nothing was measured yet")
        if found.pods and not found.apart:
            low = (
                True,
                "ContainersNotToldApart",
                "NodeMetric tells of whole pods here, and all have several containers",
            )
    elif least < 1:
        low = (True, "ShortHistory", f"there is {int(least * 100)} % of the {wanted} of history asked for")
    else:
        low = (False, "EnoughHistory", f"there are {wanted} of history or more")
    return {
        LOW_CONFIDENCE: low,
        NO_OBJECTS: (
            (True, "NoPods", "the target has no pods; the last recommendation stays")
            if not found.pods
            else (False, "PodsFound", "the target has pods")
        ),
        UNSUPPORTED: (
            (True, "NotSupported", found.unsupported)
            if found.unsupported
            else (False, "Supported", "target and update mode can be used")
        ),
    }
