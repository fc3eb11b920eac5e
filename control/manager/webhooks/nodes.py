"""Nodes: allocatable amplified on its way in (spec 04 §14.1), and labels that two node strategies would take (§14.2).

The kubelet writes a node's real allocatable again and again; the webhook keeps that in annotation `raw-allocatable`
and shows the amplified amounts. A broken annotation must not stop the kubelet: the object then passes unchanged, and
the caller says why. If the kubelet's new value happens to equal the amplified one, the change goes unnoticed.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping

from control.manager.webhooks.objects import Json, child, own_annotations, typed
from koordlet.api import names
from koordlet.api.annotations.node import RAW_ALLOCATABLE, amplification_ratios
from koordlet.api.core import Node
from koordlet.api.encoding.quantity import Quantity
from koordlet.api.resources import ResourceList, amplified_allocatable, next_raw_allocatable
from koordlet.api.sloconfig.webhook import Rejection, node_conflict

_AMPLIFIED = (names.RESOURCE_CPU, names.RESOURCE_MEMORY)


def amplified(node: Json, old: Json | None) -> Json:
    """The node of a status update as it should be stored; the arguments stay as they are.

    Raises WireError when the node's ratio or raw annotation can't be read.
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
    raw: ResourceList | None = RAW_ALLOCATABLE.get(annotations)
    was = typed(old, Node).status.allocatable if old is not None else {}
    fresh = next_raw_allocatable(was, view.status.allocatable, raw)
    result = copy.deepcopy(node)
    if fresh is not None:
        raw = fresh
        own_annotations(result)[names.ANNOTATION_RAW_ALLOCATABLE] = RAW_ALLOCATABLE.text(fresh)
    wanted = amplified_allocatable(view.status.allocatable, raw or {}, ratios)
    allocatable = child(child(result, "status"), "allocatable")
    for name in _AMPLIFIED:
        amount: Quantity | None = wanted.get(name)
        if amount is not None and amount != view.status.allocatable.get(name):
            allocatable[name] = str(amount)
    return result


def label_conflict(
    config: Mapping[str, str] | None, name: str, labels: Mapping[str, str], old: Mapping[str, str] | None
) -> Rejection | None:
    """Whether new labels (`old` None: a new node) make two strategies of the SLO ConfigMap take the node."""
    if config is None or (old is not None and old == labels):
        return None
    return node_conflict(config, name, labels)
