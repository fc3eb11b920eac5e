"""Metrics of device allocation: input that was refused, and nodes whose secondary devices are not well planned."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from control.scheduler.plugins.deviceshare.book import KINDS, DeviceBook
from koordlet.app.metrics import ScrapedMetrics


class DeviceShareMetrics(ScrapedMetrics[DeviceBook]):
    """See the module text."""

    def collect(self) -> Iterator[Metric]:
        refused = CounterMetricFamily(
            "scheduler_device_malformed_input",
            "Parts of Devices and allocations of pods that were malformed, refused or contradicted other ones.",
            labels=("kind",),
        )
        for kind in KINDS:
            refused.add_metric([kind], self.source.malformed.get(kind, 0))
        yield refused
        planned = GaugeMetricFamily(
            "scheduler_secondary_device_not_well_planned",
            "1 for nodes whose Device says that their secondary devices are not well planned.",
            labels=("node_name",),
        )
        for name, inventory in self.source.inventories.items():
            if inventory.planned is False:
                planned.add_metric([name], 1)
        yield planned
