"""Reservations that ask for pre-allocation (spec 06 §4.9). Running pods are never taken over: one that requires that
stays pending, others need free room. Pure."""

from __future__ import annotations

from typing import Final

from control.reservation.model import ReservationModel
from koordlet.api.crs.reservation import RESTRICTED

ATTRIBUTES: Final = "node(s) reservation pre allocation is unsupported with current attributes"
CLUSTER_MODE_DISABLED: Final = "reservation requires cluster mode pre-allocation which is disabled"
TAKING_OVER_UNSUPPORTED: Final = "reservation requires running pods to take over, which this scheduler does not support"


def refusal(model: ReservationModel, *, cluster_mode: bool) -> str:
    """Why the reservation cannot be scheduled at all; empty if it can."""
    if not model.pre_allocation:
        return ""
    if model.policy != RESTRICTED:
        return ATTRIBUTES
    if model.pre_allocation_mode == "Cluster" and not cluster_mode:
        return CLUSTER_MODE_DISABLED
    return TAKING_OVER_UNSUPPORTED if model.pre_allocation_required else ""
