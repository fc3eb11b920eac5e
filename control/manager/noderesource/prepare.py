"""From amounts to what the Node should carry, and from that to patches of exactly what changed (spec 04 §6.1-3). Pure.

A status patch is strategic (conditions are a list with a key) and carries capacity, allocatable, our condition and our
annotations on the status endpoint, which keeps metadata of built-in kinds. Both name the resourceVersion they were made
for: a conflict is worked out afresh.
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
from koordlet.api.pages.overcommit import LENDING, LENDING_REASONS, Lending

BATCH: Final = (names.RESOURCE_BATCH_CPU, names.RESOURCE_BATCH_MEMORY)
MID: Final = (names.RESOURCE_MID_CPU, names.RESOURCE_MID_MEMORY)
LENT: Final = (*MID, *BATCH)

Totals = Mapping[str, Quantity | None]
"""Resource -> amount; None: it must not be on the Node. What is not named stays as it is."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What the plug-ins want of one Node."""

    lent: Totals = field(default_factory=dict)
    """batch and mid in whole milli-cores and bytes, before normalization and third parties"""
    devices: Totals = field(default_factory=dict)
    ratio: float | None = None
    """CPU normalization ratio just worked out"""
    annotations: Mapping[str, str | None] = field(default_factory=dict)
    """ratios; None: must not be there"""
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Prepared:
    """What the Node's status should hold."""

    resources: Totals
    before: Mapping[str, Quantity]
    """batch before third parties; empty: batch is not ours to write"""
    third: Mapping[str, Quantity]
    problem: str = ""
    """an annotation of the Node that could not be read, and was passed over"""


def prepare(node: Node, plan: Plan) -> Prepared:
    """The last steps of the calculation, which need the Node as it is."""
    resources = dict(plan.lent)
    cpu = resources.get(names.RESOURCE_BATCH_CPU)
    if cpu is not None and plan.ratio is not None and plan.ratio > 1:
        thousandths = milli_ratio(cpu.milli_value(), plan.ratio)
        resources[names.RESOURCE_BATCH_CPU] = Quantity.of(-(-thousandths // 1000))
    if not any(name in resources for name in BATCH):
        return Prepared({**resources, **plan.devices}, {}, {})
    before = {name: resources.get(name) or ZERO for name in BATCH}
    third: dict[str, Quantity] = {}
    problem = ""
    lends = all(resources.get(name) is not None for name in BATCH)
    if lends and names.ANNOTATION_THIRD_PARTY_ALLOCATIONS in node.metadata.annotations:
        try:
            held = third_party(node)
        except WireError as error:
            held, problem = {}, str(error)
        third = {name: held[name] for name in BATCH if name in held}
        for name, amount in third.items():
            resources[name] = max(before[name] - amount, ZERO)
    return Prepared({**resources, **plan.devices}, before, third, problem)


def origin_text(node: Node, before: Mapping[str, Quantity]) -> str | None:
    """The annotation of what batch was before third parties, with other resources that it has; None: leave it."""
    try:
        known = ORIGIN_ALLOCATABLE.get(node.metadata.annotations)
    except WireError:
        known = None  # ours: what cannot be read is written anew
    resources = {**(known.resources if known is not None else {}), **before}
    if not before or (known is not None and known.resources == resources):
        return None
    return ORIGIN_ALLOCATABLE.text(OriginAllocatable(resources=resources))


def must_write(node: Node, prepared: Prepared, devices: Iterable[str], threshold: float) -> bool:
    """Whether something moved by more than the threshold; device totals at all (spec 04 §6.2)."""
    exact = frozenset(devices)
    for name, wanted in prepared.resources.items():
        have = node.status.allocatable.get(name)
        if have is None or wanted is None:
            if (have is None) != (wanted is None):
                return True
        elif name in exact:
            if have != wanted:
                return True
        elif is_diff(have, wanted, threshold):
            return True
    return False


def status_patch(
    node: Node, prepared: Prepared, explain: Callable[[], Lending], *, turned: bool, now: float
) -> dict[str, Any]:
    """The strategic merge patch for `nodes/status`; empty when the Node holds all that already.

    Without other changes a new explanation is written only when `turned`: its reason or its holds differ. It is asked
    for only when it is written.
    """
    status: dict[str, Any] = {}
    for part, have in (("capacity", node.status.capacity), ("allocatable", node.status.allocatable)):
        changed = {
            name: None if amount is None else str(amount)
            for name, amount in prepared.resources.items()
            if have.get(name) != amount
        }
        if changed:
            status[part] = changed
    annotations: dict[str, str] = {}
    origin = origin_text(node, prepared.before)
    if origin is not None:
        annotations[names.ANNOTATION_ORIGIN_EXTENDED_ALLOCATABLE] = origin
    if not (status or annotations or turned):
        return {}
    lending, old = explain(), node.status.condition(names.CONDITION_LENDING)
    annotations[names.ANNOTATION_LENDING] = LENDING.text(lending)
    state, moment = "True" if lending.reason in LENDING_REASONS else "False", str(Time.from_unix(now))
    since = moment
    if old is not None and old.status == state and old.last_transition_time is not None:
        since = str(old.last_transition_time)
    status["conditions"] = [
        {
            "type": names.CONDITION_LENDING,
            "status": state,
            "reason": lending.reason,
            "message": lending.message,
            "lastHeartbeatTime": moment,
            "lastTransitionTime": since,
        }
    ]
    meta = {"resourceVersion": node.metadata.resource_version, "annotations": annotations}
    return {"metadata": meta, "status": status}


def meta_patch(node: Node, plan: Plan) -> dict[str, Any]:
    """The merge patch for the Node's annotations and labels; empty when there is nothing to do."""
    annotations = {key: text for key, text in plan.annotations.items() if node.metadata.annotations.get(key) != text}
    labels = {key: text for key, text in plan.labels.items() if node.metadata.labels.get(key) != text}
    meta = {name: part for name, part in (("annotations", annotations), ("labels", labels)) if part}
    return {"metadata": {**meta, "resourceVersion": node.metadata.resource_version}} if meta else {}
