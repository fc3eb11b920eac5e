"""What is lent to batch pods: spec 04 §6.3's formula over columns, the same for nodes and for NUMA zones. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from control.manager.noderesource.columns import BY_MAXIMUM, BY_REQUEST, UNSET, Columns, Settings
from control.manager.noderesource.units import Floats, Ints, scaled


@dataclass(frozen=True, slots=True)
class Lent:
    """The formula with its terms; amounts as in `Columns`."""

    margin: Ints
    """kept free; negative above 100 percent"""
    reserved: Ints
    used_by_system: Ints
    """measured, with host applications"""
    system: Ints
    """what the formula takes off: by the request policy only what is reserved"""
    high: Ints
    """what high-priority pods take, by policy"""
    limit: Ints
    """most that may be lent; the largest number where there is no limit"""
    amount: Ints
    """capacity - margin - system - high, within 0 and limit"""


NO_LIMIT = np.iinfo(np.int64).max


def lend(rows: Columns, settings: Settings) -> Lent:
    """What each row can lend to batch pods."""
    margin = scaled(rows.capacity, percent(100 - settings.reclaim))
    reserved = np.maximum(rows.kubelet, rows.annotation)
    used = rows.system + rows.host_high
    requested, maximum = settings.policy == BY_REQUEST, settings.policy == BY_MAXIMUM
    system = np.where(requested, reserved, np.maximum(used, reserved))
    high = np.where(requested, rows.high_request, np.where(maximum, rows.high_max, rows.high_used))
    limit = np.where(
        settings.batch_limit == UNSET, NO_LIMIT, scaled(rows.capacity, percent(np.maximum(settings.batch_limit, 0)))
    )
    amount = np.minimum(np.maximum(rows.capacity - margin - system - high, 0), limit)
    return Lent(margin, reserved, used, system, high, limit, amount)


def percent(values: Ints) -> Floats:
    """As the reference divides: on the binary double."""
    return values.astype(np.float64) / 100.0
