"""From amounts to what the Node should carry, and from that to patches of exactly what changed (spec 04 §6.1-3). Pure.

A status patch is strategic (conditions are a list with a key) and carries capacity, allocatable, our condition and our
annotations on the status endpoint, which keeps metadata of built-in kinds. Both name the resourceVersion they were made
for: a conflict is worked out afresh.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from control.manager.noderesource.reserved import third_party
from control.manager.noderesource.units import milli_ratio
from control.manager.noderesource.zones import is_diff
from koordlet.api import names
from koordlet.api.annotations.node import ORIGIN_ALLOCATABLE, OriginAllocatable
from koordlet.api.core import Node
from koordlet.api.lending import LENDING_REASONS
from koordlet.api.quantity import ZERO, Quantity
from koordlet.api.wire import Time, WireError

BATCH: Final = (names.RESOURCE_BATCH_CPU, names.RESOURCE_BATCH_MEMORY)
MID: Final = (names.RESOURCE_MID_CPU, names.RESOURCE_MID_MEMORY)
LENT: Final = (*MID, *BATCH)

Totals = Mapping[str, Quantity | None]
"""Resource -> amount; None: it must not be on the Node. What is not named stays as it is."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What the plug-ins want of one Node."""

    lent: Totals = field(default_factory=dict)
    """batch and mid, before normalization and third parties"""
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
    origin: str | None
    """the annotation of what batch was before third parties; None: leave it"""
    third: Mapping[str, Quantity]
    problem: str = ""
    """an annotation of the Node that could not be read, and was passed over"""


def prepare(node: Node, plan: Plan) -> Prepared:
    """The last steps of the calculation, which need the Node as it is."""
    resources = dict(plan.lent)
    for name, amount in resources.items():
        if amount is None:
            continue
        if name == names.RESOURCE_BATCH_CPU and plan.ratio is not None and plan.ratio > 1:
            amount = Quantity.milli(milli_ratio(amount.milli_value(), plan.ratio))
        resources[name] = Quantity.of(amount.value(), amount.fmt)
    if not any(name in resources for name in BATCH):
        return Prepared({**resources, **plan.devices}, None, {})
    before = {name: resources.get(name) or ZERO for name in BATCH}
    origin = ORIGIN_ALLOCATABLE.text(OriginAllocatable(resources={**_origin(node), **before}))
    third: dict[str, Quantity] = {}
    problem = ""
    if all(resources.get(name) is not None for name in BATCH):
        try:
            held = third_party(node)
        except WireError as error:
            held, problem = {}, str(error)
        third = {name: held[name] for name in BATCH if name in held}
        for name, amount in third.items():
            resources[name] = max(before[name] - amount, ZERO)
    return Prepared({**resources, **plan.devices}, origin, third, problem)


def _origin(node: Node) -> dict[str, Quantity]:
    try:
        known = ORIGIN_ALLOCATABLE.get(node.metadata.annotations)
    except WireError:
        return {}  # ours: what cannot be read is written anew
    return known.resources if known is not None else {}


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
    node: Node, prepared: Prepared, *, lending: str, reason: str, message: str, turned: bool, now: float
) -> dict[str, Any]:
    """The strategic merge patch for `nodes/status`; empty when the Node holds all that already.

    Without other changes a new explanation is written only when `turned`: its reason or its holds differ.
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
    if prepared.origin is not None and not _same_origin(node, prepared.origin):
        annotations[names.ANNOTATION_ORIGIN_EXTENDED_ALLOCATABLE] = prepared.origin
    old = node.status.condition(names.CONDITION_LENDING)
    if not (status or annotations or turned):
        return {}
    annotations[names.ANNOTATION_LENDING] = lending
    state, moment = "True" if reason in LENDING_REASONS else "False", str(Time.from_unix(now))
    since = moment
    if old is not None and old.status == state and old.last_transition_time is not None:
        since = str(old.last_transition_time)
    status["conditions"] = [
        {
            "type": names.CONDITION_LENDING,
            "status": state,
            "reason": reason,
            "message": message,
            "lastHeartbeatTime": moment,
            "lastTransitionTime": since,
        }
    ]
    meta = {"resourceVersion": node.metadata.resource_version, "annotations": annotations}
    return {"metadata": meta, "status": status}


def _same_origin(node: Node, text: str) -> bool:
    have = node.metadata.annotations.get(names.ANNOTATION_ORIGIN_EXTENDED_ALLOCATABLE)
    if have is None or have == text:
        return have == text
    try:
        old, new = ORIGIN_ALLOCATABLE.get(node.metadata.annotations), msgspec.json.decode(text)["resources"]
    except WireError:
        return False
    return old is not None and {name: str(amount) for name, amount in old.resources.items()} == new


def meta_patch(node: Node, plan: Plan) -> dict[str, Any]:
    """The merge patch for the Node's annotations and labels; empty when there is nothing to do."""
    annotations = {key: text for key, text in plan.annotations.items() if node.metadata.annotations.get(key) != text}
    labels = {key: text for key, text in plan.labels.items() if node.metadata.labels.get(key) != text}
    meta = {name: part for name, part in (("annotations", annotations), ("labels", labels)) if part}
    return {"metadata": {**meta, "resourceVersion": node.metadata.resource_version}} if meta else {}
