"""One pass: which nodes lend, how much, and why. Pure but for the holds that it moves on; a column operation a step.

    calculator = Calculator(Plugins(...))
    for result in calculator.run(table, config, ["n1", "n2"], now): ...

Amounts of all nodes come from two vectorised formulas; what follows per node is cheap until something must be written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from control.manager.noderesource import devices, ratios, zones
from control.manager.noderesource.batch import Lent, lend
from control.manager.noderesource.columns import Columns, Setting, Settings
from control.manager.noderesource.fold import Row
from control.manager.noderesource.interference import CAUSES, weigh, written_holds
from control.manager.noderesource.mid import Mid, lend_mid
from control.manager.noderesource.prepare import BATCH, MID, Plan
from control.manager.noderesource.report import Report
from control.manager.noderesource.table import Table
from control.manager.noderesource.units import Ints, ceil_units, cpu_quantity, memory_quantity
from koordlet.api import names
from koordlet.api.core import Node
from koordlet.api.encoding.quantity import Quantity
from koordlet.api.pages.overcommit import AS_MEASURED, DISABLED, INTERFERENCE, MISSING, STALE, Hold
from koordlet.api.sloconfig.colocation import DEFAULT as DEFAULT_STRATEGY
from koordlet.api.sloconfig.colocation import ColocationStrategy
from koordlet.api.sloconfig.configmap import SLOConfig
from koordlet.api.sloconfig.lending import DEFAULT, InterferencePolicy, InterferencePolicyError, policy_of
from koordlet.api.sloconfig.normalization import RatioError

RESOURCES: Final = tuple(CAUSES)
"""Of a column: cpu, memory."""
FULL: Final = (100, 100)
MID_RESOURCE, BATCH_RESOURCE = "MidResource", "BatchResource"
NORMALIZATION, AMPLIFICATION = "CPUNormalization", "ResourceAmplification"
GPU, RDMA = "GPUDeviceResource", "RDMADeviceResource"

Failed = Callable[[str, str, Exception], object]
"""(plug-in, node, why)"""


@dataclass(frozen=True)
class Plugins:
    """Which parts run (`--noderesource-plugins`), and gate EnableSyncGPUSharedResource."""

    enabled: frozenset[str] = frozenset((MID_RESOURCE, BATCH_RESOURCE, NORMALIZATION, AMPLIFICATION, GPU, RDMA))
    shared_gpu: bool = False


@dataclass(slots=True)
class Pass:
    """The columns of one pass, shared by its results, each of which knows its row."""

    rows: Columns
    settings: Settings
    percent: list[tuple[int, int]]
    batch: Lent
    mid: Mid
    batch_units: list[list[int]]
    """what is lent: milli-cores, bytes"""
    mid_units: list[list[int]]


@dataclass(slots=True)
class Result:
    """What came out for one node."""

    node: Node
    strategy: ColocationStrategy
    reason: str
    message: str
    """of the condition; empty where amounts tell it"""
    plan: Plan
    report: Report | None = None
    zones: zones.Wanted | None = None
    """None: there are none, or they stay as they are"""
    holds: dict[str, Hold] = field(default_factory=dict)
    of: Pass | None = None
    """None: nothing is lent"""
    index: int = -1
    """row of `of`"""

    @property
    def lends(self) -> bool:
        return self.of is not None


class Calculator:
    """Keeps the settings of nodes between passes, and the holds that interference has on them."""

    def __init__(self, plugins: Plugins, failed: Failed = lambda *_: None) -> None:
        self.plugins = plugins
        self.holds: dict[str, dict[str, Hold]] = {}
        self._failed = failed
        self._settings: dict[str, tuple[Node, SLOConfig, ColocationStrategy, Setting, InterferencePolicy]] = {}

    def forget(self, name: str) -> None:
        """The node is gone."""
        self.holds.pop(name, None)
        self._settings.pop(name, None)

    def run(
        self,
        table: Table,
        config: SLOConfig,
        strategy_of: Callable[[Node], ColocationStrategy | None],
        wanted: Iterable[str],
        now: float,
    ) -> list[Result]:
        """Results for those of `wanted` that exist; none while no configuration was ever usable."""
        if config.colocation is None:
            return []
        switched_on = config.colocation.cluster.enable is True
        results: list[Result] = []
        lending: list[Result] = []
        settings: list[Setting] = []
        for name in wanted:
            node = table.nodes.get(name)
            if node is None:
                continue
            strategy, setting, policy = self._setting(name, node, config, strategy_of)
            result = self._without(table, name, node, strategy, now, switched_on=switched_on)
            if result is None:
                report = table.reports[name]
                holds = self._weigh(table, name, node, report, policy)
                reduced = any(hold.percent < 100 for hold in holds.values())
                reason = INTERFERENCE if reduced else AS_MEASURED
                result = Result(node, strategy, reason, "", Plan(), report, holds=holds)
                lending.append(result)
                settings.append(setting)
            results.append(result)
        if lending:
            self._lend(table, lending, settings)
        for result in results:
            self._ratios(table, result, config)
        return results

    def _setting(
        self, name: str, node: Node, config: SLOConfig, strategy_of: Callable[[Node], ColocationStrategy | None]
    ) -> tuple[ColocationStrategy, Setting, InterferencePolicy]:
        known = self._settings.get(name)
        if known is not None and known[1] is config and _same_meta(known[0], node):
            return known[2:]
        strategy = strategy_of(node) or DEFAULT_STRATEGY
        try:
            policy = policy_of(strategy)
        except InterferencePolicyError as error:
            policy = known[4] if known is not None else DEFAULT  # the last good one
            self._failed(BATCH_RESOURCE, name, error)
        setting = Setting.of(strategy)
        self._settings[name] = (node, config, strategy, setting, policy)
        return strategy, setting, policy

    def _without(
        self, table: Table, name: str, node: Node, strategy: ColocationStrategy, now: float, *, switched_on: bool
    ) -> Result | None:
        """The result of a node that lends nothing, None for one that lends."""
        report = table.reports.get(name)
        minutes = strategy.degrade_time_minutes or DEFAULT_STRATEGY.degrade_time_minutes or 0
        if not switched_on or strategy.enable is not True:
            where = "for this node" if switched_on else "in the cluster"
            reason, message = DISABLED, f"co-location is off {where}"
        elif report is None:
            reason, message = MISSING, "koordlet has not reported what the node uses"
        elif now > report.at + minutes * 60:
            reason, message = STALE, f"the last report is more than {minutes} minutes old (degradeTimeMinutes)"
        elif report.at > now + minutes * 60:
            reason, message = STALE, f"the last report is from more than {minutes} minutes ahead: clocks disagree"
        else:
            return None
        parts = [part for plugin, part in ((MID_RESOURCE, MID), (BATCH_RESOURCE, BATCH)) if self._on(plugin)]
        lent: dict[str, Quantity | None] = {one: None for part in parts for one in part}
        count = len(table.zones.get(name, ())) if self._on(BATCH_RESOURCE) else 0
        result = Result(node, strategy, reason, message, Plan(lent=lent), report)
        result.zones = zones.nothing(count) if count else None
        result.holds = self.holds.get(name, {})
        return result

    def _weigh(
        self, table: Table, name: str, node: Node, report: Report, policy: InterferencePolicy
    ) -> dict[str, Hold]:
        known = self.holds.get(name)
        if known is None:
            known = written_holds(node)
        after = weigh(known, report, policy, lambda key: table.runs_on_lent(key, name))
        self.holds[name] = after
        return after

    def _lend(self, table: Table, lending: Sequence[Result], settings: Sequence[Setting]) -> None:
        rows = Columns.of([table.row(result.node.metadata.name) for result in lending])
        columns = Settings.of(settings)
        percents = [_percents(result.holds) for result in lending]
        percent = np.array(percents, dtype=np.int64)
        batch, mid = lend(rows, columns), lend_mid(rows, columns)
        of = Pass(
            rows, columns, percents, batch, mid,
            batch_units=ceil_units(_part(batch.amount, percent)).tolist(),
            mid_units=ceil_units(_part(mid.amount, percent)).tolist(),
        )  # fmt: skip
        batches, mids = of.batch_units, of.mid_units
        for index, result in enumerate(lending):
            lent: dict[str, Quantity | None] = {}
            if self._on(MID_RESOURCE):
                lent[names.RESOURCE_MID_CPU] = cpu_quantity(mids[index][0])
                lent[names.RESOURCE_MID_MEMORY] = memory_quantity(mids[index][1])
            if self._on(BATCH_RESOURCE):
                lent[names.RESOURCE_BATCH_CPU] = cpu_quantity(batches[index][0])
                lent[names.RESOURCE_BATCH_MEMORY] = memory_quantity(batches[index][1])
            result.plan, result.of, result.index = Plan(lent=lent), of, index

    def zone_values(self, table: Table, results: Iterable[Result]) -> None:
        """Fill `Result.zones` of nodes that lend and have NUMA zones, in one go."""
        if not self._on(BATCH_RESOURCE):
            return
        rows: list[Row] = []
        settings: list[Setting] = []
        percents: list[tuple[int, int]] = []
        spans: list[tuple[Result, int, int]] = []
        for result in results:
            name = result.node.metadata.name
            zoned = table.zone_rows(name) if result.lends and table.zones.get(name) else ()
            if zoned:
                setting = self._settings[name][3]
                spans.append((result, len(rows), len(rows) + len(zoned)))
                rows += zoned
                settings += [setting] * len(zoned)
                percents += [_percents(result.holds)] * len(zoned)
        if not rows:
            return
        amount = lend(Columns.of(rows), Settings.of(settings)).amount
        lent = _part(amount, np.array(percents, dtype=np.int64)).tolist()
        for result, start, end in spans:
            result.zones = zones.zone_values([(cpu, memory) for cpu, memory in lent[start:end]], result.plan.ratio)

    def _ratios(self, table: Table, result: Result, config: SLOConfig) -> None:
        """Annotations, labels and devices of one node into its plan."""
        node, name = result.node, result.node.metadata.name
        plan, topology = result.plan, table.topologies.get(name)
        annotations: dict[str, str | None] = {}
        text: str | None = None
        if result.reason == DISABLED:
            if self._on(AMPLIFICATION) and ratios.amplification_differs(node, None):
                annotations[names.ANNOTATION_RESOURCE_AMPLIFICATION_RATIO] = None
            result.plan = Plan(lent=plan.lent, annotations=annotations)
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
                how = config.amplification.for_node(labels) if config.amplification is not None else None
                amplified = ratios.amplification_text(how, node, text)
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
        result.plan = Plan(lent=plan.lent, devices=totals, ratio=ratio, annotations=annotations, labels=copied)

    def _on(self, plugin: str) -> bool:
        return plugin in self.plugins.enabled


def _same_meta(a: Node, b: Node) -> bool:
    return a is b or (a.metadata.labels == b.metadata.labels and a.metadata.annotations == b.metadata.annotations)


def _percents(holds: dict[str, Hold]) -> tuple[int, int]:
    if not holds:
        return FULL
    cpu, memory = (holds[name].percent if name in holds else 100 for name in RESOURCES)
    return cpu, memory


def _part(amount: Ints, percent: Ints) -> Ints:
    """`percent` of it, cut; exact also for the largest amounts."""
    whole: Ints = amount // 100 * percent + amount % 100 * percent // 100
    return whole
