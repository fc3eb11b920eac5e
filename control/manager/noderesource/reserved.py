"""Capacity of a Node, and amounts reserved by the kubelet, by annotation and by third parties. Pure."""

from __future__ import annotations

from typing import NamedTuple

from control.manager.noderesource.units import ZERO, Amounts, amounts
from koordlet.api import priority
from koordlet.api.annotations.node import RAW_ALLOCATABLE, RESERVATION, THIRD_PARTY
from koordlet.api.core import Node
from koordlet.api.encoding.quantity import Quantity
from koordlet.api.encoding.wire import WireError
from koordlet.api.resources import reserved_resources


class NodeFacts(NamedTuple):
    """The facts from one Node object that the calculation needs."""

    capacity: Amounts
    kubelet: Amounts
    """reserved by the kubelet: capacity minus allocatable"""
    annotation: Amounts
    """reserved by annotation `node.koordinator.sh/reservation`; listed CPUs count as one core each"""


def node_facts(node: Node) -> NodeFacts:
    """The facts. A malformed annotation counts as missing (spec 04 §6.3)."""
    capacity, allocatable = amounts(node.status.capacity), amounts({**node.status.allocatable, **_raw(node)})
    kubelet = (max(capacity[0] - allocatable[0], 0), max(capacity[1] - allocatable[1], 0))
    return NodeFacts(capacity, kubelet, _annotated(node))


def _raw(node: Node) -> dict[str, Quantity]:
    """Allocatable before amplification, which would hide the kubelet's reservation."""
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
    """Batch resources allocated to third parties. Raises WireError for a malformed annotation."""
    return THIRD_PARTY.get(node.metadata.annotations).total(priority.BATCH)
