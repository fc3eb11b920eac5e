"""Mid resources (spec 04 §6.5): prod requests that are predicted to stay unused, plus a share of the unallocated
resources; in static mode a fixed share of capacity. Pure, over columns.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from control.manager.noderesource.batch import percent
from control.manager.noderesource.columns import AmountColumns, StrategyColumns
from control.manager.noderesource.units import Ints, scaled


@dataclass(frozen=True, slots=True)
class MidAmounts:
    """The result of the formula with its terms; amounts as in `AmountColumns`."""

    reclaimable: Ints
    """predicted by koordlet"""
    unused: Ints
    """capacity minus measured usage"""
    unallocated: Ints
    share: Ints
    """the share of `unallocated` that is overcommitted too"""
    fixed: Ints
    """the amount in static mode"""
    limit: Ints
    amount: Ints


def mid_amounts(rows: AmountColumns, settings: StrategyColumns) -> MidAmounts:
    """The mid resources of each row."""
    limit = scaled(rows.capacity, percent(settings.mid_limit))
    unused = np.where(rows.complete == 1, rows.capacity - rows.node_usage, 0)
    system = np.maximum(rows.system + rows.host_prod, np.maximum(rows.kubelet, rows.annotation))
    unallocated = np.maximum(rows.capacity - system - rows.prod_request, 0)
    share = scaled(unallocated, percent(settings.mid_unallocated))
    dynamic = np.maximum(np.minimum(rows.reclaimable, unused), 0) + share
    fixed = scaled(rows.capacity, percent(settings.mid_static))
    amount = np.minimum(np.where(settings.static == 1, fixed, dynamic), limit)
    return MidAmounts(rows.reclaimable, unused, unallocated, share, fixed, limit, amount)
