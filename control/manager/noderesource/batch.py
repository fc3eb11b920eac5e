"""Batch resources: the formula of spec 04 §6.3 over columns, the same for nodes and for NUMA zones. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from control.manager.noderesource.columns import BY_MAXIMUM, BY_REQUEST, UNSET, AmountColumns, StrategyColumns
from control.manager.noderesource.units import Floats, Ints, scaled


@dataclass(frozen=True, slots=True)
class BatchAmounts:
    """The result of the formula with its terms; amounts as in `AmountColumns`."""

    margin: Ints
    """kept free; negative if the reclaim threshold is above 100 %"""
    reserved: Ints
    used_by_system: Ints
    """measured usage of the system and of host applications"""
    system: Ints
    """amount subtracted for the system: `reserved` with policy `request`, else the larger of the two"""
    high: Ints
    """amount subtracted for high-priority pods, by policy"""
    limit: Ints
    """upper limit of `amount`; NO_LIMIT where none is configured"""
    amount: Ints
    """capacity - margin - system - high, within 0 and limit"""


NO_LIMIT = np.iinfo(np.int64).max


def batch_amounts(rows: AmountColumns, settings: StrategyColumns) -> BatchAmounts:
    """The batch resources of each row."""
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
    return BatchAmounts(margin, reserved, used, system, high, limit, amount)


def percent(values: Ints) -> Floats:
    """Percent as a fraction, divided as binary doubles like Koordinator does."""
    return values.astype(np.float64) / 100.0
