"""What an update changed, as the events that plugins wait for (spec 05 §3.3, §3.7). Pure."""

from __future__ import annotations

from typing import Final

from control.scheduler.framework.plugin import Event
from control.scheduler.state.pods import PodInfo
from koordlet.api.core import Node, Pod

POD_ADD: Final = Event("AssignedPod", "Add")
POD_DELETE: Final = Event("AssignedPod", "Delete")
EVERYTHING: Final = Event("*", "*")


def pod_changes(old: PodInfo, new: PodInfo, resource: str) -> list[Event]:
    """Events of a pod's update; `resource` is `AssignedPod` or `UnscheduledPod`. Empty: nothing that matters."""
    before, after = old.pod, new.pod
    found = []
    if before.metadata.labels != after.metadata.labels:
        found.append(Event(resource, "Label"))
    if _scaled_down(old, new):
        found.append(Event(resource, "ScaleDown"))
    if before.spec.tolerations != after.spec.tolerations:
        found.append(Event(resource, "Toleration"))
    if before.spec.scheduling_gates and not after.spec.scheduling_gates:
        found.append(Event(resource, "GatesEliminated"))
    if not found and _changed(before, after):
        found.append(Event(resource, "Update"))
    return found


def node_changes(old: Node, new: Node) -> list[Event]:
    """Events of a node's update. Heartbeats alone are none."""
    found = []
    if old.spec.unschedulable != new.spec.unschedulable or old.spec.taints != new.spec.taints:
        found.append(Event("Node", "Taint"))
    if old.status.allocatable != new.status.allocatable:
        found.append(Event("Node", "Allocatable"))
    if old.metadata.labels != new.metadata.labels:
        found.append(Event("Node", "Label"))
    if _conditions(old) != _conditions(new):
        found.append(Event("Node", "Condition"))
    if old.metadata.annotations != new.metadata.annotations:
        found.append(Event("Node", "Annotation"))
    return found


def _scaled_down(old: PodInfo, new: PodInfo) -> bool:
    after = new.requests
    return any(after.get(name, 0) < amount for name, amount in old.requests.items())


def _changed(before: Pod, after: Pod) -> bool:
    """Whether anything but the status and the book-keeping of the API server changed."""
    return (
        before.metadata.annotations != after.metadata.annotations
        or before.metadata.deletion_timestamp != after.metadata.deletion_timestamp
        or before.spec != after.spec
    )


def _conditions(node: Node) -> dict[str, str]:
    return {condition.type: condition.status for condition in node.status.conditions}
