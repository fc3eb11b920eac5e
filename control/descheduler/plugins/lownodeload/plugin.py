"""The plugin: pools, anomaly detection, and the two phases of evictions (spec 07 §6.1)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from control.descheduler.framework.fit import Amounts
from control.descheduler.framework.handle import PluginHandle
from control.descheduler.framework.order import node_score
from control.descheduler.framework.plugin import BalancePlugin
from control.descheduler.plugins.lownodeload.anomaly import AnomalyDetectors, AnomalyRule
from control.descheduler.plugins.lownodeload.args import LowNodeLoadArgs, NodePool
from control.descheduler.plugins.lownodeload.balance import BalancePhase, Dimension, PhaseCalls
from control.descheduler.plugins.lownodeload.table import LoadTable, classified, load_table
from control.descheduler.state.cluster import NodeRecord
from control.descheduler.state.pods import PodRecord
from koordlet.app.logging import get_logger

log = get_logger(__name__)


class LowNodeLoad(BalancePlugin):
    """See the package's text."""

    name = "LowNodeLoad"
    args_type = LowNodeLoadArgs

    def __init__(self, args: LowNodeLoadArgs, handle: PluginHandle) -> None:
        self._args = args
        self._handle = handle
        self._pools = args.pools()
        ttl_s = max(args.detector_cache_timeout.seconds, handle.process.interval_s)
        self._node_detectors = AnomalyDetectors(ttl_s)
        self._prod_detectors = AnomalyDetectors(ttl_s)

    async def balance(self, nodes: Sequence[NodeRecord]) -> None:
        if self._args.paused:
            return
        processed: set[str] = set()
        failed: list[Exception] = []
        for pool in self._pools:
            members = [
                node
                for node in nodes
                if node.name not in processed and (pool.selector is None or pool.selector.matches(node.labels))
            ]
            try:
                processed.update(await self._balance_pool(pool, members))
            except Exception as error:
                log.exception("Pool failed", plugin=self.name, pool=pool.name, err=error)
                failed.append(error)
        if failed:
            raise ExceptionGroup("pools failed", failed)

    async def _balance_pool(self, pool: NodePool, nodes: Sequence[NodeRecord]) -> list[str]:
        """Returns the overloaded nodes, if pods of the pool were considered: later pools leave them alone."""
        if not nodes:
            return []
        clock, rule = self._handle.clock, _rule(pool, preview=self._handle.process.preview)
        table = await load_table(pool, nodes, clock.now(), self._args.node_metric_expiration_seconds)
        classes = classified(table)

        def name(row: int) -> str:
            return table.nodes[row].name

        now = clock.monotonic()
        log.debug(
            "Nodes by load",
            pool=pool.name,
            nodes=len(nodes),
            reporting=len(table.nodes),
            high=len(classes.high),
            low=len(classes.low),
            prod_high=len(classes.prod_high),
            prod_low=len(classes.prod_low),
            both_low=len(classes.both_low),
        )
        if not classes.high and not classes.prod_high:
            return []
        abnormal = self._node_detectors.detect(map(name, classes.high), rule, now)
        abnormal_prod = self._prod_detectors.detect(map(name, classes.prod_high), rule, now)
        underused = len(classes.low) + len(classes.prod_low) + len(classes.both_low)
        if not (abnormal or abnormal_prod) or not underused:
            return []
        self._node_detectors.reset(map(name, (*classes.low, *classes.both_low)))
        self._prod_detectors.reset(map(name, classes.prod_low))
        if underused <= self._args.number_of_nodes or underused == len(nodes):
            return []
        sources = _by_score(pool, table, [row for row in classes.high if name(row) in abnormal], table.usage)
        prod_sources = _by_score(
            pool, table, [row for row in classes.prod_high if name(row) in abnormal_prod], table.prod_usage
        )

        node_dimension, prod_dimension = Dimension.of(table, prod=False), Dimension.of(table, prod=True)
        room, prod_room = _room(node_dimension, classes.low), _room(prod_dimension, classes.prod_low)
        both, prod_both = _room(node_dimension, classes.both_low), _room(prod_dimension, classes.both_low)
        first = BalancePhase(
            pool,
            table,
            node_dimension,
            sorted((*classes.low, *classes.both_low)),
            room + both,
            self._args.node_fit,
            self._calls(self._node_detectors),
        )
        await first.run(sources)
        second = BalancePhase(
            pool,
            table,
            prod_dimension,
            sorted((*classes.prod_low, *classes.both_low)),
            prod_room + np.minimum(prod_both, np.minimum(both, first.budget)),
            self._args.node_fit,
            self._calls(self._prod_detectors),
        )
        await second.run(prod_sources)
        self._node_detectors.mark_normal(abnormal, rule, clock.monotonic())
        self._prod_detectors.mark_normal(abnormal_prod, rule, clock.monotonic())
        return [name(row) for row in classes.high]

    def _calls(self, detectors: AnomalyDetectors) -> PhaseCalls:
        return PhaseCalls(self._eligible, self._evict, lambda node: detectors.reset([node]))

    def _eligible(self, pod: PodRecord) -> bool:
        current = self._handle.state.current(pod)
        return (
            current is not None
            and current.node == pod.node
            and self._args.considers(current)
            and self._handle.evictor.filter(current) is None
        )

    async def _evict(self, pod: PodRecord, reason: str) -> bool:
        return await self._handle.evictor.evict(pod, reason, dry_run=self._args.dry_run)


def _rule(pool: NodePool, *, preview: bool) -> AnomalyRule:
    condition = pool.condition
    return AnomalyRule(
        1 if preview else condition.consecutive_abnormalities,
        condition.consecutive_normalities,
        condition.timeout.seconds,
    )


def _room(dimension: Dimension, nodes: Sequence[int]) -> Amounts:
    """[resource]: what these nodes can take before they reach their high thresholds."""
    rows = list(nodes)
    room: Amounts = (dimension.high[:, rows] - dimension.usage[:, rows]).sum(axis=1)
    return room


def _by_score(pool: NodePool, table: LoadTable, rows: list[int], usage: Amounts) -> list[int]:
    """Most used first; equal ones by name."""

    def score(row: int) -> int:
        used = {name: int(usage[at, row]) for at, name in enumerate(table.resources)}
        capacity = {name: int(table.capacity[at, row]) for at, name in enumerate(table.resources)}
        return node_score(used, capacity, pool.weights)

    return sorted(rows, key=lambda row: (-score(row), table.nodes[row].name))
