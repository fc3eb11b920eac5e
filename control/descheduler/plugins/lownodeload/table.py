"""The nodes of a pool as columns: capacity, usage and thresholds per resource (spec 07 §6.3 to §6.5)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from control.descheduler.framework.fit import Amounts
from control.descheduler.plugins.lownodeload.args import NodePool
from control.descheduler.plugins.lownodeload.thresholds import PoolThresholds, absolute, completed
from control.descheduler.state.cluster import PODS, NodeRecord
from control.descheduler.state.loads import ReportedLoad
from control.descheduler.state.pods import PodRecord

NODES_PER_SLICE: Final = 250
"""Nodes that are read between two yields to the event loop; about 10 ms with 20 pods per node."""


@dataclass(frozen=True)
class LoadTable:
    """The nodes of a pool with a fresh NodeMetric. Arrays are [resource, node]; `usage` and `prod_usage` change while
    evictions are decided."""

    resources: tuple[str, ...]
    nodes: Sequence[NodeRecord]
    pods: Sequence[Sequence[PodRecord]]
    """[node]: the non-terminal pods."""
    loads: Sequence[ReportedLoad]
    percentages: PoolThresholds
    capacity: Amounts
    usage: Amounts
    prod_usage: Amounts
    low: Amounts
    high: Amounts
    prod_low: Amounts
    prod_high: Amounts

    def vector(self, node: int, pod: PodRecord) -> Amounts | None:
        """What the pod uses, [resource], a pod counts as 1 of `pods`; None without a metric."""
        usage = self.loads[node].pods.get(pod.key)
        if usage is None:
            return None
        return np.array([1 if name == PODS else usage.get(name, 0) for name in self.resources], dtype=np.int64)


@dataclass(frozen=True)
class LoadClasses:
    """Rows of a `LoadTable` by class, in the order of the rows (spec 07 §6.5)."""

    high: list[int]
    low: list[int]
    prod_high: list[int]
    prod_low: list[int]
    both_low: list[int]


async def load_table(pool: NodePool, nodes: Sequence[NodeRecord], now: float, max_age_s: float) -> LoadTable:
    """The columns of the nodes that have a NodeMetric younger than `max_age_s`."""
    thresholds = completed(pool)
    resources = thresholds.resources
    used: list[NodeRecord] = []
    pods: list[list[PodRecord]] = []
    loads: list[ReportedLoad] = []
    usage: list[list[int]] = []
    prod_usage: list[list[int]] = []
    for count, node in enumerate(nodes):
        if count % NODES_PER_SLICE == NODES_PER_SLICE - 1:
            await asyncio.sleep(0)
        load = node.load
        if load is None or not load.fresh(now, max_age_s):
            continue
        active = node.active_pods()
        used.append(node)
        loads.append(load)
        pods.append(active)
        usage.append([len(active) if name == PODS else load.usage.get(name, 0) for name in resources])
        prod_usage.append(_prod_usage(active, load, resources))
    capacity = _columns([[node.raw_allocatable.get(name, 0) for name in resources] for node in used], resources)
    total, prod = _columns(usage, resources), _columns(prod_usage, resources)
    low, high = absolute(thresholds.low, thresholds.high, resources, capacity, total, deviation=pool.deviation)
    prod_low, prod_high = absolute(
        thresholds.prod_low, thresholds.prod_high, resources, capacity, prod, deviation=pool.deviation
    )
    return LoadTable(resources, used, pods, loads, thresholds, capacity, total, prod, low, high, prod_low, prod_high)


def _prod_usage(pods: Sequence[PodRecord], load: ReportedLoad, resources: Sequence[str]) -> list[int]:
    prod = [pod for pod in pods if pod.is_prod]
    metrics = [metric for pod in prod if (metric := load.pods.get(pod.key)) is not None]
    return [len(prod) if name == PODS else sum(metric.get(name, 0) for metric in metrics) for name in resources]


def _columns(rows: list[list[int]], resources: Sequence[str]) -> Amounts:
    return np.ascontiguousarray(np.array(rows, dtype=np.int64).reshape(len(rows), len(resources)).T)


def classified(table: LoadTable) -> LoadClasses:
    """Each node's class. A cordoned node is never under-used, but it can be a source."""
    cordoned = np.array([node.unschedulable for node in table.nodes], dtype=np.bool_)
    under = (table.usage <= table.low).all(axis=0) & ~cordoned
    over = (table.usage > table.high).any(axis=0)
    prod_under = (table.prod_usage <= table.prod_low).all(axis=0) & ~cordoned
    prod_over = (table.prod_usage > table.prod_high).any(axis=0)
    rest = ~under & ~over

    def rows(mask: Amounts | np.ndarray[tuple[int], np.dtype[np.bool_]]) -> list[int]:
        return [int(row) for row in np.flatnonzero(mask)]

    return LoadClasses(
        high=rows(~under & over),
        low=rows(under & ~prod_over & ~prod_under),
        prod_high=rows((under | rest) & prod_over),
        prod_low=rows(rest & ~prod_over & prod_under),
        both_low=rows(under & ~prod_over & prod_under),
    )
