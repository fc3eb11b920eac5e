"""What is lent to mid pods: predicted to stay unused by prod pods, and a part of what is not allocated (spec 04 §6.5).

Pure, over columns. In static mode it is a fixed part of capacity.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from control.manager.noderesource.batch import percent
from control.manager.noderesource.columns import Columns, Settings
from control.manager.noderesource.units import Ints, scaled


@dataclass(frozen=True, slots=True)
class Mid:
    """The formula with its terms; amounts as in `Columns`."""

    reclaimable: Ints
    """predicted"""
    unused: Ints
    """capacity less measured usage"""
    unallocated: Ints
    share: Ints
    """the part of `unallocated` that is lent as well"""
    fixed: Ints
    """what static mode sets aside"""
    limit: Ints
    amount: Ints


def lend_mid(rows: Columns, settings: Settings) -> Mid:
    """What each row can lend to mid pods."""
    limit = scaled(rows.capacity, percent(settings.mid_limit))
    unused = np.where(rows.complete == 1, rows.capacity - rows.node_usage, 0)
    system = np.maximum(rows.system + rows.host_prod, np.maximum(rows.kubelet, rows.annotation))
    unallocated = np.maximum(rows.capacity - system - rows.prod_request, 0)
    share = scaled(unallocated, percent(settings.mid_unallocated))
    dynamic = np.maximum(np.minimum(rows.reclaimable, unused), 0) + share
    fixed = scaled(rows.capacity, percent(settings.mid_static))
    amount = np.minimum(np.where(settings.static == 1, fixed, dynamic), limit)
    return Mid(rows.reclaimable, unused, unallocated, share, fixed, limit, amount)
