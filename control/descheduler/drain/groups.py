"""DrainNodeGroup: which nodes of a group are planned, and which drains are confirmed (spec 07 §12.3). Pure.

Differences from the specification: a drain whose pods have no room is rejected when planning ends, so that it does not
keep its node cordoned. Reservations on a node that is planned later are planned again, so nodes need no group label.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from koordlet.api.crs import drain as d
from koordlet.api.crs.drain import DrainNode, DrainNodeGroup, DrainNodeGroupStatus
from koordlet.api.names import LABEL_DRAIN_ABORT, LABEL_DRAIN_CLEAN_TAINT, TRUE

COMPARED: Final = ("cpu", "memory")
ENDED: Final = (d.SUCCEEDED_GROUP, d.FAILED_GROUP, d.ABORTED)


@dataclass(frozen=True, slots=True)
class DrainableNode:
    """A node of a group: cpu in milli-cores, memory in bytes."""

    name: str
    allocatable: dict[str, int]
    free: dict[str, int]

    @property
    def score(self) -> float:
        """Mean share of what is free, in percent: the emptiest node has the highest score."""
        return sum(100 * self.free[name] / max(self.allocatable[name], 1) for name in COMPARED) / len(COMPARED)


@dataclass(slots=True)
class GroupStep:
    """What is done for a group in one round; then `status` is written."""

    status: DrainNodeGroupStatus
    plan: str = ""
    """the node to create a DrainNode for"""
    confirm: list[tuple[DrainNode, str]] = field(default_factory=list)
    """drains that get a new confirmState"""


def next_node(group: DrainNodeGroup, rooms: Sequence[DrainableNode], planned: frozenset[str]) -> tuple[str, str]:
    """The next node to plan; or an empty name and the reason why planning ends."""
    reserved = group.spec.termination_policy.percentage_of_resource_reserved or 0
    candidates = sorted((room for room in rooms if room.name not in planned), key=lambda room: (-room.score, room.name))
    if not candidates:
        return "", "every node is planned"
    chosen, rest = candidates[0], candidates[1:]
    leaving = [chosen, *(room for room in rooms if room.name in planned)]
    for name in COMPARED:
        used = sum(room.allocatable[name] - room.free[name] for room in leaving)
        free = sum(room.free[name] for room in rest) - used
        total = sum(room.allocatable[name] for room in rest)
        if free < 0 or 100 * free < reserved * total:
            return "", f"without node {chosen.name} too little {name} would be free"
    return chosen.name, ""


def advance_group(group: DrainNodeGroup, drains: Sequence[DrainNode], rooms: Sequence[DrainableNode]) -> GroupStep:
    """The next step of the active group; `drains` are those of the group."""
    step = GroupStep(_counted(group.status, drains))
    labels, phase = group.metadata.labels, group.status.phase or d.PENDING
    if phase in ENDED:
        if labels.get(LABEL_DRAIN_CLEAN_TAINT) == TRUE:
            step.confirm = [(drain, d.ABORT_REQUESTED) for drain in drains if drain.status.phase == d.COMPLETE]
        return step
    if labels.get(LABEL_DRAIN_ABORT) == TRUE:
        return aborted_group(step, drains, "aborted by its label")
    match phase:
        case d.PENDING:
            step.status.phase = d.PLANNING
        case d.PLANNING:
            _plan(step, group, drains, rooms)
        case d.WAITING_GROUP:
            _confirm(step, group, drains)
        case d.RUNNING:
            _follow(step, drains)
    return step


def aborted_group(step: GroupStep, drains: Sequence[DrainNode], why: str) -> GroupStep:
    """Abort every drain; the group is Aborted when all of them are."""
    open_drains = [drain for drain in drains if drain.status.phase != d.ABORTED]
    step.confirm = [
        (drain, d.ABORT_REQUESTED) for drain in open_drains if drain.spec.confirm_state != d.ABORT_REQUESTED
    ]
    step.status.message = why
    if not open_drains:
        step.status.phase = d.ABORTED
    return step


def is_available(drain: DrainNode) -> bool:
    """Whether every pod of the drain has had a place."""
    return drain.status.is_true(d.ONCE_AVAILABLE)


def is_unavailable(drain: DrainNode) -> bool:
    """Whether a pod of the drain cannot get a place now, or the drain has ended."""
    stuck = drain.status.is_true(d.UNAVAILABLE_RESERVATION) or drain.status.is_true(d.UNMIGRATABLE_POD)
    return not is_available(drain) and (stuck or drain.status.phase == d.ABORTED)


def _is_confirmed(drain: DrainNode) -> bool:
    return drain.spec.confirm_state == d.CONFIRMED


def _plan(step: GroupStep, group: DrainNodeGroup, drains: Sequence[DrainNode], rooms: Sequence[DrainableNode]) -> None:
    undecided = [drain for drain in drains if not is_available(drain) and not is_unavailable(drain)]
    if undecided:
        step.status.message = f"waits for the plan of {undecided[0].metadata.name}"
        return
    most = group.spec.termination_policy.max_node_count
    if most is not None and sum(map(is_available, drains)) >= most:
        node, why = "", f"maxNodeCount is {most}"
    else:
        node, why = next_node(group, rooms, frozenset(drain.spec.node_name for drain in drains))
    if node:
        step.plan, step.status.message = node, f"plans node {node}"
        return
    step.confirm = [
        (drain, d.REJECTED) for drain in drains if is_unavailable(drain) and drain.spec.confirm_state != d.REJECTED
    ]
    step.status.phase, step.status.message = d.WAITING_GROUP, f"planning has ended: {why}"


def _confirm(step: GroupStep, group: DrainNodeGroup, drains: Sequence[DrainNode]) -> None:
    policy, confirmed = group.spec.execution_policy, sum(map(_is_confirmed, drains))
    ready = sorted((drain for drain in drains if _is_left(drain)), key=lambda drain: drain.metadata.name)
    most = len(ready) if policy.partition is None else max(policy.partition - confirmed, 0)
    if not policy.paused:
        step.confirm = [(drain, d.CONFIRMED) for drain in ready[:most]]
    if step.confirm or not ready:
        step.status.phase, step.status.message = d.RUNNING, ""
    elif policy.paused:
        step.status.message = "executionPolicy is paused"
    else:
        step.status.message = f"executionPolicy.partition of {policy.partition} is reached"


def _follow(step: GroupStep, drains: Sequence[DrainNode]) -> None:
    confirmed = [drain for drain in drains if _is_confirmed(drain)]
    failed = [drain.metadata.name for drain in drains if drain.status.phase == d.ABORTED and is_available(drain)]
    if failed:
        step.status.phase, step.status.message = d.FAILED_GROUP, f"{failed[0]} was aborted"
    elif all(drain.status.phase == d.COMPLETE for drain in confirmed):
        left = any(map(_is_left, drains))
        step.status.phase = d.WAITING_GROUP if left else d.SUCCEEDED_GROUP
        step.status.message = "" if left else f"{len(confirmed)} nodes are drained"


def _is_left(drain: DrainNode) -> bool:
    """Whether the drain may still be confirmed."""
    return is_available(drain) and drain.spec.confirm_state in ("", d.WAIT_FOR_CONFIRM)


def _counted(status: DrainNodeGroupStatus, drains: Sequence[DrainNode]) -> DrainNodeGroupStatus:
    return msgspec.structs.replace(
        status,
        phase=status.phase or d.PENDING,
        total=len(drains),
        unavailable=sum(map(is_unavailable, drains)),
        available=sum(map(_is_left, drains)),
        running=sum(_is_confirmed(drain) and drain.status.phase not in (d.COMPLETE, d.ABORTED) for drain in drains),
        succeeded=sum(drain.status.phase == d.COMPLETE for drain in drains),
        failed=sum(drain.status.phase == d.ABORTED and is_available(drain) for drain in drains),
    )
