"""What a Node says of itself: capacity, what kubelet and annotation keep back, third parties. Pure."""

from __future__ import annotations

from typing import NamedTuple

from control.manager.noderesource.units import ZERO, Amounts, amounts
from koordlet.api import priority
from koordlet.api.annotations.node import RAW_ALLOCATABLE, RESERVATION, THIRD_PARTY
from koordlet.api.core import Node
from koordlet.api.encoding.quantity import Quantity
from koordlet.api.encoding.wire import WireError
from koordlet.api.resources import reserved_resources


class Own(NamedTuple):
    """Of one node."""

    capacity: Amounts
    kubelet: Amounts
    """kept back by the kubelet: capacity less allocatable"""
    annotation: Amounts
    """kept back by annotation `node.koordinator.sh/reservation`, its listed CPUs counted"""


def own_facts(node: Node) -> Own:
    """Annotations that cannot be read count as missing (spec 04 §6.3)."""
    capacity, allocatable = amounts(node.status.capacity), amounts({**node.status.allocatable, **_raw(node)})
    kubelet = (max(capacity[0] - allocatable[0], 0), max(capacity[1] - allocatable[1], 0))
    return Own(capacity, kubelet, _annotated(node))


def _raw(node: Node) -> dict[str, Quantity]:
    """Allocatable before amplification, which would hide what the kubelet keeps."""
    try:
        return RAW_ALLOCATABLE.get(node.metadata.annotations) or {}
    except WireError:
        return {}


def _annotated(node: Node) -> Amounts:
    try:
        return amounts(reserved_resources(RESERVATION.get(node.metadata.annotations)))
    except (WireError, ValueError):
        return ZERO


def third_party(node: Node) -> dict[str, Quantity]:
    """What third parties hold of the batch resources. Raises WireError when the annotation cannot be read."""
    return THIRD_PARTY.get(node.metadata.annotations).total(priority.BATCH)
