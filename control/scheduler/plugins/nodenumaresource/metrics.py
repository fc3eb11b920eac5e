"""Metrics of CPU and NUMA allocation: malformed input, which is ignored elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar
from weakref import WeakKeyDictionary

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from control.scheduler.plugins.nodenumaresource.book import KINDS


class NumaCounters(Collector):
    """How often input was malformed or refused, by kind."""

    def __init__(self, registry: CollectorRegistry, malformed: Mapping[str, int]) -> None:
        self._malformed = malformed
        registry.register(self)

    _of: ClassVar[WeakKeyDictionary[CollectorRegistry, NumaCounters]] = WeakKeyDictionary()

    @classmethod
    def once(cls, registry: CollectorRegistry | None, malformed: Mapping[str, int]) -> None:
        """All profiles have the same book."""
        if registry is not None and registry not in cls._of:
            cls._of[registry] = cls(registry, malformed)

    def describe(self) -> Iterator[Metric]:
        return iter(())

    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily(
            "scheduler_numa_malformed_input",
            "Parts of NodeResourceTopologies, ratios of nodes and allocations of pods that were malformed or refused.",
            labels=("kind",),
        )
        for kind in KINDS:
            family.add_metric([kind], self._malformed.get(kind, 0))
        yield family
