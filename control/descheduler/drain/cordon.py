"""Cordons of drains: taint and labels of a node, and the record of what a drain added (spec 07 §12.2-1). Pure.

The record is an annotation of the Node, written in the same patch as taint and labels. After a crash, and after the
DrainNode is deleted, it lists what to remove. Labels that the node had before are neither changed nor removed.
"""

from __future__ import annotations

from typing import Any

import msgspec

from koordlet.api.core import Node
from koordlet.api.core.selectors import Taint
from koordlet.api.crs.drain import CORDON_LABEL, CORDON_TAINT, DrainNode
from koordlet.api.encoding import wire
from koordlet.api.names import ANNOTATION_DRAIN_CORDON, LABEL_DRAIN_NODE, LABEL_DRAIN_PLANNING

Json = dict[str, Any]
NO_SCHEDULE = "NoSchedule"


class CordonRecord(msgspec.Struct, rename="camel"):
    """What a drain added to a node."""

    drain_node: str
    uid: str
    taint: str = ""
    """value of the taint; empty: no taint"""
    labels: dict[str, str] = msgspec.field(default_factory=dict)


def record_of(node: Node) -> CordonRecord | None:
    """The record; None without one, or if it is malformed."""
    text = node.metadata.annotations.get(ANNOTATION_DRAIN_CORDON)
    try:
        return msgspec.json.decode(text, type=CordonRecord) if text else None
    except msgspec.MsgspecError:
        return None


def cordon(node: Node, drain: DrainNode) -> Json | None:
    """The patch that cordons the node; None if the record shows that it is done.

    The record of an earlier drain is continued: this drain removes its taint and labels, too.
    """
    earlier = record_of(node)
    if earlier is not None and earlier.uid == drain.metadata.uid:
        return None
    policy = drain.spec.cordon_policy
    desired_labels = {LABEL_DRAIN_PLANNING: ""}
    if policy is not None and policy.mode == CORDON_LABEL:
        desired_labels |= policy.labels
    added = {key: value for key, value in desired_labels.items() if key not in node.metadata.labels}
    record = CordonRecord(drain.metadata.name, drain.metadata.uid, labels=added)
    if earlier is not None:
        record.labels = {**earlier.labels, **added}
        record.taint = earlier.taint
    taints = list(node.spec.taints)
    if policy is not None and policy.mode == CORDON_TAINT and not record.taint:
        record.taint = drain.metadata.name[:63].rstrip("-.")  # the longest value of a taint
        taints.append(Taint(key=LABEL_DRAIN_NODE, value=record.taint, effect=NO_SCHEDULE))
    return _patch(node, taints, dict(added), msgspec.json.encode(record).decode())


def uncordon(node: Node) -> Json | None:
    """The patch that removes what the record lists; None without a record."""
    record = record_of(node)
    if record is None:
        return None
    taints = [each for each in node.spec.taints if not record.taint or not _is_own(each, record.taint)]
    present = node.metadata.labels
    removed: dict[str, str | None] = {key: None for key, value in record.labels.items() if present.get(key) == value}
    return _patch(node, taints, removed, None)


def _is_own(taint: Taint, value: str) -> bool:
    return taint.key == LABEL_DRAIN_NODE and taint.value == value and taint.effect == NO_SCHEDULE


def _patch(node: Node, taints: list[Taint], labels: Json, record: str | None) -> Json:
    body: Json = {
        "metadata": {
            "resourceVersion": node.metadata.resource_version,
            "labels": labels,
            "annotations": {ANNOTATION_DRAIN_CORDON: record},
        }
    }
    if taints != node.spec.taints:
        body["spec"] = {"taints": wire.to_builtins(taints) or None}
    return body
