"""Metrics of device allocation: input that was refused, and nodes whose secondary devices are not well planned."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar
from weakref import WeakKeyDictionary

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from control.scheduler.plugins.deviceshare.book import KINDS, DeviceBook


class DeviceShareMetrics(Collector):
    """See the module text."""

    def __init__(self, registry: CollectorRegistry, book: DeviceBook) -> None:
        self._book = book
        registry.register(self)

    _of: ClassVar[WeakKeyDictionary[CollectorRegistry, DeviceShareMetrics]] = WeakKeyDictionary()

    @classmethod
    def once(cls, registry: CollectorRegistry | None, book: DeviceBook) -> None:
        """All profiles have the same book."""
        if registry is not None and registry not in cls._of:
            cls._of[registry] = cls(registry, book)

    def describe(self) -> Iterator[Metric]:
        return iter(())

    def collect(self) -> Iterator[Metric]:
        refused = CounterMetricFamily(
            "scheduler_device_malformed_input",
            "Parts of Devices and allocations of pods that were malformed, refused or contradicted other ones.",
            labels=("kind",),
        )
        for kind in KINDS:
            refused.add_metric([kind], self._book.malformed.get(kind, 0))
        yield refused
        planned = GaugeMetricFamily(
            "scheduler_secondary_device_not_well_planned",
            "1 for nodes whose Device says that their secondary devices are not well planned.",
            labels=("node_name",),
        )
        for name, inventory in self._book.inventories.items():
            if inventory.planned is False:
                planned.add_metric([name], 1)
        yield planned
