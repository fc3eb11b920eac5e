"""Updates of pods and nodes as the cluster events that plugins declare interest in (spec 05 §3.3, §3.7). Pure."""

from __future__ import annotations

from typing import Final

from control.scheduler.framework.plugin import ClusterEvent
from control.scheduler.state.pods import PodInfo
from koordlet.api.core import Node, Pod

POD_ADD: Final = ClusterEvent("AssignedPod", "Add")
POD_DELETE: Final = ClusterEvent("AssignedPod", "Delete")


def pod_changes(old: PodInfo, new: PodInfo, resource: str) -> list[ClusterEvent]:
    """The events of a pod's update. `resource`: `AssignedPod` or `UnscheduledPod`. Empty if no relevant field
    changed."""
    before, after = old.pod, new.pod
    events = []
    if before.metadata.labels != after.metadata.labels:
        events.append(ClusterEvent(resource, "Label"))
    if _scaled_down(old, new):
        events.append(ClusterEvent(resource, "ScaleDown"))
    if before.spec.tolerations != after.spec.tolerations:
        events.append(ClusterEvent(resource, "Toleration"))
    if before.spec.scheduling_gates and not after.spec.scheduling_gates:
        events.append(ClusterEvent(resource, "GatesEliminated"))
    if before.status.resource_claim_statuses != after.status.resource_claim_statuses:
        events.append(ClusterEvent(resource, "GeneratedClaim"))
    if not events and _changed(before, after):
        events.append(ClusterEvent(resource, "Update"))
    return events


def node_changes(old: Node, new: Node) -> list[ClusterEvent]:
    """The events of a node's update; none for a heartbeat."""
    events = []
    if old.spec.unschedulable != new.spec.unschedulable or old.spec.taints != new.spec.taints:
        events.append(ClusterEvent("Node", "Taint"))
    if old.status.allocatable != new.status.allocatable:
        events.append(ClusterEvent("Node", "Allocatable"))
    if old.metadata.labels != new.metadata.labels:
        events.append(ClusterEvent("Node", "Label"))
    if _conditions(old) != _conditions(new):
        events.append(ClusterEvent("Node", "Condition"))
    if old.metadata.annotations != new.metadata.annotations:
        events.append(ClusterEvent("Node", "Annotation"))
    return events


def _scaled_down(old: PodInfo, new: PodInfo) -> bool:
    after = new.requests
    return any(after.get(name, 0) < amount for name, amount in old.requests.items())


def _changed(before: Pod, after: Pod) -> bool:
    """Whether a field other than the status and the API server's own metadata changed."""
    return (
        before.metadata.annotations != after.metadata.annotations
        or before.metadata.deletion_timestamp != after.metadata.deletion_timestamp
        or before.spec != after.spec
    )


def _conditions(node: Node) -> dict[str, str]:
    return {condition.type: condition.status for condition in node.status.conditions}
