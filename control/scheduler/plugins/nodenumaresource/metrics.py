"""Metrics of CPU and NUMA allocation: malformed input, which is ignored elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.metrics_core import CounterMetricFamily, Metric

from control.scheduler.plugins.nodenumaresource.book import KINDS
from koordlet.app.metrics import ScrapedMetrics


class NumaCounters(ScrapedMetrics[Mapping[str, int]]):
    """How often input was malformed or refused, by kind."""

    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily(
            "scheduler_numa_malformed_input",
            "Parts of NodeResourceTopologies, ratios of nodes and allocations of pods that were malformed or refused.",
            labels=("kind",),
        )
        for kind in KINDS:
            family.add_metric([kind], self.source.get(kind, 0))
        yield family
