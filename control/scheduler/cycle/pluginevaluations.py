"""The metric `scheduler_plugin_evaluation_total`: attempts in which a plugin ran at PreFilter, Filter, PreScore, Score.

A cycle increments one counter of `Cycle.evaluations`. The plugins are derived from it when metrics are collected.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import CounterMetricFamily, Metric

from control.scheduler.cycle.cycle import SCORED
from control.scheduler.framework.profile import Framework
from koordlet.app.metrics import ScrapedMetrics

CycleCounts = Mapping[tuple[frozenset[str], frozenset[str], int], int]
"""(skipped at filters, skipped at scores, how far the cycle got) -> cycles. How far: FILTERED, SCORED, or the number of
PreFilter plugins that ran until one rejected the pod."""


class PluginEvaluations(ScrapedMetrics[list[tuple[Framework, CycleCounts]]]):
    """See the module text. One for all profiles."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry, [])

    def add(self, framework: Framework, counts: CycleCounts) -> None:
        self.source.append((framework, counts))

    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily(
            "scheduler_plugin_evaluation",
            "Scheduling attempts in which the plugin ran at the extension point.",
            labels=("plugin", "extension_point", "profile"),
        )
        for framework, counts in self.source:
            for (plugin, point), number in sorted(evaluations_by_plugin(framework, counts).items()):
                family.add_metric([plugin, point, framework.name], number)
        yield family


def evaluations_by_plugin(framework: Framework, counts: CycleCounts) -> dict[tuple[str, str], int]:
    """(plugin, extension point) -> attempts."""
    totals: dict[tuple[str, str], int] = {}

    def add(point: str, names: Iterator[str], skipped: frozenset[str], number: int) -> None:
        for name in names:
            if name not in skipped:
                totals[name, point] = totals.get((name, point), 0) + number

    for (no_filter, no_score, reached), number in counts.items():
        called = framework.pre_filter if reached < 0 else framework.pre_filter[:reached]
        add("PreFilter", (plugin.name for plugin in called), no_filter, number)
        if reached < 0:
            add("Filter", (filter_plugin.plugin.name for filter_plugin in framework.filters), no_filter, number)
        if reached == SCORED:
            add("PreScore", (plugin.name for plugin in framework.pre_score), no_score, number)
            add("Score", (scorer.plugin.name for scorer in framework.scorers), no_score, number)
    return totals
