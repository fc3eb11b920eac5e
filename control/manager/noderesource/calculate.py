"""One calculation pass: which nodes overcommit resources, how much, and why. No I/O; keeps interference holds as state.

    calculator = Calculator(EnabledPlugins(...))
    for result in calculator.run(table, config, strategy_of, ["n1", "n2"], now): ...

Two vectorised formulas compute the amounts of all nodes. The remaining work per node is cheap unless something must be
written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from control.manager.noderesource import devices, ratios, zones
from control.manager.noderesource.batch import BatchAmounts, batch_amounts
from control.manager.noderesource.columns import AmountColumns, StrategyColumns, StrategyValues
from control.manager.noderesource.fold import Row
from control.manager.noderesource.interference import CAUSES, updated_holds, written_holds
from control.manager.noderesource.mid import MidAmounts, mid_amounts
from control.manager.noderesource.prepare import BATCH, MID, NodePlan
from control.manager.noderesource.report import NodeReport
from control.manager.noderesource.table import OvercommitTable
from control.manager.noderesource.units import Ints, ceil_units, cpu_quantity, memory_quantity
from koordlet.api import names
from koordlet.api.core import Node
from koordlet.api.encoding.quantity import Quantity
from koordlet.api.pages.overcommit import AS_MEASURED, DISABLED, INTERFERENCE, MISSING, STALE, Hold
from koordlet.api.sloconfig.colocation import DEFAULT as DEFAULT_STRATEGY
from koordlet.api.sloconfig.colocation import ColocationStrategy
from koordlet.api.sloconfig.configmap import SLOConfig
from koordlet.api.sloconfig.normalization import RatioError
from koordlet.api.sloconfig.overcommit import DEFAULT, InterferencePolicy, InterferencePolicyError, policy_of

RESOURCES: Final = tuple(CAUSES)
"""The two resources of a column: cpu, memory."""
FULL: Final = (100, 100)
MID_RESOURCE, BATCH_RESOURCE = "MidResource", "BatchResource"
NORMALIZATION, AMPLIFICATION = "CPUNormalization", "ResourceAmplification"
GPU, RDMA = "GPUDeviceResource", "RDMADeviceResource"
STATUS_PLUGINS: Final = frozenset((MID_RESOURCE, BATCH_RESOURCE, GPU, RDMA))
"""The plug-ins with amounts in the Node's status."""
META_PLUGINS: Final = frozenset((NORMALIZATION, AMPLIFICATION, GPU))
"""The plug-ins with annotations or labels of the Node."""

Failed = Callable[[str, str, Exception], object]
"""(plug-in, node name, error)"""


@dataclass(frozen=True)
class EnabledPlugins:
    """The enabled plug-ins (`--noderesource-plugins`), and feature gate EnableSyncGPUSharedResource."""

    enabled: frozenset[str] = frozenset((MID_RESOURCE, BATCH_RESOURCE, NORMALIZATION, AMPLIFICATION, GPU, RDMA))
    shared_gpu: bool = False


@dataclass(slots=True)
class Pass:
    """The columns of one pass, shared by its results; each result holds its row index."""

    rows: AmountColumns
    settings: StrategyColumns
    percent: list[tuple[int, int]]
    batch: BatchAmounts
    mid: MidAmounts
    batch_units: list[list[int]]
    """amounts after interference: milli-cores, bytes"""
    mid_units: list[list[int]]


@dataclass(slots=True)
class NodeResult:
    """The result for one node."""

    node: Node
    strategy: ColocationStrategy
    reason: str
    message: str
    """of the condition; empty: it is composed from the amounts"""
    plan: NodePlan
    report: NodeReport | None = None
    zones: zones.ZoneValues | None = None
    """None: the node has no zones, or they are unchanged"""
    holds: dict[str, Hold] = field(default_factory=dict)
    of: Pass | None = None
    """None: the node overcommits nothing"""
    index: int = -1
    """row index in `of`"""

    @property
    def overcommits(self) -> bool:
        return self.of is not None


class Calculator:
    """Computes results. Between passes it caches the strategies of nodes and keeps their interference holds."""

    def __init__(self, plugins: EnabledPlugins, failed: Failed = lambda *_: None) -> None:
        self.plugins = plugins
        self.holds: dict[str, dict[str, Hold]] = {}
        self._failed = failed
        self._settings: dict[str, tuple[Node, SLOConfig, ColocationStrategy, StrategyValues, InterferencePolicy]] = {}

    def forget(self, name: str) -> None:
        """Drop the state of a deleted node."""
        self.holds.pop(name, None)
        self._settings.pop(name, None)

    def run(
        self,
        table: OvercommitTable,
        config: SLOConfig,
        strategy_of: Callable[[Node], ColocationStrategy | None],
        node_names: Iterable[str],
        now: float,
    ) -> list[NodeResult]:
        """Results for the nodes that exist; none until a valid configuration was read."""
        if config.colocation is None:
            return []
        switched_on = config.colocation.cluster.enable is True
        results: list[NodeResult] = []
        enabled: list[NodeResult] = []
        settings: list[StrategyValues] = []
        for name in node_names:
            node = table.nodes.get(name)
            if node is None:
                continue
            strategy, setting, policy = self._setting(name, node, config, strategy_of)
            result = self._empty(table, name, node, strategy, now, switched_on=switched_on)
            if result is None:
                report = table.reports[name]
                holds = self._update_holds(table, name, node, report, policy)
                reduced = any(hold.percent < 100 for hold in holds.values())
                reason = INTERFERENCE if reduced else AS_MEASURED
                result = NodeResult(node, strategy, reason, "", NodePlan(), report, holds=holds)
                enabled.append(result)
                settings.append(setting)
            results.append(result)
        if enabled:
            self._amounts(table, enabled, settings)
        for result in results:
            self._add_metadata(table, result, config)
        return results

    def _setting(
        self, name: str, node: Node, config: SLOConfig, strategy_of: Callable[[Node], ColocationStrategy | None]
    ) -> tuple[ColocationStrategy, StrategyValues, InterferencePolicy]:
        cached = self._settings.get(name)
        if cached is not None and cached[1] is config and _same_meta(cached[0], node):
            return cached[2:]
        strategy = strategy_of(node) or DEFAULT_STRATEGY
        try:
            policy = policy_of(strategy)
        except InterferencePolicyError as error:
            policy = cached[4] if cached is not None else DEFAULT  # the last valid one
            self._failed(BATCH_RESOURCE, name, error)
        setting = StrategyValues.of(strategy)
        self._settings[name] = (node, config, strategy, setting, policy)
        return strategy, setting, policy

    def _empty(
        self,
        table: OvercommitTable,
        name: str,
        node: Node,
        strategy: ColocationStrategy,
        now: float,
        *,
        switched_on: bool,
    ) -> NodeResult | None:
        """The result of a node that overcommits nothing, with the reason; None for a node that overcommits."""
        report = table.reports.get(name)
        minutes = strategy.degrade_time_minutes or DEFAULT_STRATEGY.degrade_time_minutes or 0
        if not switched_on or strategy.enable is not True:
            scope = "for this node" if switched_on else "in the cluster"
            reason, message = DISABLED, f"co-location is disabled {scope}"
        elif report is None:
            reason, message = MISSING, "koordlet has not reported the usage of the node"
        elif now > report.at + minutes * 60:
            reason, message = STALE, f"the last report is more than {minutes} minutes old (degradeTimeMinutes)"
        elif report.at > now + minutes * 60:
            reason, message = STALE, f"the last report is more than {minutes} minutes in the future: clocks differ"
        else:
            return None
        groups = [group for plugin, group in ((MID_RESOURCE, MID), (BATCH_RESOURCE, BATCH)) if self._on(plugin)]
        removed: dict[str, Quantity | None] = {resource: None for group in groups for resource in group}
        count = len(table.zones.get(name, ())) if self._on(BATCH_RESOURCE) else 0
        result = NodeResult(node, strategy, reason, message, NodePlan(overcommit=removed), report)
        result.zones = zones.zero_values(count) if count else None
        result.holds = self.holds.get(name, {})
        return result

    def _update_holds(
        self, table: OvercommitTable, name: str, node: Node, report: NodeReport, policy: InterferencePolicy
    ) -> dict[str, Hold]:
        before = self.holds.get(name)
        if before is None:
            before = written_holds(node)
        after = updated_holds(before, report, policy, lambda key: table.is_overcommitted(key, name))
        self.holds[name] = after
        return after

    def _amounts(
        self, table: OvercommitTable, results: Sequence[NodeResult], settings: Sequence[StrategyValues]
    ) -> None:
        rows = AmountColumns.of([table.row(result.node.metadata.name) for result in results])
        columns = StrategyColumns.of(settings)
        percents = [_percents(result.holds) for result in results]
        percent = np.array(percents, dtype=np.int64)
        batch = batch_amounts(rows, columns)
        mid = mid_amounts(rows, columns)
        of = Pass(
            rows,
            columns,
            percents,
            batch,
            mid,
            batch_units=ceil_units(_reduced(batch.amount, percent)).tolist(),
            mid_units=ceil_units(_reduced(mid.amount, percent)).tolist(),
        )
        for index, result in enumerate(results):
            overcommit: dict[str, Quantity | None] = {}
            if self._on(MID_RESOURCE):
                overcommit[names.RESOURCE_MID_CPU] = cpu_quantity(of.mid_units[index][0])
                overcommit[names.RESOURCE_MID_MEMORY] = memory_quantity(of.mid_units[index][1])
            if self._on(BATCH_RESOURCE):
                overcommit[names.RESOURCE_BATCH_CPU] = cpu_quantity(of.batch_units[index][0])
                overcommit[names.RESOURCE_BATCH_MEMORY] = memory_quantity(of.batch_units[index][1])
            result.plan, result.of, result.index = NodePlan(overcommit=overcommit), of, index

    def zone_values(self, table: OvercommitTable, results: Iterable[NodeResult]) -> None:
        """Set `NodeResult.zones` of all nodes that overcommit and have NUMA zones, with one vectorised calculation."""
        if not self._on(BATCH_RESOURCE):
            return
        rows: list[Row] = []
        settings: list[StrategyValues] = []
        percents: list[tuple[int, int]] = []
        spans: list[tuple[NodeResult, int, int]] = []
        for result in results:
            name = result.node.metadata.name
            zone_rows = table.zone_rows(name) if result.overcommits and table.zones.get(name) else ()
            if zone_rows:
                setting = self._settings[name][3]
                spans.append((result, len(rows), len(rows) + len(zone_rows)))
                rows += zone_rows
                settings += [setting] * len(zone_rows)
                percents += [_percents(result.holds)] * len(zone_rows)
        if not rows:
            return
        amount = batch_amounts(AmountColumns.of(rows), StrategyColumns.of(settings)).amount
        values = _reduced(amount, np.array(percents, dtype=np.int64)).tolist()
        for result, start, end in spans:
            result.zones = zones.zone_values([(cpu, memory) for cpu, memory in values[start:end]], result.plan.ratio)

    def _add_metadata(self, table: OvercommitTable, result: NodeResult, config: SLOConfig) -> None:
        """Add ratio annotations, labels and device totals of one node to its plan."""
        node, name = result.node, result.node.metadata.name
        plan, topology = result.plan, table.topologies.get(name)
        annotations: dict[str, str | None] = {}
        text: str | None = None
        if result.reason == DISABLED:
            if self._on(AMPLIFICATION) and ratios.amplification_differs(node, None):
                annotations[names.ANNOTATION_RESOURCE_AMPLIFICATION_RATIO] = None
            result.plan = NodePlan(overcommit=plan.overcommit, annotations=annotations)
            return
        labels, meta = node.metadata.labels, node.metadata
        if self._on(NORMALIZATION):
            try:
                strategy = config.normalization.for_node(labels) if config.normalization is not None else None
                text = ratios.normalization_text(strategy, node, topology)
                if ratios.normalization_differs(node, text):
                    annotations[names.ANNOTATION_CPU_NORMALIZATION_RATIO] = text
            except RatioError as error:
                self._failed(NORMALIZATION, meta.name, error)
        if self._on(AMPLIFICATION):
            try:
                amplification = config.amplification.for_node(labels) if config.amplification is not None else None
                amplified = ratios.amplification_text(amplification, node, text)
                if ratios.amplification_differs(node, amplified):
                    annotations[names.ANNOTATION_RESOURCE_AMPLIFICATION_RATIO] = amplified
            except RatioError as error:
                self._failed(AMPLIFICATION, meta.name, error)
        device, totals, copied = table.devices.get(name), {}, {}
        if self._on(GPU):
            totals, copied = devices.gpu_totals(device, shared=self.plugins.shared_gpu), devices.gpu_labels(device)
        if self._on(RDMA):
            totals = {**totals, **devices.rdma_totals(device)}
        ratio = float(text) if text is not None else None
        result.plan = NodePlan(
            overcommit=plan.overcommit, devices=totals, ratio=ratio, annotations=annotations, labels=copied
        )

    def _on(self, plugin: str) -> bool:
        return plugin in self.plugins.enabled


def _same_meta(a: Node, b: Node) -> bool:
    return a is b or (a.metadata.labels == b.metadata.labels and a.metadata.annotations == b.metadata.annotations)


def _percents(holds: dict[str, Hold]) -> tuple[int, int]:
    if not holds:
        return FULL
    cpu, memory = (holds[name].percent if name in holds else 100 for name in RESOURCES)
    return cpu, memory


def _reduced(amount: Ints, percent: Ints) -> Ints:
    """`percent` of an amount, rounded down; exact also for the largest amounts."""
    whole: Ints = amount // 100 * percent + amount % 100 * percent // 100
    return whole
