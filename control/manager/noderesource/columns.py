"""Inputs of the formulas as columns: one row per node or NUMA zone. Built for one calculation, then discarded. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from control.manager.noderesource.fold import Row
from control.manager.noderesource.units import Ints, column
from koordlet.api.sloconfig.colocation import (
    DEFAULT,
    MAX_USAGE_REQUEST,
    MID_RECLAIM_STATIC,
    REQUEST,
    ColocationStrategy,
)

Pair = tuple[int, int]

BY_USAGE: Final = 0
BY_REQUEST: Final = 1
BY_MAXIMUM: Final = 2
UNSET: Final = -1
_MAX_PERCENT = 10**7


@dataclass(frozen=True, slots=True)
class AmountColumns:
    """Amounts, int64 of shape (rows, 2): cpu in nano-cores, memory in milli-bytes. Fields as in `fold.Row`."""

    capacity: Ints
    kubelet: Ints
    annotation: Ints
    system: Ints
    host_high: Ints
    host_prod: Ints
    high_request: Ints
    high_used: Ints
    high_max: Ints
    prod_request: Ints
    node_usage: Ints
    complete: Ints
    reclaimable: Ints

    @classmethod
    def of(cls, rows: Sequence[Row]) -> AmountColumns:
        table = column(rows, len(Row._fields))
        return cls(*(table[:, index] for index in range(table.shape[1])))


class StrategyValues(NamedTuple):
    """The strategy of one node as integers (cpu, memory), in percent where not stated. Field order as in
    `StrategyColumns`."""

    reclaim: Pair
    policy: Pair
    """BY_USAGE, BY_REQUEST or BY_MAXIMUM"""
    batch_limit: Pair
    """UNSET: no limit"""
    mid_limit: Pair
    mid_unallocated: Pair
    mid_static: Pair
    static: Pair
    """(1, 1): mid is a fixed share of capacity"""

    @classmethod
    def of(cls, strategy: ColocationStrategy) -> StrategyValues:
        """The strategy; its unset fields get the defaults."""

        def value(field: str) -> int:
            configured = getattr(strategy, field)
            if configured is None:
                configured = getattr(DEFAULT, field)
            return UNSET if configured is None else min(int(configured), _MAX_PERCENT)

        def both(template: str) -> Pair:
            return value(template.format("cpu")), value(template.format("memory"))

        unallocated = value("mid_unallocated_percent")
        static = int(strategy.mid_reclaim_mode == MID_RECLAIM_STATIC)
        return cls(
            reclaim=both("{}_reclaim_threshold_percent"),
            policy=(
                BY_MAXIMUM if strategy.cpu_calculate_policy == MAX_USAGE_REQUEST else BY_USAGE,
                _MEMORY_POLICY.get(strategy.memory_calculate_policy or "", BY_USAGE),
            ),
            batch_limit=both("batch_{}_threshold_percent"),
            mid_limit=both("mid_{}_threshold_percent"),
            mid_unallocated=(unallocated, unallocated),
            mid_static=both("mid_static_{}_reserved_percent"),
            static=(static, static),
        )


_MEMORY_POLICY: Final = {REQUEST: BY_REQUEST, MAX_USAGE_REQUEST: BY_MAXIMUM}


@dataclass(frozen=True, slots=True)
class StrategyColumns:
    """`StrategyValues` as columns, int64 of shape (rows, 2)."""

    reclaim: Ints
    policy: Ints
    batch_limit: Ints
    mid_limit: Ints
    mid_unallocated: Ints
    mid_static: Ints
    static: Ints

    @classmethod
    def of(cls, settings: Sequence[StrategyValues]) -> StrategyColumns:
        table = column(settings, len(StrategyValues._fields))
        return cls(*(table[:, index] for index in range(table.shape[1])))
