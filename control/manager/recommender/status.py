"""The status of a Recommendation, and when it is written (spec 04 §9.3). Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from control.manager.recommender.estimate import Estimate, differs
from control.manager.recommender.settings import RecommenderSettings
from koordlet.api.crs.analysis import ContainerCheckpoint, RecommendationStatus, RecommendedPodStatus
from koordlet.api.encoding.wire import Time
from koordlet.api.meta import Condition

LOW_CONFIDENCE = "LowConfidence"
NO_OBJECTS = "NoObjectsMatched"
UNSUPPORTED = "ConfigUnsupported"


@dataclass(frozen=True, slots=True)
class Finding:
    """The results of one pass for a Recommendation."""

    unsupported: str = ""
    """why its target or update mode is invalid; empty: both are valid"""
    pods: int = 0
    """number of targeted pods"""
    has_single_container: bool = True
    """whether a targeted pod has a single container, so that the pod's usage is the container's"""
    estimates: Sequence[Estimate] = ()
    checkpoint: Sequence[ContainerCheckpoint] = ()


def confident(status: RecommendationStatus) -> bool:
    """Whether the status holds a recommendation with a sufficient history."""
    has_recommendation = status.pod_status is not None and bool(status.pod_status.container_statuses)
    return has_recommendation and any(
        condition.type == LOW_CONFIDENCE and condition.status == "False" for condition in status.conditions
    )


def compose(
    old: RecommendationStatus, finding: Finding, settings: RecommenderSettings, now: float, *, generation: int = 0
) -> RecommendationStatus:
    """The desired status. Without pods or estimates the last recommendation is kept."""
    at = Time.from_unix(now)
    conditions = {condition.type: condition for condition in old.conditions}
    for condition_type, (true, reason, message) in _conditions(finding, settings).items():
        status, before = "True" if true else "False", conditions.get(condition_type)
        conditions[condition_type] = Condition(
            type=condition_type,
            status=status,
            observed_generation=generation,
            last_transition_time=before.last_transition_time if before and before.status == status else at,
            reason=reason,
            message=message,
        )
    new = msgspec.structs.replace(
        old, update_time=at, conditions=[conditions[condition_type] for condition_type in sorted(conditions)]
    )
    if finding.estimates and finding.pods:
        ordered = sorted(finding.estimates, key=lambda estimate: estimate.container)
        new.pod_status = RecommendedPodStatus(container_statuses=[estimate.status() for estimate in ordered])
        new.explain = [estimate.explanation() for estimate in ordered]
    if finding.checkpoint:
        new.checkpoint = list(finding.checkpoint)
    return new


def due(old: RecommendationStatus, new: RecommendationStatus, settings: RecommenderSettings, now: float) -> bool:
    """Whether to write: an amount changed by more than 5 %, a condition changed, or the status interval has passed."""
    if old.update_time is None or now - old.update_time.unix >= settings.status_interval:
        return True
    if [(c.type, c.status, c.reason) for c in old.conditions] != [(c.type, c.status, c.reason) for c in new.conditions]:
        return True
    before = {status.container_name: status for status in (old.pod_status or RecommendedPodStatus()).container_statuses}
    after = {status.container_name: status for status in (new.pod_status or RecommendedPodStatus()).container_statuses}
    return before.keys() != after.keys() or any(differs(before[name], after[name]) for name in after)


def _conditions(finding: Finding, settings: RecommenderSettings) -> dict[str, tuple[bool, str, str]]:
    confidence = min((estimate.confidence for estimate in finding.estimates), default=0.0)
    required = f"{settings.minimum_history / 3600:g} h"
    if not finding.estimates:
        low = (True, "NoSamples", "there are no usage samples yet")
        if finding.pods and not finding.has_single_container:
            low = (
                True,
                "ContainersNotToldApart",
                "NodeMetrics contain no usage per container, and all pods have several containers",
            )
    elif confidence < 1:
        low = (True, "ShortHistory", f"the history covers {int(confidence * 100)} % of the required {required}")
    else:
        low = (False, "EnoughHistory", f"the history covers {required} or more")
    return {
        LOW_CONFIDENCE: low,
        NO_OBJECTS: (
            (True, "NoPods", "the target has no pods; the last recommendation is kept")
            if not finding.pods
            else (False, "PodsFound", "the target has pods")
        ),
        UNSUPPORTED: (
            (True, "NotSupported", finding.unsupported)
            if finding.unsupported
            else (False, "Supported", "target and update mode are valid")
        ),
    }
