"""Nodes: amplification of allocatable (spec 04 §14.1), and labels that match two node strategies (§14.2). Pure.

The kubelet periodically writes a node's real allocatable. The webhook stores it in annotation `raw-allocatable` and
replaces it by the amplified amounts. A malformed annotation must not block the kubelet: the object is then admitted
unchanged, and the caller reports the reason. If the kubelet changed allocatable while no webhook answered, its next
report corrects `raw-allocatable`. If its new value equals the amplified value, the change is not detected.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping

from control.manager.webhooks.objects import Json, child, own_annotations, typed
from koordlet.api import names
from koordlet.api.annotations.node import RAW_ALLOCATABLE, amplification_ratios
from koordlet.api.core import Node
from koordlet.api.encoding.quantity import Quantity
from koordlet.api.encoding.wire import WireError
from koordlet.api.resources import ResourceList, amplified_allocatable, next_raw_allocatable
from koordlet.api.sloconfig.webhook import Rejection, node_conflict

_AMPLIFIED = (names.RESOURCE_CPU, names.RESOURCE_MEMORY)


def amplified(node: Json, old: Json | None, *, reported: bool = False) -> Json:
    """The node of a status update with amplified allocatable; the arguments are not modified. `reported`: by the
    kubelet of the node, whose reports contain the amounts that it has.

    Raises WireError for a malformed ratio annotation, and for a malformed raw-allocatable annotation that cannot be
    replaced because cpu and memory are unchanged: they may be amplified already.
    """
    view = typed(node, Node)
    annotations = view.metadata.annotations
    if not annotations.get(names.ANNOTATION_RESOURCE_AMPLIFICATION_RATIO):
        if names.ANNOTATION_RAW_ALLOCATABLE not in annotations:
            return node
        result = copy.deepcopy(node)
        del own_annotations(result)[names.ANNOTATION_RAW_ALLOCATABLE]
        return result
    if not view.status.allocatable:
        return node
    ratios = amplification_ratios(annotations) or {}
    old_allocatable = typed(old, Node).status.allocatable if old is not None else {}
    raw: ResourceList | None
    try:
        raw = RAW_ALLOCATABLE.get(annotations)
    except WireError:
        if all(old_allocatable.get(name) == view.status.allocatable.get(name) for name in _AMPLIFIED):
            raise
        raw = None
    new_raw = next_raw_allocatable(old_allocatable, view.status.allocatable, raw)
    if new_raw is None and reported and raw and _is_stale(raw, view.status.allocatable, ratios):
        new_raw = next_raw_allocatable({}, view.status.allocatable, None)
    result = copy.deepcopy(node)
    if new_raw is not None:
        raw = new_raw
        own_annotations(result)[names.ANNOTATION_RAW_ALLOCATABLE] = RAW_ALLOCATABLE.text(new_raw)
    amounts = amplified_allocatable(view.status.allocatable, raw or {}, ratios)
    allocatable = child(child(result, "status"), "allocatable")
    for name in _AMPLIFIED:
        amount: Quantity | None = amounts.get(name)
        if amount is not None and amount != view.status.allocatable.get(name):
            allocatable[name] = str(amount)
    return result


def _is_stale(raw: ResourceList, incoming: ResourceList, ratios: Mapping[str, float]) -> bool:
    """Whether the amounts are neither those of `raw` nor amplified ones: they were stored without this webhook."""
    larger = amplified_allocatable(raw, raw, ratios)
    return any(incoming.get(name) not in (raw.get(name), larger.get(name)) for name in _AMPLIFIED)


def label_conflict(
    config: Mapping[str, str] | None, name: str, labels: Mapping[str, str], old: Mapping[str, str] | None
) -> Rejection | None:
    """The error if the node's labels match two strategies of one key of the SLO ConfigMap; `old` None: a new node."""
    if config is None or (old is not None and old == labels):
        return None
    return node_conflict(config, name, labels)
