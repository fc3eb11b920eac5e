"""From amounts to the desired fields of the Node, and to patches of exactly the changed fields (spec 04 §6.1-3). Pure.

The status patch is a strategic merge patch (conditions are a list with a merge key). It holds capacity, allocatable,
the condition ColocationLending and Koordinator's annotations: the status endpoint of built-in kinds also stores
metadata. Both patches contain the resourceVersion they were computed for; after a conflict they are recomputed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from control.manager.noderesource.reserved import third_party
from control.manager.noderesource.units import milli_ratio
from control.manager.noderesource.zones import is_diff
from koordlet.api import names
from koordlet.api.annotations.node import ORIGIN_ALLOCATABLE, OriginAllocatable
from koordlet.api.core import Node
from koordlet.api.encoding.quantity import ZERO, Quantity
from koordlet.api.encoding.wire import Time, WireError
from koordlet.api.pages.overcommit import OVERCOMMIT, OVERCOMMIT_REASONS, OvercommitExplanation

BATCH: Final = (names.RESOURCE_BATCH_CPU, names.RESOURCE_BATCH_MEMORY)
MID: Final = (names.RESOURCE_MID_CPU, names.RESOURCE_MID_MEMORY)
OVERCOMMIT_RESOURCES: Final = (*MID, *BATCH)

Totals = Mapping[str, Quantity | None]
"""Resource -> amount; None: it is removed from the Node. Resources that are not listed stay unchanged."""


@dataclass(frozen=True, slots=True)
class NodePlan:
    """The plug-ins' desired values for one Node."""

    overcommit: Totals = field(default_factory=dict)
    """batch and mid in whole milli-cores and bytes, before normalization and third parties"""
    devices: Totals = field(default_factory=dict)
    ratio: float | None = None
    """CPU normalization ratio of this pass"""
    annotations: Mapping[str, str | None] = field(default_factory=dict)
    """ratio annotations; None: removed"""
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Prepared:
    """The desired resources of the Node's status."""

    resources: Totals
    before: Mapping[str, Quantity]
    """batch before third parties; empty: batch is not written"""
    third: Mapping[str, Quantity]
    problem: str = ""
    """an annotation of the Node that could not be read and was ignored"""


def prepare(node: Node, plan: NodePlan) -> Prepared:
    """The last steps of the calculation, which need the current Node: normalization and third parties."""
    resources = dict(plan.overcommit)
    cpu = resources.get(names.RESOURCE_BATCH_CPU)
    if cpu is not None and plan.ratio is not None and plan.ratio > 1:
        thousandths = milli_ratio(cpu.milli_value(), plan.ratio)
        resources[names.RESOURCE_BATCH_CPU] = Quantity.of(-(-thousandths // 1000))
    if not any(name in resources for name in BATCH):
        return Prepared({**resources, **plan.devices}, {}, {})
    before = {name: resources.get(name) or ZERO for name in BATCH}
    third: dict[str, Quantity] = {}
    problem = ""
    overcommits = all(resources.get(name) is not None for name in BATCH)
    if overcommits and names.ANNOTATION_THIRD_PARTY_ALLOCATIONS in node.metadata.annotations:
        try:
            allocated = third_party(node)
        except WireError as error:
            allocated, problem = {}, str(error)
        third = {name: allocated[name] for name in BATCH if name in allocated}
        for name, amount in third.items():
            resources[name] = max(before[name] - amount, ZERO)
    return Prepared({**resources, **plan.devices}, before, third, problem)


def origin_text(node: Node, before: Mapping[str, Quantity]) -> str | None:
    """The value of the annotation with batch before third parties; its other resources are kept. None: unchanged."""
    try:
        current = ORIGIN_ALLOCATABLE.get(node.metadata.annotations)
    except WireError:
        current = None  # only the manager writes it: a malformed value is replaced
    resources = {**(current.resources if current is not None else {}), **before}
    if not before or (current is not None and current.resources == resources):
        return None
    return ORIGIN_ALLOCATABLE.text(OriginAllocatable(resources=resources))


def must_write(node: Node, prepared: Prepared, devices: Iterable[str], threshold: float) -> bool:
    """Whether an amount changed by more than the threshold, or a device total at all (spec 04 §6.2)."""
    exact = frozenset(devices)
    for name, desired in prepared.resources.items():
        current = node.status.allocatable.get(name)
        if current is None or desired is None:
            if (current is None) != (desired is None):
                return True
        elif name in exact:
            if current != desired:
                return True
        elif is_diff(current, desired, threshold):
            return True
    return False


def status_patch(
    node: Node,
    prepared: Prepared,
    explain: Callable[[], OvercommitExplanation],
    *,
    explanation_changed: bool,
    now: float,
) -> dict[str, Any]:
    """The strategic merge patch for `nodes/status`; empty when the Node is up to date.

    If nothing else changed, the explanation is written only when `explanation_changed`: its reason or its holds differ.
    `explain` is called only when the explanation is written.
    """
    status: dict[str, Any] = {}
    for field_name, current in (("capacity", node.status.capacity), ("allocatable", node.status.allocatable)):
        changed = {
            name: None if amount is None else str(amount)
            for name, amount in prepared.resources.items()
            if current.get(name) != amount
        }
        if changed:
            status[field_name] = changed
    annotations: dict[str, str] = {}
    origin = origin_text(node, prepared.before)
    if origin is not None:
        annotations[names.ANNOTATION_ORIGIN_EXTENDED_ALLOCATABLE] = origin
    if not (status or annotations or explanation_changed):
        return {}
    lending, old = explain(), node.status.condition(names.CONDITION_OVERCOMMIT)
    annotations[names.ANNOTATION_OVERCOMMIT] = OVERCOMMIT.text(lending)
    state, moment = "True" if lending.reason in OVERCOMMIT_REASONS else "False", str(Time.from_unix(now))
    since = moment
    if old is not None and old.status == state and old.last_transition_time is not None:
        since = str(old.last_transition_time)
    status["conditions"] = [
        {
            "type": names.CONDITION_OVERCOMMIT,
            "status": state,
            "reason": lending.reason,
            "message": lending.message,
            "lastHeartbeatTime": moment,
            "lastTransitionTime": since,
        }
    ]
    meta = {"resourceVersion": node.metadata.resource_version, "annotations": annotations}
    return {"metadata": meta, "status": status}


def meta_patch(node: Node, plan: NodePlan) -> dict[str, Any]:
    """The merge patch for the Node's annotations and labels; empty when they are up to date."""
    annotations = {key: text for key, text in plan.annotations.items() if node.metadata.annotations.get(key) != text}
    labels = {key: text for key, text in plan.labels.items() if node.metadata.labels.get(key) != text}
    meta = {name: values for name, values in (("annotations", annotations), ("labels", labels)) if values}
    return {"metadata": {**meta, "resourceVersion": node.metadata.resource_version}} if meta else {}
